//! What must hold, each with its own traffic and faults. An error says what went wrong.

use std::time::Duration;

use shardwise_core::routing::Width;

use crate::world::{Arrivals, MEMBERS, MS, Mix, SECOND, Setup, SimAttempt, World};

/// Requests a second: half of what all members can handle.
const RATE: f64 = 1_600.0;
/// The hot key has so many times the load of each of the others.
const TIMES: usize = 100;
const EVEN_KEYS: usize = 50;
const WARM: u64 = 2 * SECOND;

/// What a run shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spread {
    pub(crate) hot_p99: u64,
    pub(crate) even_p99: u64,
    pub(crate) widest: u8,
    attempts: Vec<SimAttempt>,
}

fn hot_world(seed: u64, callers: usize, max_width: Width) -> World {
    World::new(Setup { seed, callers, keys: EVEN_KEYS + 1, max_width })
}

fn answered_all(world: &World) -> Result<(), String> {
    world.failed.first().map_or(Ok(()), |error| Err(format!("{} requests have no answer: {error}", world.failed.len())))
}

impl Spread {
    /// An error if the hot key makes the 99th percentile more than `times` as high.
    pub(crate) fn within(self, times: u64) -> Result<Self, String> {
        let ms = |nanos: u64| nanos / MS;
        if self.hot_p99 <= times * self.even_p99 {
            return Ok(self);
        }
        Err(format!("p99 is {} ms with the hot key and {} ms without", ms(self.hot_p99), ms(self.even_p99)))
    }
}

/// A hot key, and the same load spread evenly. If `forged`, a member that helps with the hot key reports the largest numbers.
pub(crate) fn hot_key(seed: u64, callers: usize, max_width: Width, forged: bool) -> Result<Spread, String> {
    let end = WARM + 6 * SECOND;
    let mut even = World::new(Setup { seed, callers, keys: 10_000, max_width: Width::ONE });
    even.traffic(Mix::Even, Arrivals::Random, RATE);
    even.run_until(end);
    let mut hot = hot_world(seed, callers, max_width);
    if forged {
        hot.forges(hot.hot_helper());
    }
    hot.traffic(Mix::Hot(TIMES), Arrivals::Random, RATE);
    hot.run_until(end);
    answered_all(&even)?;
    answered_all(&hot)?;
    Ok(Spread { hot_p99: hot.p99_since(WARM), even_p99: even.p99_since(WARM), widest: hot.widest(), attempts: hot.attempts })
}

/// A key that was hot goes back to its owner alone.
pub(crate) fn narrows(seed: u64) -> Result<(), String> {
    let mut world = hot_world(seed, 8, Width::MAX);
    world.traffic(Mix::Hot(TIMES), Arrivals::Random, RATE);
    world.run_until(3 * SECOND);
    if world.widest() < 2 {
        return Err("the hot key was never wide".into());
    }
    world.traffic(Mix::Last, Arrivals::Random, 20.0);
    world.run_until(303 * SECOND);
    answered_all(&world)?;
    let owner = world.hot_owner();
    let late = world.attempts.iter().filter(|attempt| attempt.at > 243 * SECOND);
    match late.filter(|attempt| attempt.to != owner).count() {
        0 => Ok(()),
        elsewhere => Err(format!("{elsewhere} requests of a quiet key still went to others than its owner")),
    }
}

/// A member that reported a high load once gets its share again later, though no caller asks it meanwhile.
pub(crate) fn recovers(seed: u64) -> Result<(), String> {
    let mut world = World::new(Setup { seed, callers: 4, keys: 1, max_width: Width::ONE });
    world.reports_more_load(3, 1_000);
    // Slow and regular: no caller has two requests at once, so that only the reported load decides.
    world.traffic(Mix::Any, Arrivals::Regular, 40.0);
    world.run_until(10 * SECOND);
    world.reports_more_load(3, 0);
    world.run_until(160 * SECOND);
    answered_all(&world)?;
    let late: Vec<_> = world.attempts.iter().filter(|attempt| attempt.at > 100 * SECOND).collect();
    let here = late.iter().filter(|attempt| attempt.to == 3).count();
    let share = late.len() / MEMBERS as usize;
    if here * 2 >= share { Ok(()) } else { Err(format!("a member that is idle again got {here} requests, an even share is {share}")) }
}

/// A dead member that is still in the view refuses at once, so it never has requests in flight. Callers must avoid it all the same.
pub(crate) fn avoids_the_dead(seed: u64) -> Result<(), String> {
    let mut world = World::new(Setup { seed, callers: 8, keys: 1, max_width: Width::ONE });
    world.traffic(Mix::Any, Arrivals::Random, RATE);
    world.run_until(SECOND);
    world.dies(2);
    world.run_until(4 * SECOND);
    world.silence();
    world.run_until(6 * SECOND);
    answered_all(&world)?;
    // Each of eight callers notices it twice, with a few requests at once.
    match world.attempts.iter().filter(|attempt| attempt.at > SECOND && attempt.to == 2).count() {
        0..=80 => Ok(()),
        attempts => Err(format!("{attempts} requests were sent to a dead member")),
    }
}

/// A member that refuses at once because it is busy has no requests in flight and reports no load. Callers must avoid it all the same.
pub(crate) fn avoids_the_busy(seed: u64) -> Result<(), String> {
    let mut world = World::new(Setup { seed, callers: 8, keys: 1, max_width: Width::ONE });
    world.traffic(Mix::Any, Arrivals::Random, RATE / 2.0);
    world.run_until(SECOND);
    world.fills(2);
    world.run_until(5 * SECOND);
    world.silence();
    world.run_until(7 * SECOND);
    answered_all(&world)?;
    // Each of eight callers tries it once a second, with a few requests at once.
    match world.attempts.iter().filter(|attempt| attempt.at > SECOND && attempt.to == 2).count() {
        8..=100 => Ok(()),
        attempts => Err(format!("{attempts} requests were sent to a busy member")),
    }
}

/// Two members that name each other, each by its own view, cause no storm.
pub(crate) fn ends_hints(seed: u64) -> Result<(), String> {
    let mut world = hot_world(seed, 1, Width::ONE);
    let owner = world.hot_owner();
    let other = (owner + 1) % MEMBERS;
    world.names(owner, other);
    world.names(other, owner);
    world.ask(0, Some(EVEN_KEYS), Duration::from_secs(2));
    world.run_until(3 * SECOND);
    match (world.attempts.len(), world.failed.len()) {
        (2..=60, 1) => Ok(()),
        (attempts, failed) => Err(format!("{attempts} attempts for one request of 2 s, {failed} without an answer")),
    }
}
