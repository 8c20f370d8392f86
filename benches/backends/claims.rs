//! How long it takes to acquire many claims in one call.

use std::time::{Duration, Instant};

use serde_json::json;
use shardwise_core::{Epoch, GroupName, Resource};
use shardwise_discovery::{AcquireOutcome, Claims, RecordId};

use crate::server::Server;
use crate::{LASTING, millis, print_figure, register};

/// In each round one member acquires new slots and releases them; then a member of another process acquires them.
pub(crate) async fn rounds(name: &str, server: &Server, rounds: u32, count: u32) {
    let (here, there) = (server.open(), server.open());
    let (Some(first), Some(second)) = (here.as_claims(), there.as_claims()) else { return };
    let slots: Vec<_> = (0..count).map(Resource::Slot).collect();
    for round in 0..rounds {
        let group = GroupName::new(format!("claims {round}")).unwrap();
        let a = register(&*here, &group, "a", LASTING).await.record_id();
        let b = register(&*there, &group, "b", LASTING).await.record_id();
        let (fresh, held) = acquire(first, &a, &slots).await;
        first.release(&a, &held).await.unwrap();
        let (released, _) = acquire(second, &b, &slots).await;
        for (what, took) in [("fresh", fresh), ("released", released)] {
            print_figure(&json!({ "figure": format!("{name}: {what} claims"), "round": round, "ms": millis(took) }));
        }
        here.deregister(&a).await.unwrap();
        there.deregister(&b).await.unwrap();
    }
}

/// Acquires all of them in one call; returns how long it took, and the epochs.
pub(crate) async fn acquire(claims: &dyn Claims, record_id: &RecordId, wanted: &[Resource]) -> (Duration, Vec<(Resource, Epoch)>) {
    let store = claims.claim_store(&record_id.group, 0).await.unwrap();
    let begun = Instant::now();
    let outcomes = claims.acquire(record_id, &store, wanted).await.unwrap();
    let took = begun.elapsed();
    assert_eq!(outcomes.len(), wanted.len());
    let held = outcomes.into_iter().map(|(resource, outcome)| match outcome {
        AcquireOutcome::Granted(epoch) => (resource, epoch),
        other => panic!("{resource} is not granted: {other:?}"),
    });
    (took, held.collect())
}
