//! Exclusive ownership with workers in Python: four pairs of `shardwise serve` and a worker that leases from it, on local, Consul and
//! etcd. Workers, sidecars and both are killed and stopped, and sidecars are cut off from their backend. The test searches the workers'
//! lines for a slot with two holders at once, by their own clocks, and for late writes that a fenced table accepted after one under a
//! higher epoch. In another fleet slots go from worker to worker in good order, and it measures how long that takes.
//!
//! `SHARDWISE_SEED=N` repeats the order of the faults. `cargo xtask soak exclusive-python` makes it hundreds of faults, on three servers.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "tests report by panicking, and print what they measured")]

#[path = "../common/mod.rs"]
mod common;
mod fault_run;
mod figures;
mod fleet;
mod pair;
#[path = "../servers/soak.rs"]
mod soak;
mod stage;

use std::time::{Duration, SystemTime};

use common::chance::Chance;
use fault_run::FaultRun;

const PAIRS: usize = 4;
const SLOTS: u32 = 16;
/// Of the sidecars' records; the workers' leases last as long.
const TTL: Duration = Duration::from_secs(2);
/// How often a pair is drained and undrained: in a soak often enough for a percentile.
const ROUNDS: [usize; 2] = [2, 30];
/// The limit for the fastest handover, in a debug build: if one waited for a lease to end, all would. A busy machine may be late with some,
/// so the limits for most are in xtask, for the soak.
const HANDOVER_MAX: Duration = Duration::from_secs(1);

/// Which processes of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Whom {
    Worker,
    Sidecar,
    Both,
}

impl Whom {
    fn has_worker(self) -> bool {
        self != Self::Sidecar
    }

    fn has_sidecar(self) -> bool {
        self != Self::Worker
    }
}

/// Something that is done to the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// SIGKILL; started again up to a second later.
    Kill(Whom),
    /// SIGSTOP, and SIGCONT after 0.2 to 6 s.
    Stop(Whom),
    /// SIGSTOP of a worker, and SIGCONT once others hold what it held and have written to it.
    StopUntilReplaced,
    /// The way to the backend: bytes held in one direction or both, connections reset, or new ones refused, for 0.2 to 6 s.
    Cut,
    /// The file of the backend `local` cannot be written for up to a TTL and a second.
    Lock,
}

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Self::Kill(Whom::Worker) => "SIGKILL of a worker",
            Self::Kill(Whom::Sidecar) => "SIGKILL of a sidecar",
            Self::Kill(Whom::Both) => "SIGKILL of both",
            Self::Stop(Whom::Worker) => "SIGSTOP of a worker",
            Self::Stop(Whom::Sidecar) => "SIGSTOP of a sidecar",
            Self::Stop(Whom::Both) => "SIGSTOP of both",
            Self::StopUntilReplaced => "SIGSTOP of a worker until replaced",
            Self::Cut => "sidecar cut off",
            Self::Lock => "file locked",
        }
    }
}

/// What takes the backend away.
fn outage(backend: &str) -> Fault {
    if backend == "local" { Fault::Lock } else { Fault::Cut }
}

/// A few in the ordinary test.
fn short(backend: &str, chance: &mut Chance) -> Vec<Fault> {
    let (kill, stop) = (Fault::Kill(Whom::Sidecar), [Whom::Sidecar, Whom::Both][chance.index(2)]);
    let mut faults = [Fault::StopUntilReplaced, Fault::Kill(Whom::Worker), kill, Fault::Stop(stop), outage(backend)];
    chance.shuffle(&mut faults);
    faults.into()
}

/// So many of all kinds, at random.
fn long(backend: &str, count: u32, chance: &mut Chance) -> Vec<Fault> {
    let kinds = [
        (Fault::Kill(Whom::Worker), 4),
        (Fault::Kill(Whom::Sidecar), 2),
        (Fault::Kill(Whom::Both), 2),
        (Fault::Stop(Whom::Worker), 3),
        (Fault::Stop(Whom::Sidecar), 3),
        (Fault::Stop(Whom::Both), 2),
        (Fault::StopUntilReplaced, 2),
        (outage(backend), 4),
    ];
    let bag: Vec<_> = kinds.into_iter().flat_map(|(fault, often)| std::iter::repeat_n(fault, often)).collect();
    (0..count).map(|_| bag[chance.index(bag.len())]).collect()
}

/// A fleet on that backend and on how many servers; in a soak on three.
fn fleet(backend: &str) -> (FaultRun, u64) {
    let seed = std::env::var("SHARDWISE_SEED").map_or_else(|_| seed_of_now(), |seed| seed.parse().unwrap());
    println!("{backend}: SHARDWISE_SEED={seed} repeats the order of the faults");
    (FaultRun::start(backend, if soak::is_on() { 3 } else { 1 }, Chance(seed)), seed)
}

fn no_slot_has_two_workers_whatever_is_done_to_a_fleet(backend: &str) {
    let (mut run, seed) = fleet(backend);
    let mut chance = Chance(seed);
    let faults = if soak::is_on() { long(backend, soak::runs(0), &mut chance) } else { short(backend, &mut chance) };
    for fault in faults {
        run.strike(fault);
    }
    let mut summary = run.end();
    summary["seed"] = seed.into();
    soak::note(&summary);
}

fn slots_go_from_worker_to_worker(backend: &str) {
    let (mut run, _) = fleet(backend);
    let took = run.hand_over(ROUNDS[usize::from(soak::is_on())]);
    run.end();
    soak::note(&figures::hands(backend, &took));
    assert!(took.iter().min().is_some_and(|fastest| *fastest < HANDOVER_MAX), "handovers of slots: {took:?}");
}

/// Never 0.
fn seed_of_now() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    (since.as_secs() << 30) | u64::from(since.subsec_nanos()) | 1
}

macro_rules! on_each_backend {
    ($scene:ident, $test:path) => {
        mod $scene {
            #[test]
            fn local() {
                $test("local");
            }

            #[test]
            fn consul() {
                $test("consul");
            }

            #[test]
            fn etcd() {
                $test("etcd");
            }
        }
    };
}

on_each_backend!(faults, crate::no_slot_has_two_workers_whatever_is_done_to_a_fleet);
on_each_backend!(hands, crate::slots_go_from_worker_to_worker);
