//! Owners follow each other at random while former ones go on writing.
//!
//! Each write reads the last number of its lane and adds the next one. So the numbers give the order of the commits without a clock: a
//! write that wrongly passed the fence either repeats a number, or has a higher number and a lower epoch.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use shardwise_fencing::{Epoch, FenceError, Resource, StaleEpoch, postgres, sqlite};
use sqlx::{PgConnection, PgPool, SqlitePool};

use crate::common::{self, chance, epoch, group, slot};

const RESOURCES: u32 = 2;
/// Writers of one owner at once.
const LANES: i32 = 2;
/// Owners of a resource, one after the other.
const LIVES: u32 = 10;
/// How many times an owner writes unless it is refused.
const WRITES: u32 = 25;

const WRITTEN: &str = "CREATE TABLE written (resource int, lane int, number bigint, epoch bigint)";
const LAST: &str = "SELECT coalesce(max(number), 0) FROM written WHERE resource = $1 AND lane = $2";
const WRITE: &str = "INSERT INTO written (resource, lane, number, epoch) VALUES ($1, $2, $3, $4)";

#[derive(Clone)]
pub(crate) enum Store {
    Postgres(PgPool, Form),
    Sqlite(SqlitePool),
}

/// The check before a write in PostgreSQL.
#[derive(Clone, Copy)]
pub(crate) enum Form {
    /// `check`.
    Shared,
    /// The statement for other languages.
    Queued,
    /// One or the other, at random.
    Mixed,
    /// A check that reads and does not lock: an invalid fence.
    Careless,
}

/// One transaction to be tried.
struct Attempt {
    resource: u32,
    lane: i32,
    epoch: Epoch,
    /// How the transaction begins, as a number below 3.
    level: usize,
    pauses: [Duration; 2],
    /// For the mixed form.
    queued: bool,
    rolls_back: bool,
}

impl Store {
    pub(crate) async fn postgres(pool: PgPool, form: Form) -> Self {
        sqlx::raw_sql(WRITTEN).execute(&pool).await.unwrap();
        Self::Postgres(pool, form)
    }

    /// Whether it was committed.
    async fn attempt(&self, attempt: &Attempt) -> Result<bool, FenceError> {
        match self {
            Self::Postgres(pool, form) => {
                let levels = ["BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN ISOLATION LEVEL SERIALIZABLE"];
                let mut tx = pool.begin_with(levels[attempt.level]).await?;
                let resource = slot(attempt.resource);
                let checked = match form {
                    Form::Careless => check_without_lock(&mut tx, &resource, attempt.epoch).await,
                    Form::Queued => queue(&mut tx, &resource, attempt.epoch).await,
                    Form::Mixed if attempt.level == 0 && attempt.queued => queue(&mut tx, &resource, attempt.epoch).await,
                    Form::Shared | Form::Mixed => postgres::check(&mut tx, &group(), &resource, attempt.epoch).await,
                };
                if let Err(FenceError::RaiseApart { .. }) = checked {
                    tx.rollback().await?;
                    postgres::raise(&mut *pool.acquire().await?, &group(), &resource, attempt.epoch).await?;
                    return Ok(false);
                }
                checked?;
                let last: i64 =
                    sqlx::query_scalar(LAST).bind(attempt.resource.cast_signed()).bind(attempt.lane).fetch_one(&mut *tx).await?;
                tokio::time::sleep(attempt.pauses[0]).await;
                let write = sqlx::query(WRITE).bind(attempt.resource.cast_signed()).bind(attempt.lane).bind(last + 1);
                write.bind(attempt.epoch.get().cast_signed()).execute(&mut *tx).await?;
                tokio::time::sleep(attempt.pauses[1]).await;
                if attempt.rolls_back { tx.rollback().await? } else { tx.commit().await? }
            }
            Self::Sqlite(pool) => {
                let mut tx = pool.begin_with(["BEGIN IMMEDIATE", "BEGIN", "BEGIN EXCLUSIVE"][attempt.level]).await?;
                let last = || sqlx::query_scalar(LAST).bind(attempt.resource).bind(attempt.lane);
                // A transaction that starts by reading: SQLite itself must detect that it is outdated.
                let before: i64 = last().fetch_one(&mut *tx).await?;
                sqlite::check(&mut tx, &group(), &slot(attempt.resource), attempt.epoch).await?;
                tokio::time::sleep(attempt.pauses[0]).await;
                let write = sqlx::query(WRITE).bind(attempt.resource).bind(attempt.lane).bind(before + 1);
                write.bind(attempt.epoch.get().cast_signed()).execute(&mut *tx).await?;
                if attempt.rolls_back { tx.rollback().await? } else { tx.commit().await? }
            }
        }
        Ok(!attempt.rolls_back)
    }

    /// The committed numbers and epochs of each lane, in order of the numbers.
    async fn written(&self) -> Vec<Vec<(i64, i64)>> {
        let mut lanes = Vec::new();
        for (resource, lane) in (0..RESOURCES.cast_signed()).flat_map(|resource| (0..LANES).map(move |lane| (resource, lane))) {
            let sql = "SELECT number, epoch FROM written WHERE resource = $1 AND lane = $2 ORDER BY number, epoch";
            lanes.push(match self {
                Self::Postgres(pool, _) => sqlx::query_as(sql).bind(resource).bind(lane).fetch_all(pool).await.unwrap(),
                Self::Sqlite(pool) => sqlx::query_as(sql).bind(resource).bind(lane).fetch_all(pool).await.unwrap(),
            });
        }
        lanes
    }
}

