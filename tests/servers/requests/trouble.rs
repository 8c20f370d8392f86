//! Thousands of requests that may not be repeated, while members are killed, paused, cut off and asked to leave: none is handled twice,
//! none by two owners at once, and each that is unknown is accounted for by what the workers wrote down.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use shardwise::requests::{Answered, AskError, To};
use shardwise_testkit::overlap_judge::findings;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::TTL;
use super::fleet::{Fleet, Sharing, keys, post, thousands};
use super::log::Calls;
use crate::figures;
use crate::meeting::Kind;

on_all_at_once!(no_request_that_may_not_be_repeated_is_handled_twice; soak: nats Nats, postgres Postgres);

const MEMBERS: usize = 4;
const LANES: usize = 32;
/// The fewest requests in the short form.
const FEW: usize = 600;
/// Each lane pauses for up to twice as long after a request, so that the requests last through the faults.
const PAUSE: Duration = Duration::from_millis(250);
const HANDLED_FOR_MS_MAX: u32 = 20;
/// Longer than a takeover takes.
const WITHIN: Duration = Duration::from_secs(10);
/// A fault that does not end by itself ends after up to this time.
const FAULT_MAX: Duration = Duration::from_secs(TTL.as_secs() + 1);

/// What is done to a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Kill,
    Pause,
    /// Bytes of requests and answers are held.
    Cut,
    /// Connections of requests are reset.
    Reset,
    /// New connections are refused, and those that there are reset.
    Refuse,
    Leave,
}

impl Fault {
    const ALL: [Self; 6] = [Self::Kill, Self::Pause, Self::Cut, Self::Reset, Self::Refuse, Self::Leave];

    const fn name(self) -> &'static str {
        match self {
            Self::Kill => "SIGKILL",
            Self::Pause => "SIGSTOP for a while",
            Self::Cut => "connections of requests cut",
            Self::Reset => "connections of requests reset",
            Self::Refuse => "connections of requests reset and refused",
            Self::Leave => "asked to leave",
        }
    }
}

/// What a caller learned of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Learned {
    Answered,
    Unknown,
    NotHandled,
    /// An answer with another status than a handler gives.
    Odd(u16),
}

impl Learned {
    fn of(outcome: &Result<Answered, AskError>) -> Self {
        match outcome {
            Ok(answered) if answered.answer.status == 200 => Self::Answered,
            // The member says that it does not know, or has ended the handler.
            Ok(answered) if matches!(answered.answer.status, 502 | 504) => Self::Unknown,
            Ok(answered) => Self::Odd(answered.answer.status),
            Err(error) if error.may_have_been_handled() => Self::Unknown,
            Err(_) => Self::NotHandled,
        }
    }
}

fn no_request_that_may_not_be_repeated_is_handled_twice(kind: Option<Kind>) {
    let seed = std::env::var("SHARDWISE_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    let mut rng = StdRng::seed_from_u64(seed);
    let count = thousands().map_or(FEW, |thousands| thousands * 1_000);
    let mut fleet = Fleet::start_as(kind, Sharing::Exclusive, MEMBERS, true);
    println!("{}: SHARDWISE_SEED={seed} repeats the order of the faults", fleet.place.name());
    let (next, over) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
    let lanes: Vec<_> = (0..LANES).map(|_| sends(&fleet, &next, &over, StdRng::seed_from_u64(rng.random()))).collect();
    let mut counts = BTreeMap::<Fault, u32>::new();
    // Each kind once, and then at random.
    let mut first = Fault::ALL.into_iter();
    while first.len() > 0 || next.load(Ordering::Relaxed) < count {
        let fault = first.next().unwrap_or_else(|| Fault::ALL[rng.random_range(0..Fault::ALL.len())]);
        *counts.entry(fault).or_default() += 1;
        strike(&mut fleet, fault, &mut rng, counts.values().sum());
    }
    over.cancel();
    let mut learned = BTreeMap::new();
    for lane in lanes {
        learned.extend(fleet.runtime.block_on(lane).unwrap());
    }
    fleet.settle();
    fleet.end();
    judge(&fleet, &learned, &counts, seed);
}

/// One lane of callers, until it is over.
fn sends(fleet: &Fleet, next: &Arc<AtomicUsize>, over: &CancellationToken, mut rng: StdRng) -> JoinHandle<Vec<(String, Learned)>> {
    let (router, next, over, keys) = (Arc::clone(&fleet.router), Arc::clone(next), over.clone(), keys());
    fleet.runtime.spawn(async move {
        let mut learned = Vec::new();
        while !over.is_cancelled() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let request = post("work", format!("{number} {}", rng.random_range(0..=HANDLED_FOR_MS_MAX)));
            let outcome = router.ask(&To::owner(&keys[number % keys.len()]), request, WITHIN).await;
            learned.push((number.to_string(), Learned::of(&outcome)));
            tokio::time::sleep(PAUSE.mul_f64(2.0 * rng.random::<f64>())).await;
        }
        learned
    })
}

