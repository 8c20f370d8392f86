//! Journals store, refuse and delete the same in both databases.

use shardwise_fencing::{
    APPEND_EVENTS_MAX, ClaimName, EVENT_BYTES_MAX, Journal, JournalError, JournalEvent, JournalSnapshot, LoadedJournal, READ_EVENTS_MAX,
    StaleEpoch,
};

use crate::common::{self, epoch, group, name};

/// Runs a test of a journal in both databases.
macro_rules! in_both {
    ($($test:ident as $on_postgres:ident, $on_sqlite:ident;)*) => {$(
        #[tokio::test]
        async fn $on_postgres() {
            let (_database, pool) = common::postgres().await;
            $test(&Journal::postgres(pool, group(), name("counter"))).await;
        }

        #[tokio::test]
        async fn $on_sqlite() {
            let (_folder, pool) = common::sqlite().await;
            $test(&Journal::sqlite(pool, group(), name("counter"))).await;
        }
    )*};
}

in_both! {
    what_is_appended_is_there as postgres_keeps_events, sqlite_keeps_events;
    a_former_owner_is_refused as postgres_refuses_a_former_owner, sqlite_refuses_a_former_owner;
    a_snapshot_stands_for_what_it_covers as postgres_keeps_a_snapshot, sqlite_keeps_a_snapshot;
    sizes_are_bounded as postgres_bounds_sizes, sqlite_bounds_sizes;
}

fn refused(error: JournalError) -> StaleEpoch {
    match error {
        JournalError::Fenced(refused) => refused,
        other => panic!("to be refused, but {other}"),
    }
}

fn event(version: u64, epoch: u64, payload: &str) -> JournalEvent {
    JournalEvent { version, epoch, payload: payload.into() }
}

pub(crate) async fn what_is_appended_is_there(journal: &Journal) {
    let empty = LoadedJournal { version: 0, snapshot: None, events: vec![] };
    assert_eq!(journal.load().await.unwrap(), empty);
    assert_eq!(journal.read(1, 10).await.unwrap(), []);
    assert_eq!(journal.take_over(epoch(5)).await.unwrap(), empty);
    assert_eq!(journal.append(0, epoch(5), &["a", ""]).await.unwrap(), 2);
    assert_eq!(journal.append(2, epoch(6), &["c"]).await.unwrap(), 3);
    assert_eq!(journal.append(3, epoch(6), &[] as &[&str]).await.unwrap(), 3);
    let all = vec![event(1, 5, "a"), event(2, 5, ""), event(3, 6, "c")];
    assert_eq!(journal.load().await.unwrap(), LoadedJournal { version: 3, snapshot: None, events: all.clone() });
    assert_eq!(journal.read(0, READ_EVENTS_MAX + 1).await.unwrap(), all);
    assert_eq!(journal.read(2, 1).await.unwrap(), all[1..2]);
    assert_eq!(journal.read(4, 1).await.unwrap(), []);
    for expected in [0, 2, 4, u64::MAX] {
        let error = journal.append(expected, epoch(6), &["x"]).await.unwrap_err();
        assert!(matches!(error, JournalError::Version { found: 3, .. }) && !error.is_retryable(), "{error}");
    }
    assert_eq!(journal.load().await.unwrap().events, all, "what was refused left nothing");
}

async fn a_former_owner_is_refused(journal: &Journal) {
    let version = journal.append(0, epoch(5), &["a"]).await.unwrap();
    journal.take_over(epoch(7)).await.unwrap();
    // Its version is right, so only the epoch reveals the old owner.
    for error in [
        journal.append(version, epoch(6), &["x"]).await.unwrap_err(),
        journal.snapshot(version, epoch(6), b"x").await.unwrap_err(),
        journal.take_over(epoch(6)).await.unwrap_err(),
    ] {
        let error = refused(error);
        assert_eq!((error.epoch, error.seen), (epoch(6), Some(epoch(7))));
        assert!(error.to_string().starts_with("\"counter\" of group \"büro 1\" is held under a higher epoch than 6"), "{error}");
    }
    assert_eq!(journal.load().await.unwrap(), LoadedJournal { version: 1, snapshot: None, events: vec![event(1, 5, "a")] });
    journal.append(version, epoch(7), &["b"]).await.unwrap();
}

