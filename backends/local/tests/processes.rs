//! Members in real processes: stopped, killed, and many at once.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Follower, PATIENCE, Scratch, backend, granted, group, ids, registration, slots, view_of};
use nix::sys::signal::{Signal, kill, raise};
use nix::unistd::Pid;
use shardwise_backend_local::LocalBackend;
use shardwise_discovery::{Discovery, ErrorKind, RecordId};
use shardwise_testkit::Lag;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// The file of a worker process; unset in the tests themselves.
const PATH: &str = "SHARDWISE_TEST_WORKER_PATH";
/// The ids that a worker process registers, separated by commas.
const IDS: &str = "SHARDWISE_TEST_WORKER_IDS";
/// Its TTL in milliseconds; it renews five times in that.
const TTL_MS: &str = "SHARDWISE_TEST_WORKER_TTL_MS";
/// It stops itself when this file next to the database appears, right behind a renewal:
/// a process stopped inside a write would hold up all others.
const STOP: &str = "stop";
/// So long that a worker on a busy machine loses nothing before the test ends it.
const TTL: Duration = Duration::from_secs(3);
/// A worker that the test does not end ends by itself.
const WORKER_LIFE: Duration = Duration::from_mins(1);

/// How many slots the first of them claims.
const SLOTS: u32 = 100;

/// Not a test: what a worker process runs. Says `registered` once all ids are and the first holds what is free, and `lost` when one is.
#[tokio::test]
async fn worker_process() {
    let (Some(path), Ok(names)) = (std::env::var_os(PATH), std::env::var(IDS)) else { return };
    let ttl = Duration::from_millis(std::env::var(TTL_MS).unwrap().parse().unwrap());
    let (backend, stop) = (backend(&PathBuf::from(&path)), PathBuf::from(path).with_file_name(STOP));
    let registrations: Vec<_> = names.split(',').map(|id| registration(id, 1, ttl)).collect();
    for registration in &registrations {
        backend.register(registration).await.unwrap();
    }
    granted(&backend, &registrations[0].record_id(), &slots(0..SLOTS)).await;
    println!("registered");
    let renewing = async {
        loop {
            tokio::time::sleep(ttl / 5).await;
            for registration in &registrations {
                match backend.renew(&registration.record_id(), ttl).await {
                    Ok(_) => {}
                    Err(error) if *error.kind() == ErrorKind::Lost => return println!("lost"),
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
            }
            if std::fs::remove_file(&stop).is_ok() {
                raise(Signal::SIGSTOP).unwrap();
            }
        }
    };
    tokio::time::timeout(WORKER_LIFE, renewing).await.unwrap();
}

/// A worker process; killed when dropped.
struct Worker {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(scratch: &Scratch, ids: &str, ttl: Duration) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "worker_process", "--nocapture"]).env(PATH, scratch.path()).env(IDS, ids);
        command.env(TTL_MS, ttl.as_millis().to_string());
        let mut process = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    /// Waits until the worker says this.
    async fn says(&mut self, what: &str) {
        let listen = async {
            loop {
                match self.lines.next_line().await.unwrap() {
                    Some(line) if line.ends_with(what) => return,
                    Some(_) => {}
                    None => panic!("the worker ended without saying {what:?}"),
                }
            }
        };
        tokio::time::timeout(PATIENCE, listen).await.unwrap_or_else(|_| panic!("the worker did not say {what:?} within {PATIENCE:?}"));
    }

    /// SIGSTOP, at a moment at which it writes nothing.
    async fn stops(&self, scratch: &Scratch) {
        let stop = scratch.path().with_file_name(STOP);
        std::fs::write(&stop, "").unwrap();
        let begun = Instant::now();
        while stop.exists() {
            assert!(begun.elapsed() < PATIENCE, "the worker did not stop within {PATIENCE:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.process.id().unwrap()).unwrap()), signal).unwrap();
    }
}

#[tokio::test]
async fn a_worker_stopped_beyond_its_ttl_is_gone_and_learns_that_it_is_lost() {
    let scratch = Scratch::new();
    let observer = scratch.backend();
    let mut watch = observer.watch(&group(), TTL / 3);
    let mut worker = Worker::start(&scratch, "a", TTL);
    worker.says("registered").await;
    view_of(&mut watch, &["a"]).await;
    worker.stops(&scratch).await;
    let gone = view_of(&mut watch, &[]).await;
    worker.signal(Signal::SIGCONT);
    worker.says("lost").await;
    let view = observer.members(&group()).await.unwrap().view;
    assert_eq!((ids(&view), view.revision()), (vec![], gone.revision()), "nothing came back, not even for a moment");
}

#[tokio::test]
async fn a_stopped_workers_id_can_be_had_and_the_old_one_does_not_touch_it() {
    let scratch = Scratch::new();
    let observer = scratch.backend();
    let mut watch = observer.watch(&group(), TTL / 3);
    let mut worker = Worker::start(&scratch, "a", TTL);
    worker.says("registered").await;
    let error = observer.register(&registration("a", 2, PATIENCE)).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InUse { .. }), "{error}");
    worker.stops(&scratch).await;
    view_of(&mut watch, &[]).await;
    observer.register(&registration("a", 2, PATIENCE)).await.unwrap();
    worker.signal(Signal::SIGCONT);
    worker.says("lost").await;
    let view = observer.members(&group()).await.unwrap().view;
    assert_eq!(view.members().iter().map(|member| member.incarnation.get()).collect::<Vec<_>>(), [2]);
}

