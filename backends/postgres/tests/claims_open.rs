//! Claims and transactions of the user's own, in the same database: a write that locks its claim's row cannot be late, and holds up that
//! slot alone.

mod common;

use std::time::{Duration, Instant};

use common::{ClaimsFollower, TTL, backend, claimant, database, eventually, granted, lasting, slots, store};
use shardwise_core::Resource;
use shardwise_discovery::{AcquireOutcome, Claims, Discovery, ErrorKind, Registration};
use shardwise_testkit::Lag;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection};

/// The user's own write in docs.md.
const FENCED: &str = "SELECT c.epoch FROM shardwise.claim AS c JOIN shardwise.member_group AS g ON g.id = c.group_id
    JOIN shardwise.member AS m ON m.group_id = g.id AND m.joined = c.holder
    WHERE g.name = $1 AND c.slot = $2 AND c.epoch = $3 FOR SHARE OF c";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_holds_its_claim_holds_up_that_slot_alone() {
    let database = database().await;
    let (here, there) = (backend(&database.url()), backend(&database.url()));
    let a = Registration { claims: true, ttl: TTL, ..lasting("a", 1) };
    here.register(&a).await.unwrap();
    let held = granted(&here, &a.record_id(), &slots(0..3)).await;
    let b = claimant(&there, "b", 2).await;
    let (_, epoch) = held[1];

    // The write begins while the claim is held, and lasts until long after the holder's end.
    let mut user: sqlx::PgConnection = database.url().parse::<PgConnectOptions>().unwrap().connect().await.unwrap();
    let mut write = user.begin().await.unwrap();
    let fence = |epoch: i64| sqlx::query_scalar::<_, i64>(FENCED).bind("workers").bind(1_i32).bind(epoch);
    assert_eq!(fence(epoch.get().cast_signed()).fetch_optional(&mut *write).await.unwrap(), Some(epoch.get().cast_signed()));
    let mut follower = ClaimsFollower::of(&there);
    follower.until_held(&slots(0..3)).await;
    let (lag, begun) = (Lag::begin(), Instant::now());
    follower.until_held(&[]).await;
    let (took, late) = (begun.elapsed(), lag.allowance());
    assert!(took < TTL + Duration::from_secs(3) + late, "its eviction waits for no transaction: {took:?}, with {late:?} for this machine");

    let known = store(&there).await;
    let answers = there.acquire(&b, &known, &slots(0..3)).await.unwrap();
    let outcome = |slot: u32| answers.iter().find(|(resource, _)| *resource == Resource::Slot(slot)).unwrap().1;
    assert!(matches!(outcome(0), AcquireOutcome::Granted(_)) && matches!(outcome(2), AcquireOutcome::Granted(_)), "{answers:?}");
    assert_eq!(outcome(1), AcquireOutcome::NotYet, "{answers:?}");
    write.commit().await.unwrap();
    let taken = eventually("slot 1", async || granted(&there, &b, &slots(1..2)).await.pop()).await;
    assert!(taken.1 > epoch);

    // Under its former epoch no write passes any more.
    assert_eq!(fence(epoch.get().cast_signed()).fetch_optional(&mut user).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_transaction_holds_is_released_after_it() {
    let database = database().await;
    let (here, there) = (backend(&database.url()), backend(&database.url()));
    let (a, b) = (claimant(&here, "a", 1).await, claimant(&there, "b", 2).await);
    let held = granted(&here, &a, &slots(0..2)).await;
    let mut user: sqlx::PgConnection = database.url().parse::<PgConnectOptions>().unwrap().connect().await.unwrap();
    let mut write = user.begin().await.unwrap();
    let fence = sqlx::query_scalar::<_, i64>(FENCED).bind("workers").bind(0_i32).bind(held[0].1.get().cast_signed());
    assert!(fence.fetch_optional(&mut *write).await.unwrap().is_some());
    let error = here.release(&a, &held).await.unwrap_err();
    assert!(
        error.is_retryable() && *error.kind() == ErrorKind::Unavailable && error.to_string().contains("1 claims are locked"),
        "{error}"
    );
    assert_eq!(granted(&there, &b, &slots(1..2)).await.len(), 1, "the other one is released");
    write.rollback().await.unwrap();
    here.release(&a, &held).await.unwrap();
    assert_eq!(granted(&there, &b, &slots(0..1)).await.len(), 1);
}
