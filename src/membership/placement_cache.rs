//! Shares the placing of views between the services of this process in one group with the same parameters.

use std::sync::{Arc, Mutex, Weak};

use futures::StreamExt;
use shardwise_core::{GroupName, PlacementParams, Placer, Policy, View};
use shardwise_discovery::{WatchEvent, WatchStream};

use crate::error::locked;

/// One table for the process, because members that share a group in one process (a test of a thousand, a host of many tenants) need not
/// share a factory. It keeps nothing alive.
static KNOWN: Mutex<Vec<(GroupName, PlacementParams, Weak<Placer>)>> = Mutex::new(Vec::new());

/// The shared placer of that group. Its result depends only on the view, so sharing it with a namesake in another backend costs only time.
pub(crate) fn placer(group: &GroupName, params: PlacementParams) -> Arc<Placer> {
    let mut known = locked(&KNOWN);
    known.retain(|(_, _, placer)| placer.strong_count() > 0);
    let found = known.iter().find(|(name, of, _)| name == group && *of == params).and_then(|(_, _, placer)| placer.upgrade());
    found.unwrap_or_else(|| {
        let placer = Arc::new(Placer::new(params));
        known.push((group.clone(), params, Arc::downgrade(&placer)));
        placer
    })
}

/// A watch that delays a view whose placement takes long until a blocking thread has placed it. The next caller finds the placement
/// cached, and no async task is blocked for that long. The order of events stays the same.
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
                // The next caller that places it gets the same error and reports it.
                let _ = placing.await;
            }
            event
        }
    };
    watch.then(ahead).boxed()
}

/// The view and its placer, if placing it takes long.
fn takes_long(policy: &Policy, view: &Arc<View>) -> Option<(Arc<Placer>, Arc<View>)> {
    let params = policy.serving(view.group_fingerprint())?;
    let placer = placer(&policy.group, params);
    (view.active() >= policy.min_members as usize && placer.takes_long(view)).then(|| (placer, Arc::clone(view)))
}