#[tokio::test]
async fn a_killed_worker_leaves_the_view_and_a_sound_file() {
    let scratch = Scratch::new();
    let mut worker = Worker::start(&scratch, "a,b,c", TTL);
    worker.says("registered").await;
    let mut watch = scratch.backend().watch(&group(), TTL / 3);
    view_of(&mut watch, &["a", "b", "c"]).await;
    worker.signal(Signal::SIGKILL);
    worker.process.wait().await.unwrap();
    view_of(&mut watch, &[]).await;
    let check: String = sqlx::query_scalar("PRAGMA integrity_check").fetch_one(&mut scratch.sql().await).await.unwrap();
    assert_eq!(check, "ok");
}

/// A worker process that holds slots, and a member that waits for them.
struct Succession {
    scratch: Scratch,
    worker: Worker,
    heir: LocalBackend,
    record_id: RecordId,
    claims: Follower,
}

impl Succession {
    async fn begin() -> Self {
        let scratch = Scratch::new();
        let heir = scratch.backend();
        let b = registration("b", 2, PATIENCE);
        heir.register(&b).await.unwrap();
        let mut claims = Follower::of(&heir, TTL / 3);
        let mut worker = Worker::start(&scratch, "a", TTL);
        worker.says("registered").await;
        claims.until(0..SLOTS).await;
        Self { scratch, worker, heir, record_id: b.record_id(), claims }
    }

    /// The heir waits for the watch, asks, and holds everything under higher epochs. How long that took.
    async fn takes_place(&mut self) -> Duration {
        let highest = self.claims.held.values().map(|claim| claim.epoch).max().unwrap();
        let started = Instant::now();
        self.claims.until(0..0).await;
        let held = granted(&self.heir, &self.record_id, &slots(0..SLOTS)).await;
        let took = started.elapsed();
        assert_eq!(held.len(), SLOTS as usize);
        assert!(held.values().all(|epoch| *epoch > highest), "{held:?} after {highest}");
        took
    }
}

#[tokio::test]
async fn a_killed_workers_claims_are_taken_over_within_its_ttl_and_a_second() {
    let mut succession = Succession::begin().await;
    let lag = Lag::begin();
    succession.worker.signal(Signal::SIGKILL);
    let took = succession.takes_place().await;
    println!("taken over after {took:?} with a TTL of {TTL:?}");
    let late = lag.allowance();
    assert!(took <= TTL + Duration::from_secs(1) + late, "{took:?}, {late:?} for this machine");
}

#[tokio::test]
async fn a_worker_stopped_beyond_its_ttl_has_lost_its_claims_and_gets_none_back() {
    let mut succession = Succession::begin().await;
    succession.worker.stops(&succession.scratch).await;
    succession.takes_place().await;
    succession.worker.signal(Signal::SIGCONT);
    succession.worker.says("lost").await;
    let mut seen = Follower::of(&succession.scratch.backend(), TTL);
    seen.until(0..SLOTS).await;
    assert!(seen.held.values().all(|claim| claim.holder.instance_id == succession.record_id.instance_id), "{:?}", seen.held);
}

#[tokio::test]
async fn processes_that_make_the_file_and_join_at_once_all_see_each_other() {
    // No process renews before all its members are in, and a hundred write in turns.
    let (scratch, ttl) = (Scratch::new(), TTL * 2);
    let names: Vec<_> = (0..5).map(|worker| (0..20).map(|n| format!("{worker}-{n:02}")).collect::<Vec<_>>()).collect();
    let mut workers: Vec<_> = names.iter().map(|ids| Worker::start(&scratch, &ids.join(","), ttl)).collect();
    for worker in &mut workers {
        worker.says("registered").await;
    }
    let everybody: Vec<_> = names.iter().flatten().map(String::as_str).collect();
    let mut watch = scratch.backend().watch(&group(), ttl / 3);
    view_of(&mut watch, &everybody).await;
    // All renew, one writer at a time, and no member loses its record over several TTLs.
    let quiet = tokio::time::timeout(ttl * 2, view_of(&mut watch, &[])).await;
    assert!(quiet.is_err());
    let view = scratch.backend().members(&group()).await.unwrap().view;
    assert_eq!(ids(&view), everybody);
}
