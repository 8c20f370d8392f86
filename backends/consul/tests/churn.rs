//! Members join, leave, crash and lose their connections at random, and processes are killed: no member is lost and none stays too long.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{group, open, registration, renew, settle};
use futures::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use shardwise_backend_consul::ConsulBackend;
use shardwise_discovery::conformance::{ids, view_where};
use shardwise_discovery::{Discovery, ErrorKind, Registration};
use shardwise_testkit::{Consul, Lag, TcpProxy};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Repeats a run: the seed that it printed.
const SEED: &str = "SHARDWISE_TEST_SEED";
/// `cargo xtask soak churn` asks for more: rounds of random steps, and of ten kills.
const ROUNDS: &str = "SHARDWISE_TEST_ROUNDS";
const STEPS_AT_ONCE: usize = 20;
const TTL: Duration = Duration::from_secs(2);
/// From the last change to the right view: what a crash takes, with slack for a busy machine.
const SETTLED_WITHIN: Duration = Duration::from_secs(6);
/// For what has no limit of its own.
const PATIENCE: Duration = Duration::from_secs(30);

fn rounds(default: usize) -> usize {
    std::env::var(ROUNDS).map_or(default, |rounds| rounds.parse().unwrap())
}

/// Renews all, and registers lost members again, as workers do; an answer may be missing while connections break.
async fn renew_all(backend: &ConsulBackend, members: &BTreeMap<String, Registration>) {
    join_all(members.values().map(async |one| match backend.renew(&one.record_id(), TTL).await {
        Err(error) if *error.kind() == ErrorKind::Lost => drop(backend.register(one).await),
        Ok(_) => {}
        Err(error) => assert!(error.is_retryable(), "{error}"),
    }))
    .await;
}

async fn again<T>(mut call: impl AsyncFnMut() -> shardwise_discovery::Result<T>) -> T {
    let begun = Instant::now();
    loop {
        match call().await {
            Ok(value) => return value,
            Err(error) => assert!(error.is_retryable() && begun.elapsed() < SETTLED_WITHIN, "{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_steps_lose_no_member_and_leave_none_behind() {
    let seed = std::env::var(SEED).map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("{SEED}={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let consul = Consul::single().await.unwrap();
    settle(&consul).await;
    let proxy = TcpProxy::start(consul.socket_addr()).await.unwrap();
    let (backend, other) = (open(&format!("http://{}", proxy.address())), open(&consul.address()));
    let mut watch = other.watch(&group("g"), TTL / 4);
    let (mut members, mut incarnation) = (BTreeMap::<String, Registration>::new(), 0);
    for _ in 0..rounds(8) {
        for _ in 0..STEPS_AT_ONCE {
            let at = random.random_range(0..members.len().max(1));
            let picked = members.keys().nth(at).cloned();
            match (random.random_range(0..10), picked) {
                (0..2, Some(id)) => {
                    let record_id = members.remove(&id).unwrap().record_id();
                    again(async || backend.deregister(&record_id).await).await;
                }
                // A crash: renewals stop.
                (2..4, Some(id)) => drop(members.remove(&id)),
                (4, _) => proxy.reset(),
                _ => {
                    incarnation += 1;
                    let joining = registration("g", &format!("m{incarnation}"), incarnation, TTL);
                    again(async || backend.register(&joining).await).await;
                    members.insert(joining.member.instance_id.to_string(), joining);
                }
            }
            // The fleet stays small, so that each round takes no longer than the TTL.
            while members.len() > 12 {
                let (_, leaving) = members.pop_first().unwrap();
                again(async || backend.deregister(&leaving.record_id()).await).await;
            }
            renew_all(&backend, &members).await;
        }
        let mut expected: Vec<_> = members.keys().cloned().collect();
        expected.sort_unstable();
        let renewing = async {
            loop {
                renew_all(&backend, &members).await;
                tokio::time::sleep(TTL / 8).await;
            }
        };
        let settled = async {
            let begun = Instant::now();
            while ids(&other.members(&group("g")).await.unwrap().view) != expected {
                assert!(begun.elapsed() < SETTLED_WITHIN, "{SEED}={seed}: not {expected:?}");
                tokio::time::sleep(TTL / 20).await;
            }
        };
        tokio::select! {
            () = settled => {}
            () = renewing => unreachable!("renewing never ends"),
        }
    }
    for one in std::mem::take(&mut members).into_values() {
        again(async || backend.deregister(&one.record_id()).await).await;
    }
    view_where(&mut watch, SETTLED_WITHIN, "nobody in the end", |view| view.members().is_empty()).await;
}

/// The agent's address and the member's number of a worker process; unset in the tests themselves.
const WORKER: &str = "SHARDWISE_TEST_CHURN_WORKER";
const CRASH_TTL: Duration = Duration::from_secs(3);

/// Not a test: what a worker process runs. Says `registered`, and renews every third of the TTL until it is killed.
#[tokio::test]
async fn worker_process() {
    let Ok(worker) = std::env::var(WORKER) else { return };
    let (address, number) = worker.rsplit_once('#').unwrap();
    let (backend, number): (_, u64) = (open(address), number.parse().unwrap());
    let registration = registration("crash", &format!("w{number}"), number, CRASH_TTL);
    backend.register(&registration).await.unwrap();
    println!("registered");
    for _ in 0..60 {
        tokio::time::sleep(CRASH_TTL / 3).await;
        renew(&backend, &registration).await;
    }
}

async fn worker(address: &str, number: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "worker_process", "--nocapture"]).env(WORKER, format!("{address}#{number}"));
    let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let registered = async { while !lines.next_line().await.unwrap().unwrap().ends_with("registered") {} };
    timeout(PATIENCE, registered).await.unwrap_or_else(|_| panic!("worker {number} has not registered within {PATIENCE:?}"));
    child
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_are_gone_within_ttl_and_margin() {
    let consul = Consul::single().await.unwrap();
    settle(&consul).await;
    let other = open(&consul.address());
    let mut watch = other.watch(&group("crash"), CRASH_TTL / 4);
    let (lag, mut took) = (Lag::begin(), Vec::new());
    for round in 0..rounds(10).div_ceil(10) as u64 {
        let mut workers = Vec::new();
        for n in 0..10u64 {
            workers.push((format!("w{}", round * 10 + n), worker(&consul.address(), round * 10 + n).await));
        }
        view_where(&mut watch, PATIENCE, "all ten", |view| view.members().len() == 10).await;
        let mut killed = BTreeMap::new();
        for (id, mut child) in workers {
            // Spread over the time between two renewals.
            tokio::time::sleep(CRASH_TTL / 30).await;
            child.start_kill().unwrap();
            killed.insert(id, Instant::now());
        }
        while !killed.is_empty() {
            let left = killed.len();
            let view =
                view_where(&mut watch, PATIENCE, "fewer", |view| killed.keys().filter(|id| ids(view).contains(id)).count() < left).await;
            let gone: Vec<_> = killed.keys().filter(|id| !ids(&view).contains(id)).cloned().collect();
            took.extend(gone.iter().filter_map(|id| killed.remove(id)).map(|at| at.elapsed()));
        }
    }
    took.sort_unstable();
    println!(
        "{} kills, TTL {CRASH_TTL:?}: seen gone after median {:?}, worst {:?}",
        took.len(),
        took[took.len() / 2],
        took[took.len() - 1]
    );
    assert!(took[took.len() - 1] < CRASH_TTL + Duration::from_secs(1) + lag.allowance());
}
