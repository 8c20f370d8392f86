//! Which services of this process share the placing of views: those of one group under the same parameters.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use shardwise_core::{GroupName, PlacementParams, Placer};

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
