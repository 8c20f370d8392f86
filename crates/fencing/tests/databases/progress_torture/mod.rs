//! Takeovers of real processes, which are killed, stopped or left to write on: no position goes backwards, and no work is done twice or
//! left out. A few in a test run, many in `cargo xtask soak progress`.

mod judge;
mod worker;

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::RngExt as _;
use serde_json::json;
use shardwise_fencing::Resource;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::common::{self, PATIENCE, chance, soon};
use crate::progress_store::progress;
use worker::{FENCED, SAVED, TortureMistake};

const KEYS: [&str; 2] = ["customers", "orders"];
const RESOURCE: Resource = Resource::Slot(17);
/// Three of each fate.
const TAKEOVERS: u64 = 9;
/// How many of them must find a mistake, and in how many runs.
const TAKEOVERS_BY_MISTAKE: u64 = 6;
const RUNS_BY_MISTAKE: u32 = 5;
/// How long an owner works before its fate, and how long one is stopped, at most.
const WORKS_MS: u64 = 40;
const STOPPED_MS: u64 = 150;

/// What happens to an owner when the next one takes over.
#[derive(Debug, Clone, Copy)]
enum OwnerFate {
    /// SIGKILL.
    Killed,
    /// SIGSTOP, and SIGCONT before or after the next owner has saved.
    Stopped,
    /// It goes on as if it were still the owner.
    WritesOn,
}

const FATES: [OwnerFate; 3] = [OwnerFate::Killed, OwnerFate::Stopped, OwnerFate::WritesOn];

struct OwnerProcess {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl OwnerProcess {
    fn start(database: &str, epoch: u64, seed: u64, mistake: Option<TortureMistake>) -> Self {
        let mut command = worker::command(database, epoch, seed, mistake);
        let mut process = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    /// Waits for a line that begins so, and returns the rest of it.
    async fn says(&mut self, what: &str) -> String {
        let listen = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                if let Some(rest) = line.strip_prefix(what) {
                    return rest.to_owned();
                }
            }
            panic!("an owner ended without saying {what:?}")
        };
        tokio::time::timeout(PATIENCE, listen).await.unwrap_or_else(|_| panic!("an owner did not say {what:?} within {PATIENCE:?}"))
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.process.id().unwrap()).unwrap()), signal).unwrap();
    }

    /// Waits until every task of a former owner was refused. Returns how often a position had moved before.
    async fn until_refused(mut self) -> u64 {
        let moved = self.says(FENCED).await.parse().unwrap();
        let status = soon("the end of a refused owner", self.process.wait()).await.unwrap();
        assert!(status.success(), "a refused owner ended with {status}");
        moved
    }
}

/// What came of the takeovers.
#[derive(Debug, Default)]
struct TakeoverCounts {
    /// How many owners had each fate, in the order of [`FATES`].
    fates: [u64; 3],
    refused: u64,
    moved: u64,
}

