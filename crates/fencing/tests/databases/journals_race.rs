//! A counter whose owners follow each other at random while former ones go on counting: no count is lost or repeated.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use shardwise_fencing::{Epoch, Journal, JournalError, LoadedJournal};

use crate::common::{self, chance, epoch, group, name};

const OWNERS: u64 = 8;
/// How many times an owner counts unless it is refused.
const COUNTS: u32 = 30;

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().unwrap())
}

/// The count in the journal of such a counter. Each event is the number it counted to.
fn count(loaded: &LoadedJournal) -> u64 {
    let snapshot = loaded.snapshot.as_ref().map_or(0, |snapshot| number(&snapshot.state));
    loaded.events.iter().fold(snapshot, |count, event| {
        assert_eq!(number(&event.payload), count + 1, "an event follows from all before it");
        count + 1
    })
}

/// One owner; returns how many of its counts were acknowledged.
async fn own(journal: Journal, epoch: Epoch, seed: u64) -> u64 {
    let mut chance = StdRng::seed_from_u64(seed);
    let mut acknowledged = 0;
    let over = |error: JournalError| assert!(matches!(error, JournalError::Fenced(_)), "{error}");
    let loaded = match journal.take_over(epoch).await {
        Ok(loaded) => loaded,
        Err(error) => {
            over(error);
            return 0;
        }
    };
    let (mut version, mut at) = (loaded.version, count(&loaded));
    for _ in 0..COUNTS {
        tokio::time::sleep(Duration::from_micros(chance.random_range(0..4_000))).await;
        match journal.append(version, epoch, &[(at + 1).to_be_bytes()]).await {
            Ok(now) => (version, at, acknowledged) = (now, at + 1, acknowledged + 1),
            // No other process writes under this epoch, so the version must be right as long as the epoch is.
            Err(error) => {
                over(error);
                return acknowledged;
            }
        }
        if chance.random_bool(0.2)
            && let Err(error) = journal.snapshot(version, epoch, &at.to_be_bytes()).await
        {
            over(error);
            return acknowledged;
        }
        if chance.random_bool(0.1) {
            journal.prune().await.unwrap();
        }
    }
    acknowledged
}

async fn owners_follow_each_other(journal: Journal) {
    let (seed, mut chance) = chance();
    let mut owners = tokio::task::JoinSet::new();
    for number in 1..=OWNERS {
        owners.spawn(own(journal.clone(), epoch(number), chance.random()));
        tokio::time::sleep(Duration::from_millis(chance.random_range(1..60))).await;
    }
    let mut acknowledged = 0;
    while let Some(count) = common::soon("an owner", owners.join_next()).await {
        acknowledged += count.unwrap();
    }
    let loaded = journal.take_over(epoch(OWNERS + 1)).await.unwrap();
    assert_eq!((count(&loaded), loaded.version), (acknowledged, acknowledged), "seed {seed}");
    assert!(acknowledged >= u64::from(COUNTS), "seed {seed}: the last owner is refused by nobody");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_count_is_lost_on_postgres() {
    let (_database, pool) = common::postgres().await;
    owners_follow_each_other(Journal::postgres(pool, group(), name("counter"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_count_is_lost_on_sqlite() {
    let (_folder, pool) = common::sqlite().await;
    owners_follow_each_other(Journal::sqlite(pool, group(), name("counter"))).await;
}