async fn a_snapshot_stands_for_what_it_covers(journal: &Journal) {
    let numbers: Vec<String> = (1..=APPEND_EVENTS_MAX).map(|number| number.to_string()).collect();
    for round in 0..3 {
        journal.append(round * APPEND_EVENTS_MAX, epoch(5), &numbers).await.unwrap();
    }
    assert_eq!(journal.prune().await.unwrap(), 0, "without a snapshot nothing may go");
    let error = journal.snapshot(3_001, epoch(5), b"x").await.unwrap_err();
    assert!(matches!(error, JournalError::Version { expected: 3_001, found: 3_000 }), "{error}");
    journal.snapshot(2_500, epoch(5), b"2500 were counted").await.unwrap();
    journal.snapshot(10, epoch(5), b"older").await.unwrap();
    let loaded = journal.load().await.unwrap();
    assert_eq!(loaded.snapshot, Some(JournalSnapshot { version: 2_500, state: b"2500 were counted".to_vec() }));
    assert_eq!((loaded.version, loaded.events.len(), loaded.events[0].version), (3_000, 500, 2_501));
    assert_eq!(journal.read(1, 5).await.unwrap().len(), 5, "nothing is deleted yet");
    assert_eq!(journal.prune().await.unwrap(), 2_500);
    assert_eq!(journal.prune().await.unwrap(), 0);
    let error = journal.read(2_500, 5).await.unwrap_err();
    assert!(matches!(error, JournalError::Pruned { upto: 2_500 }), "{error}");
    assert_eq!(journal.read(2_501, READ_EVENTS_MAX).await.unwrap(), loaded.events);
    assert_eq!(journal.load().await.unwrap(), loaded);
    assert_eq!(journal.append(3_000, epoch(5), &["on"]).await.unwrap(), 3_001);
    journal.snapshot(3_001, epoch(6), b"").await.unwrap();
    assert_eq!(journal.take_over(epoch(6)).await.unwrap().events, []);
    refused(journal.append(3_001, epoch(5), &["x"]).await.unwrap_err());
}

async fn sizes_are_bounded(journal: &Journal) {
    let large = vec![7; usize::try_from(EVENT_BYTES_MAX).unwrap()];
    let too_large = [&large[..], b"x"].concat();
    let error = journal.append(0, epoch(5), &[too_large]).await.unwrap_err();
    assert!(matches!(error, JournalError::TooLarge { .. }), "{error}");
    for round in 0..8 {
        journal.append(round * 8, epoch(5), &[&large[..]; 8]).await.unwrap();
    }
    // A page ends before it exceeds 8 MiB.
    assert_eq!(journal.read(3, READ_EVENTS_MAX).await.unwrap().last().map(|event| event.version), Some(10));
    let error = journal.append(64, epoch(5), &["x"]).await.unwrap_err();
    assert!(matches!(error, JournalError::SnapshotDue { events: 65, bytes: 67_108_865 }), "{error}");
    journal.snapshot(60, epoch(5), &large.repeat(16)).await.unwrap();
    journal.append(64, epoch(5), &["x"]).await.unwrap();
    let loaded = journal.load().await.unwrap();
    assert_eq!((loaded.version, loaded.events.len()), (65, 5));
    assert_eq!(loaded.snapshot.map(|snapshot| snapshot.state.len()), Some(large.len() * 16));
}

#[tokio::test]
async fn journals_know_nothing_of_each_other() {
    let (_folder, pool) = common::sqlite().await;
    let names: [ClaimName; 3] = ["counter", "counter ", "Counter"].map(name);
    let others = names.map(|name| Journal::sqlite(pool.clone(), group(), name));
    let elsewhere = Journal::sqlite(pool, "other".to_owned().try_into().unwrap(), name("counter"));
    for (number, journal) in (1..).zip(others.iter().chain([&elsewhere])) {
        assert_eq!(journal.append(0, epoch(10 - number), &[number.to_string()]).await.unwrap(), 1);
    }
    assert_eq!(elsewhere.read(1, 9).await.unwrap(), [event(1, 6, "4")]);
}