/// Each owner takes over from the one before, under a higher epoch.
async fn take_over(database: &str, count: u64, mistake: Option<TortureMistake>) -> TakeoverCounts {
    let (_, mut chance) = chance();
    let (mut all, mut former) = (TakeoverCounts::default(), JoinSet::new());
    // How many owners have saved.
    let saved = watch::Sender::new(0);
    for number in 0..count {
        let mut owner = OwnerProcess::start(database, number + 2, chance.random_range(0..u64::MAX / 2), mistake);
        owner.says(SAVED).await;
        saved.send_replace(number + 1);
        tokio::time::sleep(Duration::from_millis(chance.random_range(0..WORKS_MS))).await;
        let index = usize::try_from(number % 3).unwrap();
        all.fates[index] += 1;
        let stopped = match FATES[index] {
            OwnerFate::Killed => {
                owner.process.kill().await.unwrap();
                continue;
            }
            OwnerFate::Stopped => {
                owner.signal(Signal::SIGSTOP);
                Some(Duration::from_millis(chance.random_range(0..STOPPED_MS)))
            }
            OwnerFate::WritesOn => None,
        };
        let mut owners = saved.subscribe();
        former.spawn(async move {
            if let Some(stopped) = stopped {
                tokio::time::sleep(stopped).await;
                owner.signal(Signal::SIGCONT);
            }
            if mistake.is_some() {
                // It may never be refused. The next one has to have saved first, however long its start takes.
                soon("the next owner", owners.wait_for(|saved| *saved > number + 1)).await.map(drop).unwrap();
                tokio::time::sleep(Duration::from_millis(4 * WORKS_MS)).await;
                owner.process.kill().await.unwrap();
                return None;
            }
            Some(owner.until_refused().await)
        });
    }
    // The last owner refuses all that are left.
    let mut last = OwnerProcess::start(database, count + 2, chance.random_range(0..u64::MAX / 2), mistake);
    last.says(SAVED).await;
    saved.send_replace(count + 1);
    while let Some(moved) = soon("a former owner", former.join_next()).await {
        if let Some(moved) = moved.unwrap() {
            (all.refused, all.moved) = (all.refused + 1, all.moved + moved);
        }
    }
    last.process.kill().await.unwrap();
    all
}

/// Runs takeovers in a database that has the tables, and returns what is wrong.
async fn run(name: &str, database: &str, count: u64, mistake: Option<TortureMistake>) -> Vec<String> {
    let store = worker::open(database).await;
    store.run(worker::TABLES).await;
    for key in KEYS {
        store.resume(&progress(key, RESOURCE, 1)).await.unwrap();
    }
    let (end, ended) = oneshot::channel();
    let observer = tokio::spawn(judge::backwards(store.clone(), ended));
    let all = take_over(database, count, mistake).await;
    end.send(()).unwrap();
    let backwards = soon("the observer", observer).await.unwrap();
    let mut found = judge::judge(&store).await;
    found.wrong.extend(backwards);
    if mistake.is_none() {
        let figures = json!({
            "database": name, "takeovers": count, "kills": all.fates[0], "stops": all.fates[1], "overlaps": all.fates[2],
            "items": found.items, "saves": found.saves, "refused": all.refused, "moved": all.moved, "wrong": found.wrong.len(),
        });
        eprintln!("{figures}");
        if let Ok(path) = std::env::var("SHARDWISE_SOAK_FIGURES") {
            writeln!(std::fs::OpenOptions::new().append(true).open(path).unwrap(), "{figures}").unwrap();
        }
        // One of each fate.
        let is_tried = count < 3 || (all.refused > 0 && all.moved > 0);
        assert!(is_tried, "neither an owner nor a task was refused, so nothing was tried: {all:?}");
    }
    found.wrong
}

fn count() -> u64 {
    std::env::var("SHARDWISE_SOAK_RUNS").map_or(TAKEOVERS, |runs| runs.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_position_goes_backwards_and_no_work_is_done_twice_on_postgres() {
    let (database, _pool) = common::postgres().await;
    assert_eq!(run("postgres", &database.url(), count(), None).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_position_goes_backwards_and_no_work_is_done_twice_on_sqlite() {
    let (folder, _pool) = common::sqlite().await;
    let database = format!("sqlite:{}", folder.path().join("test.db").display());
    assert_eq!(run("sqlite", &database, count(), None).await, Vec::<String>::new());
}

async fn is_found(mistake: TortureMistake) {
    for _ in 0..RUNS_BY_MISTAKE {
        let (database, _pool) = common::postgres().await;
        if !run("postgres", &database.url(), TAKEOVERS_BY_MISTAKE, Some(mistake)).await.is_empty() {
            return;
        }
    }
    panic!("{RUNS_BY_MISTAKE} runs, and nothing was found wrong");
}

/// The torture detects a save that names no position.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_save_that_overwrites_is_found() {
    is_found(TortureMistake::Overwrites).await;
}

/// And one that no epoch refuses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_save_without_a_fence_is_found() {
    is_found(TortureMistake::Unfenced).await;
}
