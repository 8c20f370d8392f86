//! The process of one owner. Two tasks for each key do work and save how far they are, until they are refused or the process is killed.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use shardwise_fencing::{FenceError, Position, Progress, StaleEpoch};
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous};
use tokio::process::Command;

use super::{KEYS, RESOURCE};
use crate::common::PATIENCE;
use crate::progress_store::{ProgressStore, ProgressTx, progress};

const TASKS_OF_A_KEY: usize = 2;
/// A process that the test does not end ends by itself.
const LIFE: Duration = Duration::from_mins(2);
/// What it says when each of its tasks was refused, followed by how often a position had moved.
pub(super) const FENCED: &str = "fenced; moved: ";
/// What it says when it has saved for the first time.
pub(super) const SAVED: &str = "saved";

const DATABASE: &str = "FENCING_TORTURE_DATABASE";
const EPOCH: &str = "FENCING_TORTURE_EPOCH";
const MISTAKE: &str = "FENCING_TORTURE_MISTAKE";
const SEED: &str = "FENCING_TORTURE_SEED";

pub(super) const TABLES: &str = "CREATE TABLE done (key text, instance text, item bigint, epoch bigint);
    CREATE TABLE saves (key text, instance text, number bigint, epoch bigint, first bigint, last bigint)";
const DO: &str = "INSERT INTO done (key, instance, item, epoch) VALUES ($1, $2, $3, $4)";
const NOTE: &str = "INSERT INTO saves (key, instance, number, epoch, first, last) VALUES ($1, $2, $3, $4, $5, $6)";

/// A wrong way to save, which the test must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TortureMistake {
    /// Whatever position the database has by now.
    Overwrites,
    /// Under whatever epoch the database has seen.
    Unfenced,
}

const OVERWRITE: &str = "UPDATE shardwise_progress SET number = number + 1, position = $2, epoch = $3 WHERE key = $1 AND epoch <= $3";
const SAVE_UNFENCED: &str = "UPDATE shardwise_progress SET number = number + 1, position = $2, epoch = $3 WHERE key = $1 AND number = $4";

/// Starts a process that owns everything under this epoch.
pub(super) fn command(database: &str, epoch: u64, seed: u64, mistake: Option<TortureMistake>) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "progress_torture::worker::worker_process", "--nocapture", "--test-threads=1"]);
    command.env(DATABASE, database).env(EPOCH, epoch.to_string()).env(SEED, seed.to_string());
    command.envs(mistake.map(|mistake| (MISTAKE, format!("{mistake:?}"))));
    command
}

/// A pool for an address such as `postgres://…` or `sqlite:…`.
pub(super) async fn open(database: &str) -> ProgressStore {
    if let Some(file) = database.strip_prefix("sqlite:") {
        // Nothing here loses power.
        let options = SqliteConnectOptions::new().filename(file).synchronous(SqliteSynchronous::Off).busy_timeout(PATIENCE);
        let pool = SqlitePoolOptions::new().max_connections(2).acquire_timeout(PATIENCE);
        ProgressStore::Sqlite(pool.connect_with(options).await.unwrap())
    } else {
        let pool = PgPoolOptions::new().max_connections(4).acquire_timeout(PATIENCE);
        ProgressStore::Postgres(pool.connect(database).await.unwrap())
    }
}

/// Not a test: what the process of an owner runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_process() {
    let Ok(database) = std::env::var(DATABASE) else { return };
    let number = |name| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let mistake = std::env::var(MISTAKE).ok();
    let mistake = mistake.map(|name| if name == "Overwrites" { TortureMistake::Overwrites } else { TortureMistake::Unfenced });
    let store = open(&database).await;
    let (saves, moved) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    let mut seed = number(SEED);
    for key in KEYS.into_iter().flat_map(|key| [key; TASKS_OF_A_KEY]) {
        seed += 1;
        let task = OwnerTask {
            store: store.clone(),
            progress: progress(key, RESOURCE, number(EPOCH)),
            mistake,
            chance: StdRng::seed_from_u64(seed),
            saves: saves.clone(),
            moved: moved.clone(),
        };
        tasks.spawn(task.run());
    }
    tokio::time::timeout(LIFE, tasks.join_all()).await.unwrap();
    println!("{FENCED}{}", moved.load(Ordering::Relaxed));
}

