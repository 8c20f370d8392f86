//! Groups that one observer reads: why, for whom, and until when.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use shardwise_core::{GroupName, Incarnation, InstanceId};
use shardwise_discovery::feeds::{NoReading, Observatory, ObservedGroup, ObservedGroups};
use shardwise_discovery::{Clock, Error, ErrorKind, RecordId};

struct World {
    groups: ObservedGroups<Self>,
    clock: Clock,
    started: AtomicUsize,
}

impl Observatory for World {
    type Failure = NoReading;
    type Life = u64;
    type Notes = ();
    type Extra = ();
    const LINGER: Duration = Duration::from_secs(10);

    fn groups(&self) -> &ObservedGroups<Self> {
        &self.groups
    }

    fn start(self: &Arc<Self>, _group: Arc<ObservedGroup<Self>>) {
        self.started.fetch_add(1, Ordering::SeqCst);
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn error(&self, failure: &NoReading, operation: &'static str) -> Error {
        Error::new(ErrorKind::Unavailable, operation, format!("{failure:?}"))
    }
}

fn record(id: &str, incarnation: u64) -> RecordId {
    let group = GroupName::new("g").unwrap();
    RecordId { group, instance_id: InstanceId::new(id).unwrap(), incarnation: Incarnation::new(incarnation) }
}

fn is_needed(groups: &ObservedGroups<World>) -> bool {
    groups.find(&record("a", 1).group).is_some_and(|group| !groups.end_unneeded(&group))
}

#[tokio::test(start_paused = true)]
async fn a_group_is_read_for_watches_members_and_rivals_and_then_no_more() {
    let world = Arc::new(World { groups: ObservedGroups::default(), clock: Clock::tokio(), started: AtomicUsize::new(0) });
    let groups = &world.groups;
    let interest = groups.read(&world, &record("a", 1).group, true);
    let group = groups.find(&record("a", 1).group).unwrap();
    assert!(group.needed().reads_claims && groups.of_member(&record("a", 1)).is_none());
    groups.joined(&world, &record("a", 1));
    assert!(groups.of_member(&record("a", 1)).is_some() && groups.of_member(&record("a", 2)).is_none());
    groups.wait_for(&record("a", 1), BTreeSet::from([7]));
    groups.wait_for(&record("b", 1), BTreeSet::from([8]));
    groups.refused(&world, &record("c", 1), 9);
    assert_eq!(world.started.load(Ordering::SeqCst), 1, "it is read already");
    let ids = |names: &[&str]| names.iter().map(|name| InstanceId::new(name).unwrap()).collect::<BTreeSet<_>>();
    assert_eq!((group.needed().mine, group.needed().waits), (ids(&["a", "c"]), BTreeSet::from([7, 9])));
    drop(interest);
    assert!(!group.needed().reads_claims);
    groups.left(&record("a", 2));
    assert_eq!(group.mine(), [record("a", 1)], "another life has left");
    groups.left(&record("a", 1));
    tokio::time::advance(World::LINGER).await;
    assert!(is_needed(groups), "c is waited for");
    tokio::time::advance(Duration::from_mins(1)).await;
    assert!(!is_needed(groups) && groups.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_group_lingers_after_its_last_reader_and_not_after_its_last_member() {
    let world = Arc::new(World { groups: ObservedGroups::default(), clock: Clock::tokio(), started: AtomicUsize::new(0) });
    drop(world.groups.read(&world, &record("a", 1).group, false));
    tokio::time::advance(World::LINGER / 2).await;
    assert!(is_needed(&world.groups));
    tokio::time::advance(World::LINGER).await;
    assert!(!is_needed(&world.groups));
    world.groups.refused(&world, &record("a", 1), 1);
    world.groups.joined(&world, &record("a", 1));
    world.groups.left(&record("a", 1));
    assert!(!is_needed(&world.groups), "who has joined waits for no rival");
    assert_eq!(world.started.load(Ordering::SeqCst), 2);
}