/// Does it to one member, and undoes it.
fn strike(fleet: &mut Fleet, fault: Fault, rng: &mut StdRng, number: u32) {
    let names = fleet.names();
    let victim = &names[rng.random_range(0..names.len())];
    println!("{}: {} of {victim}", fleet.place.name(), fault.name());
    let lasts = FAULT_MAX.mul_f64(rng.random());
    match fault {
        Fault::Kill | Fault::Leave => {
            if fault == Fault::Kill {
                fleet.kill(victim);
            } else {
                fleet.leave(victim);
            }
            sleep(lasts / 4);
            fleet.admit(&format!("next-{number}"));
            // At most half of the members are gone or struck at a time.
            fleet.settle();
        }
        Fault::Pause => {
            fleet.signal(victim, Signal::SIGSTOP);
            sleep(lasts);
            fleet.signal(victim, Signal::SIGCONT);
        }
        Fault::Cut => {
            fleet.order(victim, "cut");
            sleep(lasts);
            fleet.order(victim, "heal");
        }
        Fault::Reset => {
            for _ in 0..5 {
                fleet.order(victim, "reset");
                sleep(lasts / 10);
            }
        }
        Fault::Refuse => {
            fleet.order(victim, "refuse");
            fleet.order(victim, "reset");
            sleep(lasts);
            fleet.order(victim, "heal");
        }
    }
}

/// Compares what the callers learned with what the workers wrote down.
fn judge(fleet: &Fleet, learned: &BTreeMap<String, Learned>, counts: &BTreeMap<Fault, u32>, seed: u64) {
    let (calls, stays) = (fleet.calls(), findings(&fleet.stays()));
    let of = |request: &String| calls.get(request).copied().unwrap_or_default();
    let is_as_learned = |&(request, learned): &(&String, &Learned)| match (*learned, of(request)) {
        (Learned::Answered, calls) => calls == Calls { begun: 1, done: 1, dropped: 0 },
        (Learned::NotHandled, calls) => calls.begun == 0,
        (Learned::Unknown, calls) => calls.begun <= 1,
        (Learned::Odd(_), _) => false,
    };
    let wrong: Vec<_> =
        learned.iter().filter(|one| !is_as_learned(one)).map(|(request, learned)| (request, learned, of(request))).collect();
    let twice = calls.values().filter(|calls| calls.begun > 1).count();
    let unknown: Vec<_> = learned.iter().filter(|(_, learned)| **learned == Learned::Unknown).map(|(request, _)| of(request)).collect();
    let number = |is: Learned| learned.values().filter(|learned| **learned == is).count();
    let by_name: BTreeMap<_, _> = counts.iter().map(|(fault, count)| (fault.name(), count)).collect();
    let figures = json!({
        "scene": "faults", "backend": fleet.place.name(), "seed": seed, "counts": by_name,
        "requests": learned.len(), "answered": number(Learned::Answered), "not_handled": number(Learned::NotHandled),
        "unknown": unknown.len(),
        "unknown_done": unknown.iter().filter(|calls| calls.done == 1).count(),
        "unknown_in_part": unknown.iter().filter(|calls| (calls.begun, calls.done) == (1, 0)).count(),
        "unknown_not_begun": unknown.iter().filter(|calls| calls.begun == 0).count(),
        "twice": twice, "stays": stays.stays.len(), "overlaps": stays.overlaps.len(),
    });
    figures::note(&figures);
    let is_well = wrong.is_empty() && twice == 0 && stays.overlaps.is_empty() && stays.falls.is_empty() && stays.unfit.is_empty();
    assert!(
        is_well,
        "learned otherwise than it was: {wrong:?}\ntwo owners at once: {:?}\nfallen epochs: {:?}\nlines that do not follow from those before: \
         {:?}\n{figures}",
        stays.overlaps, stays.falls, stays.unfit
    );
}
