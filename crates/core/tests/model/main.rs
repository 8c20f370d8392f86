//! Lease, claim, drain, pause and takeover as a small model, explored completely. `docs/reference/guarantees.md` justifies what it omits.
//!
//! In every reachable state: no two members hold one slot, each by its own clock, whose rate is off by up to a tick in each lease; no
//! holder is refused by a table that rejects epochs below the highest it has seen; and from there on, without faults, every slot is soon
//! held by its owner.

#![expect(clippy::expect_used, clippy::print_stdout, reason = "tests report by panicking, and tell how many states there are")]

mod settling;
mod state;
mod steps;

use std::time::Duration;

use shardwise_core::Timing;
use stateright::{Checker, Model, Property};

use state::State;
use steps::{Mistake, Rules, Step};

const TICK: Duration = Duration::from_secs(1);

struct Claims<const M: usize, const S: usize>(Rules);

impl<const M: usize, const S: usize> Model for Claims<M, S> {
    type State = State<M, S>;
    type Action = Step;

    fn init_states(&self) -> Vec<Self::State> {
        vec![State::BEGIN]
    }

    fn actions(&self, state: &Self::State, steps: &mut Vec<Step>) {
        self.0.steps(state, steps);
    }

    fn next_state(&self, state: &Self::State, step: Step) -> Option<Self::State> {
        let next = self.0.after(state, step);
        // With an epoch per member, members are not interchangeable.
        Some(if self.0.mistake == Some(Mistake::EpochPerMember) { next } else { next.first_of_equals() })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &State<M, S>| {
                (0..S).all(|s| (0..M).filter(|m| state.held(*m, s).is_some()).count() <= 1)
            }),
            Property::always(NOT_REFUSED, |_, state: &State<M, S>| {
                (0..S).all(|s| (0..M).filter_map(|m| state.held(m, s)).all(|epoch| epoch >= state.table[s]))
            }),
            Property::always(SETTLES, |model: &Self, state: &State<M, S>| settling::settles(state, model.0)),
            Property::sometimes(TAKEN_OVER, |_, state: &State<M, S>| {
                let behind = |(slot, epoch): (u8, u8)| state.claims[usize::from(slot)].is_some_and(|(_, held)| held > epoch);
                state.stale_write.is_some_and(behind)
            }),
        ]
    }
}

const ONE_HOLDER: &str = "at most one member holds a slot";
const NOT_REFUSED: &str = "no holder is refused by the table";
const SETTLES: &str = "without faults every slot is soon held";
const TAKEN_OVER: &str = "a slot is another's before a stale write in it";

/// A TTL in ticks; the core's own deadline leaves all but one, by which a clock may be off.
fn rules(ttl: u8, late: bool, mistake: Option<Mistake>) -> Rules {
    let whole = TICK * u32::from(ttl);
    let timing = Timing::new(whole, Some(TICK / 2), TICK.saturating_sub(whole / 100)).expect("valid");
    let owned_for = timing.owned_for(whole);
    assert_eq!(owned_for + TICK, whole);
    Rules { ttl, owned_for: u8::try_from(owned_for.as_secs()).expect("small"), late, mistake }
}

fn explore<const M: usize, const S: usize>(rules: Rules) -> impl Checker<Claims<M, S>> {
    Claims::<M, S>(rules).checker().threads(2).spawn_bfs().join()
}

fn holds<const M: usize, const S: usize>(ttl: u8, late: bool) {
    let begun = std::time::Instant::now();
    let explored = explore::<M, S>(rules(ttl, late, None));
    let with = if late { ", late releases" } else { "" };
    println!("{M} members, {S} slots, TTL of {ttl} ticks{with}: all {} states, {:?}", explored.unique_state_count(), begun.elapsed());
    explored.assert_properties();
    assert!(explored.is_done());
}

#[test]
fn two_members_and_one_slot() {
    holds::<2, 1>(2, true);
    holds::<2, 1>(3, true);
}

#[test]
fn two_members_and_two_slots() {
    holds::<2, 2>(2, true);
    holds::<2, 2>(3, false);
}

#[test]
fn three_members_and_one_slot() {
    holds::<3, 1>(2, true);
}

#[test]
fn three_members_and_two_slots() {
    holds::<3, 2>(2, false);
}

#[test]
fn a_deadline_that_allows_for_no_drift_is_found() {
    let rules = rules(2, false, None);
    let explored = Claims::<2, 1>(Rules { owned_for: rules.ttl, ..rules }).checker().threads(2).spawn_bfs().join();
    assert!(explored.discovery(ONE_HOLDER).is_some());
}

#[test]
fn each_known_mistake_is_found() {
    for (mistake, found_as) in [
        (Mistake::DeadlineFromAnswer, ONE_HOLDER),
        (Mistake::ReleaseBeforeDrain, ONE_HOLDER),
        (Mistake::EpochPerMember, NOT_REFUSED),
        (Mistake::ReleaseByHolder, ONE_HOLDER),
        (Mistake::DeleteByName, ONE_HOLDER),
    ] {
        let explored = explore::<2, 1>(rules(2, true, Some(mistake)));
        let path = explored.discovery(found_as);
        assert!(path.is_some(), "{mistake:?} is not found in {} states", explored.unique_state_count());
        println!("{mistake:?}: {:?}", path.map(stateright::Path::into_actions));
    }
}