/// What a client in another language would do.
async fn queue(conn: &mut PgConnection, resource: &Resource, epoch: Epoch) -> Result<(), FenceError> {
    let text = shardwise_fencing::resource_text(resource);
    let raise = sqlx::query(postgres::RAISE).bind(group().as_str().to_owned()).bind(text).bind(epoch.get().cast_signed());
    if raise.execute(conn).await?.rows_affected() == 1 {
        return Ok(());
    }
    Err(StaleEpoch { group: group(), resource: resource.clone(), epoch, seen: None }.into())
}

/// Compares and stores, but locks nothing.
async fn check_without_lock(conn: &mut PgConnection, resource: &Resource, epoch: Epoch) -> Result<(), FenceError> {
    let (group, text) = (group(), shardwise_fencing::resource_text(resource));
    let higher = "SELECT count(*) FROM shardwise_fence WHERE group_name = $1 AND resource = $2 AND epoch > $3";
    let query = sqlx::query_scalar(higher).bind(group.as_str()).bind(&text).bind(epoch.get().cast_signed());
    let higher: i64 = query.fetch_one(&mut *conn).await?;
    if higher > 0 {
        return Err(StaleEpoch { group, resource: resource.clone(), epoch, seen: None }.into());
    }
    let insert = "INSERT INTO shardwise_fence SELECT $1, $2, $3 WHERE NOT EXISTS
        (SELECT 1 FROM shardwise_fence WHERE group_name = $1 AND resource = $2 AND epoch = $3) ON CONFLICT DO NOTHING";
    sqlx::query(insert).bind(group.as_str()).bind(&text).bind(epoch.get().cast_signed()).execute(conn).await?;
    Ok(())
}

/// One owner's writer: continues until it is refused or done, even after the resource has a new owner.
async fn write(store: Store, resource: u32, lane: i32, epoch: Epoch, seed: u64, committed: Arc<AtomicUsize>, refused: Arc<AtomicUsize>) {
    let mut chance = StdRng::seed_from_u64(seed);
    for _ in 0..WRITES {
        let pause = |chance: &mut StdRng| Duration::from_micros(chance.random_range(0..3_000));
        let pauses = [pause(&mut chance), pause(&mut chance)];
        let attempt = Attempt {
            resource,
            lane,
            epoch,
            level: chance.random_range(0..3),
            pauses,
            queued: chance.random(),
            rolls_back: chance.random_bool(0.1),
        };
        match store.attempt(&attempt).await {
            Ok(true) => {
                committed.fetch_add(1, Ordering::Relaxed);
            }
            Ok(false) => {}
            Err(FenceError::Fenced(_)) => {
                refused.fetch_add(1, Ordering::Relaxed);
                return;
            }
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
        tokio::time::sleep(pause(&mut chance)).await;
    }
}

/// Errors in the order of the commits, and the number of refusals.
async fn race(store: Store) -> (Vec<String>, usize) {
    let (seed, mut chance) = chance();
    let (committed, refused) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut writers = tokio::task::JoinSet::new();
    for life in 1..=LIVES {
        for resource in 0..RESOURCES {
            let number = epoch(u64::from(life * RESOURCES + resource));
            for lane in 0..LANES {
                writers.spawn(write(store.clone(), resource, lane, number, chance.random(), committed.clone(), refused.clone()));
            }
        }
        tokio::time::sleep(Duration::from_millis(chance.random_range(1..60))).await;
    }
    while let Some(ended) = common::soon("a writer", writers.join_next()).await {
        ended.unwrap();
    }
    let lanes = store.written().await;
    let mut wrong = Vec::new();
    for (lane, rows) in lanes.iter().enumerate() {
        let disorder = rows.windows(2).filter(|pair| pair[0].0 == pair[1].0 || pair[0].1 > pair[1].1);
        wrong.extend(disorder.map(|pair| format!("seed {seed}, lane {lane}: number and epoch {:?} before {:?}", pair[0], pair[1])));
    }
    let rows: usize = lanes.iter().map(Vec::len).sum();
    assert_eq!(rows, committed.load(Ordering::Relaxed), "seed {seed}: rows, and commits that were acknowledged");
    (wrong, refused.load(Ordering::Relaxed))
}

pub(crate) async fn epochs_rise_in_the_order_of_commits(store: Store) {
    let (wrong, refused) = race(store).await;
    assert_eq!(wrong, Vec::<String>::new());
    assert!(refused > 0, "nobody was ever refused, so nothing was tried");
}

async fn on_postgres(form: Form) {
    let (_database, pool) = common::postgres().await;
    epochs_rise_in_the_order_of_commits(Store::postgres(pool, form).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn epochs_rise_with_share_locks_on_postgres() {
    on_postgres(Form::Shared).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn epochs_rise_with_the_statement_for_every_language_on_postgres() {
    on_postgres(Form::Queued).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn epochs_rise_with_both_beside_each_other_on_postgres() {
    on_postgres(Form::Mixed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn epochs_rise_on_sqlite() {
    let (_folder, pool) = common::sqlite().await;
    sqlx::raw_sql(WRITTEN).execute(&pool).await.unwrap();
    epochs_rise_in_the_order_of_commits(Store::Sqlite(pool)).await;
}

/// The race detects an invalid fence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_that_only_reads_is_found() {
    for _ in 0..5 {
        let (_database, pool) = common::postgres().await;
        if !race(Store::postgres(pool, Form::Careless).await).await.0.is_empty() {
            return;
        }
    }
    panic!("five races, and no write was found that passed beside the fence");
}
