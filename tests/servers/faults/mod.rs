//! A fleet of real worker processes with exclusive ownership under random faults: workers are killed, stopped for less or more than their
//! TTL, cut off, or asked to leave; their server is killed or stopped, its routes cut, its clock set, or their file locked. The test
//! searches their logs for a slot or a singleton with two holders at once, a period of a timer that was fired twice, and stale writes
//! that a fenced table accepted.
//!
//! `SHARDWISE_SEED=N` repeats the order of the faults. `cargo xtask soak exclusive` makes it hundreds of faults on clusters of three, and
//! with `--mistake NAME` a mistake is put back into the workers' library, which must be found.

mod fault_run;
mod figures;
mod fleet;
mod mistakes;
mod stage;
mod worker;

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::meeting::{Kind, alone};
use fault_run::FaultRun;

const SLOTS: u32 = 16;
/// The singleton and the timer go by numbers behind the slots.
const SINGLETON: u32 = SLOTS;
const TIMER: u32 = SLOTS + 1;
/// Always held by some worker, unless a fault is under way: the slots and the singleton. A timer is held only during its jobs.
const ALWAYS_HELD: u32 = SLOTS + 1;
const TTL: Duration = Duration::from_secs(2);

/// Something that is done to the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// SIGKILL. Another worker comes in its place.
    Kill,
    /// SIGSTOP, and SIGCONT after up to a TTL and a second.
    Pause,
    /// SIGSTOP, and SIGCONT once the others hold what it held and have written to it.
    PauseUntilReplaced,
    /// The way to the server: bytes held in one direction or both, connections reset, or new ones refused, for up to a TTL and a second.
    Cut,
    /// Answers come so late that they only just count; then nothing that is asked arrives any more, for a TTL and a second.
    Late,
    /// The server that leads is killed, and started again up to a second later.
    Server,
    /// The server that leads is stopped for up to a TTL and a second.
    ServerPause,
    /// The servers do not hear each other, or some do not hear others, for up to ten seconds.
    Routes,
    /// The server's clock jumps by up to two days.
    Clock,
    /// The file cannot be written for up to a TTL and a second.
    Lock,
    /// One leaves in good order, and another one comes. No fault, but slots change hands.
    Leave,
}

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "SIGKILL",
            Self::Pause => "SIGSTOP for a while",
            Self::PauseUntilReplaced => "SIGSTOP until replaced",
            Self::Cut => "connections cut",
            Self::Late => "answers late, then requests cut",
            Self::Server => "leading server killed",
            Self::ServerPause => "leading server stopped",
            Self::Routes => "routes between servers cut",
            Self::Clock => "the server's clock set",
            Self::Lock => "file locked",
            Self::Leave => "asked to leave",
        }
    }
}

/// One of each kind in the ordinary test, of which each must end within 15 s.
fn short(kind: Option<Kind>, rng: &mut StdRng) -> Vec<Fault> {
    let (network, restart) = if kind.is_none() { (Fault::Lock, Fault::Lock) } else { (Fault::Cut, Fault::Server) };
    let mut faults = vec![Fault::PauseUntilReplaced, Fault::Kill, network, Fault::Pause, restart, Fault::Leave];
    faults.extend(of_servers(kind).iter().map(|(fault, _)| *fault));
    faults.shuffle(rng);
    faults
}

/// What only these servers can suffer here, and how often.
fn of_servers(kind: Option<Kind>) -> &'static [(Fault, u32)] {
    match kind {
        Some(Kind::Nats) => &[(Fault::ServerPause, 2), (Fault::Routes, 2)],
        Some(Kind::Postgres) => &[(Fault::ServerPause, 2), (Fault::Clock, 2)],
        _ => &[],
    }
}

/// So many of all kinds, at random.
fn long(kind: Option<Kind>, count: usize, rng: &mut StdRng) -> Vec<Fault> {
    let kinds: &[(Fault, u32)] = match kind {
        None => &[(Fault::Kill, 5), (Fault::Pause, 5), (Fault::PauseUntilReplaced, 3), (Fault::Lock, 4), (Fault::Leave, 2)],
        _ => &[
            (Fault::Kill, 5),
            (Fault::Pause, 4),
            (Fault::PauseUntilReplaced, 3),
            (Fault::Cut, 4),
            (Fault::Late, 2),
            (Fault::Server, 2),
            (Fault::Leave, 2),
        ],
    };
    let bag: Vec<_> =
        kinds.iter().chain(of_servers(kind)).flat_map(|(fault, often)| std::iter::repeat_n(*fault, *often as usize)).collect();
    let mut all = Vec::new();
    // A worker that is asked to leave is no fault.
    while all.iter().filter(|fault| **fault != Fault::Leave).count() < count {
        all.push(bag[rng.random_range(0..bag.len())]);
    }
    all
}

fn a_fleet_holds_no_slot_twice_whatever_is_done_to_it(kind: Option<Kind>) {
    // A soak takes long, and measures nothing here that others could spoil: its backends have their turns beside each other.
    let _alone = crate::figures::wanted().is_none().then(alone);
    let seed = std::env::var("SHARDWISE_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("{}: SHARDWISE_SEED={seed} repeats the order of the faults", kind.map_or("local", Kind::name));
    let mut rng = StdRng::seed_from_u64(seed);
    let (faults, servers) = match crate::figures::wanted() {
        Some(count) => (long(kind, count, &mut rng), 3),
        None => (short(kind, &mut rng), 1),
    };
    let mut run = FaultRun::start(kind, servers, rng, None);
    for fault in faults {
        run.strike(fault);
    }
    let mut summary = run.end();
    summary["seed"] = seed.into();
    crate::figures::note(&summary);
}

#[test]
fn local() {
    a_fleet_holds_no_slot_twice_whatever_is_done_to_it(None);
}

#[test]
fn consul() {
    a_fleet_holds_no_slot_twice_whatever_is_done_to_it(Some(Kind::Consul));
}

#[test]
fn etcd() {
    a_fleet_holds_no_slot_twice_whatever_is_done_to_it(Some(Kind::Etcd));
}

#[test]
fn nats() {
    crate::figures::case(module_path!(), "nats", || a_fleet_holds_no_slot_twice_whatever_is_done_to_it(Some(Kind::Nats)));
}

#[test]
fn postgres() {
    crate::figures::case(module_path!(), "postgres", || a_fleet_holds_no_slot_twice_whatever_is_done_to_it(Some(Kind::Postgres)));
}