struct OwnerTask {
    store: ProgressStore,
    progress: Progress,
    mistake: Option<TortureMistake>,
    chance: StdRng,
    saves: Arc<AtomicUsize>,
    moved: Arc<AtomicUsize>,
}

impl OwnerTask {
    /// Works until it is refused.
    #[expect(clippy::explicit_write, reason = "the test harness keeps what `println!` writes")]
    async fn run(mut self) {
        let mut kept = None;
        loop {
            match self.step(kept.take()).await {
                Ok(position) => {
                    if self.saves.fetch_add(1, Ordering::Relaxed) == 0 {
                        // The line before may be the test harness's, without an end.
                        writeln!(std::io::stdout(), "\n{SAVED}").unwrap();
                    }
                    kept = Some(position).filter(|_| self.chance.random());
                }
                Err(FenceError::Fenced(_)) => return,
                Err(FenceError::Moved { .. }) => {
                    self.moved.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
            self.pause().await;
        }
    }

    /// One transaction: some items, and the position behind them. It goes on from the position that the task has kept, or resumes first,
    /// in this transaction or in another one.
    async fn step(&mut self, kept: Option<Position>) -> Result<Position, FenceError> {
        let kept = match kept {
            None if self.chance.random() => {
                let mut tx = self.store.begin().await?;
                let position = self.resume(&mut tx).await?;
                tx.commit().await?;
                self.pause().await;
                Some(position)
            }
            kept => kept,
        };
        let mut tx = self.store.begin().await?;
        let from = match kept {
            Some(kept) => kept,
            None => self.resume(&mut tx).await?,
        };
        let first = from.value.as_deref().map_or(0, |value| value.parse::<i64>().unwrap()) + 1;
        let last = first + self.chance.random_range(0..4);
        let (key, instance) = (self.progress.key.clone(), self.progress.instance.clone());
        let (texts, epoch) = ([key.as_str(), instance.as_str()], self.progress.epoch.get().cast_signed());
        for item in first..=last {
            tx.execute(DO, texts, &[item, epoch]).await?;
        }
        self.pause().await;
        let position = self.save(&mut tx, &from, last).await?;
        tx.execute(NOTE, texts, &[position.number.cast_signed(), epoch, first, last]).await?;
        self.pause().await;
        tx.commit().await?;
        Ok(position)
    }

    async fn resume(&self, tx: &mut ProgressTx) -> Result<Position, FenceError> {
        if self.mistake != Some(TortureMistake::Unfenced) {
            return tx.resume(&self.progress).await;
        }
        let (number, value) = tx.read(&self.progress.key).await?.unwrap();
        Ok(Position { number: number.cast_unsigned(), value, saved_by: None, saved_epoch: None })
    }

    async fn save(&self, tx: &mut ProgressTx, from: &Position, last: i64) -> Result<Position, FenceError> {
        let (key, text) = (self.progress.key.as_str(), last.to_string());
        let (epoch, number) = (self.progress.epoch.get().cast_signed(), from.number.cast_signed());
        let saved = match self.mistake {
            None => return tx.save(&self.progress, from, &text).await,
            Some(TortureMistake::Overwrites) => tx.execute(OVERWRITE, [key, &text], &[epoch]).await?,
            Some(TortureMistake::Unfenced) => tx.execute(SAVE_UNFENCED, [key, &text], &[epoch, number]).await?,
        };
        match saved {
            1 => Ok(Position { number: from.number + 1, value: Some(text), saved_by: None, saved_epoch: None }),
            _ if self.mistake == Some(TortureMistake::Unfenced) => {
                Err(FenceError::Moved { key: key.into(), from: from.number, found: None })
            }
            _ => {
                let (group, resource) = (self.progress.group.clone(), self.progress.resource.clone());
                Err(StaleEpoch { group, resource, epoch: self.progress.epoch, seen: None }.into())
            }
        }
    }

    async fn pause(&mut self) {
        tokio::time::sleep(Duration::from_micros(self.chance.random_range(0..2_000))).await;
    }
}
