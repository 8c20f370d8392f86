//! Which services of this process share the placing of views: those of one group under the same parameters.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures::StreamExt;
use shardwise_core::{GroupName, PlacementParams, Placer, Policy, View};
use shardwise_discovery::{WatchEvent, WatchStream};

/// Kept by the process, because members that share a group in one process (a test of a thousand, a host of many tenants) need not share a
/// factory. It holds nothing alive.
static KNOWN: Mutex<Vec<(GroupName, PlacementParams, Weak<Placer>)>> = Mutex::new(Vec::new());

/// The placer of that group, as long as anybody holds it; what it answers depends on the view alone, so sharing it with a namesake in
/// another backend costs time and nothing else.
pub(crate) fn placer(group: &GroupName, params: PlacementParams) -> Arc<Placer> {
    // Nothing in here can panic half-way.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|(_, _, placer)| placer.strong_count() > 0);
    let found = known.iter().find(|(name, of, _)| name == group && *of == params).and_then(|(_, _, placer)| placer.upgrade());
    found.unwrap_or_else(|| {
        let placer = Arc::new(Placer::new(params));
        known.push((group.clone(), params, Arc::downgrade(&placer)));
        placer
    })
}

/// A watch that hands on a view whose placement takes long only once it is placed, by a thread that may be blocked: the next one to place it finds it
/// placed, and no task of the runtime is held up for that long. Everything comes in the order in which the backend reports it.
pub(crate) fn placed_ahead(watch: WatchStream, policy: Policy) -> WatchStream {
    // Kept until the next view, because it holds the placement.
    let mut kept = None;
    let ahead = move |event| {
        let view = if let Ok(WatchEvent::View(snapshot)) = &event { takes_long(&policy, &snapshot.view) } else { None };
        let placing = view.map(|(placer, view)| {
            kept = Some(Arc::clone(&placer));
            tokio::task::spawn_blocking(move || placer.place(&view).is_ok())
        });
        async move {
            if let Some(placing) = placing {
                // The next one to place it meets the same error, and reports it.
                let _ = placing.await;
            }
            event
        }
    };
    watch.then(ahead).boxed()
}

/// That view and what places it, if that takes long.
fn takes_long(policy: &Policy, view: &Arc<View>) -> Option<(Arc<Placer>, Arc<View>)> {
    let params = policy.serving(view.group_fingerprint())?;
    let placer = placer(&policy.group, params);
    (view.active() >= policy.min_members as usize && placer.takes_long(view)).then(|| (placer, Arc::clone(view)))
}
