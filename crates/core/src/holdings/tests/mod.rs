//! The claims state machine as lists of actions.

mod fleet;

use std::time::Duration;

use super::*;
use crate::{AcquireOutcome, Incarnation, InstanceId};

fn holder(name: &str) -> Holder {
    Holder { instance_id: InstanceId::new(name).unwrap(), incarnation: Incarnation::new(1) }
}

fn epoch(number: u64) -> Epoch {
    Epoch::new(number).unwrap()
}

fn slot(slot: u32) -> Resource {
    Resource::Slot(slot)
}

fn slots(of: impl IntoIterator<Item = u32>) -> BTreeSet<Resource> {
    of.into_iter().map(Resource::Slot).collect()
}

fn ms(at: u64) -> Moment {
    Moment::from_nanos(at * 1_000_000)
}

const DRAIN: Duration = Duration::from_secs(1);

fn rules(on_drain_timeout: OnDrainTimeout) -> HoldingRules {
    HoldingRules { drain_timeout: DRAIN, on_drain_timeout }
}

/// A member and its present moment; every call returns the actions.
struct Bench {
    holdings: Holdings,
    now: Moment,
}

impl Bench {
    fn with(rule: OnDrainTimeout) -> Self {
        Self { holdings: Holdings::new(rules(rule), holder("me")), now: ms(0) }
    }

    /// Open, without any claims, and wanting slots 0 and 1, which it asks for in attempt 1.
    fn asking() -> Self {
        let mut bench = Self::with(OnDrainTimeout::Hold);
        assert_eq!(bench.run(Holdings::open), []);
        assert_eq!(bench.run(|h, now, out| h.on_all_claims(now, [], out)), []);
        let asked = bench.run(|h, now, out| h.want(now, slots([0, 1]), out));
        assert_eq!(asked, [ClaimAction::Acquire { attempt: 1, wanted: vec![slot(0), slot(1)] }]);
        bench
    }

    /// Serving slots 0 and 1 under epoch 5.
    fn serving(rule: OnDrainTimeout) -> Self {
        let mut bench = Self::asking();
        bench.holdings.rules = rules(rule);
        let gained = bench.answer(1, [(slot(0), AcquireOutcome::Granted(epoch(5))), (slot(1), AcquireOutcome::Granted(epoch(5)))]);
        assert_eq!(gained, [ClaimAction::Gained(vec![(slot(0), epoch(5)), (slot(1), epoch(5))])]);
        bench
    }

    fn run(&mut self, call: impl FnOnce(&mut Holdings, Moment, &mut Vec<ClaimAction>)) -> Vec<ClaimAction> {
        let mut actions = Vec::new();
        call(&mut self.holdings, self.now, &mut actions);
        actions
    }

    fn answer(&mut self, attempt: u64, answers: impl IntoIterator<Item = (Resource, AcquireOutcome)>) -> Vec<ClaimAction> {
        self.run(|h, now, out| h.acquired(now, attempt, answers.into_iter().collect(), out))
    }

    fn report(&mut self, resource: Resource, claim: Option<(&str, u64)>) -> Vec<ClaimAction> {
        let claim = claim.map(|(name, number)| Claim { holder: holder(name), epoch: epoch(number) });
        self.run(|h, now, out| h.on_claim_changes(now, [(resource, claim)], out))
    }

    fn at(&mut self, at: u64) -> Vec<ClaimAction> {
        self.now = ms(at);
        self.run(Holdings::woken)
    }

    fn serves(&self) -> Vec<Resource> {
        self.holdings.serving().map(|(resource, _)| resource.clone()).collect()
    }
}

#[test]
fn nothing_is_asked_for_before_the_record_is_there_and_the_watch_has_begun() {
    let mut bench = Bench::with(OnDrainTimeout::Hold);
    assert_eq!(bench.run(|h, now, out| h.want(now, slots([0]), out)), []);
    assert_eq!(bench.run(Holdings::open), []);
    let all = [(slot(0), Claim { holder: holder("other"), epoch: epoch(3) })];
    assert_eq!(bench.run(|h, now, out| h.on_all_claims(now, all, out)), [], "another member holds it");
    assert_eq!(bench.holdings.wake_at(), None, "the watch will tell");
    assert_eq!(bench.report(slot(0), None), [ClaimAction::Acquire { attempt: 1, wanted: vec![slot(0)] }]);
}

#[test]
fn what_is_granted_serves_under_its_epoch() {
    let bench = Bench::serving(OnDrainTimeout::Hold);
    assert_eq!(bench.serves(), [slot(0), slot(1)]);
    assert_eq!(bench.holdings.wake_at(), None, "in a steady state nothing is due");
}

#[test]
fn what_others_hold_is_asked_for_when_the_watch_says_so_or_after_a_pause() {
    let mut bench = Bench::asking();
    assert_eq!(bench.answer(1, [(slot(0), AcquireOutcome::Held), (slot(1), AcquireOutcome::NotYet)]), []);
    assert_eq!(bench.holdings.wake_at(), Some(ms(100)), "the watch knows of no holder: it was given back, or will be told");
    assert_eq!(bench.report(slot(0), Some(("other", 4))), []);
    assert_eq!(bench.at(100), [ClaimAction::Acquire { attempt: 2, wanted: vec![slot(1)] }], "nobody holds it, so it is asked for again");
    assert_eq!(bench.report(slot(0), None), [], "one call at a time");
    assert_eq!(
        bench.answer(2, [(slot(1), AcquireOutcome::Granted(epoch(6)))]),
        [ClaimAction::Gained(vec![(slot(1), epoch(6))]), ClaimAction::Acquire { attempt: 3, wanted: vec![slot(0)] }]
    );
}

#[test]
fn letting_go_is_drain_then_release_then_nothing() {
    let mut bench = Bench::serving(OnDrainTimeout::Hold);
    assert_eq!(bench.run(|h, now, out| h.want(now, slots([1]), out)), [ClaimAction::Drain(vec![slot(0)])]);
    assert_eq!(bench.serves(), [slot(1)], "no new work");
    assert_eq!(bench.holdings.held().count(), 2, "what is in flight is still covered");
    let released = bench.run(|h, now, out| h.idle(now, [&slot(0)], out));
    assert_eq!(released, [ClaimAction::Release { attempt: 2, held: vec![(slot(0), epoch(5))] }]);
    assert_eq!(bench.holdings.held().count(), 1);
    assert_eq!(bench.run(|h, now, out| h.released(now, 2, out)), []);
    assert!(!bench.holdings.is_empty());
}

#[test]
fn work_that_does_not_end_keeps_the_claim_or_is_counted() {
    for (rule, after) in [(OnDrainTimeout::Hold, 1), (OnDrainTimeout::Release, 3)] {
        let mut bench = Bench::serving(rule);
        bench.run(|h, now, out| h.want(now, slots([1]), out));
        assert_eq!(bench.at(999), []);
        assert_eq!(bench.holdings.wake_at(), Some(ms(1_000)));
        let mut actions = bench.at(1_000);
        assert_eq!(actions.len(), after, "{rule:?}: {actions:?}");
        assert_eq!(actions.remove(0), ClaimAction::Cancel(vec![slot(0)]));
        if rule == OnDrainTimeout::Release {
            let release = ClaimAction::Release { attempt: 2, held: vec![(slot(0), epoch(5))] };
            assert_eq!(actions, [ClaimAction::Overlap(vec![slot(0)]), release]);
        } else {
            assert_eq!(bench.holdings.wake_at(), None, "it is waited for as long as the lease lasts");
            let released = bench.run(|h, now, out| h.idle(now, [&slot(0)], out));
            assert!(matches!(released[..], [ClaimAction::Release { .. }]));
        }
    }
}

#[test]
fn what_is_wanted_again_in_time_goes_on_under_the_same_epoch_and_too_late_under_a_new_one() {
    let mut bench = Bench::serving(OnDrainTimeout::Hold);
    bench.run(|h, now, out| h.want(now, slots([]), out));
    assert_eq!(bench.run(|h, now, out| h.want(now, slots([0]), out)), [ClaimAction::Kept(vec![slot(0)])]);
    bench.at(1_000);
    assert_eq!(bench.run(|h, now, out| h.want(now, slots([0, 1]), out)), [], "the work on slot 1 was told to stop");
    let released = bench.run(|h, now, out| h.idle(now, [&slot(1)], out));
    assert_eq!(released, [ClaimAction::Release { attempt: 2, held: vec![(slot(1), epoch(5))] }]);
    let asked = bench.run(|h, now, out| h.released(now, 2, out));
    assert_eq!(asked, [ClaimAction::Acquire { attempt: 3, wanted: vec![slot(1)] }]);
}

#[test]
fn a_fence_ends_everything_at_once_and_what_was_held_is_given_back_before_it_is_asked_for() {
    let mut bench = Bench::serving(OnDrainTimeout::Hold);
    bench.run(|h, now, out| h.want(now, slots([0, 1, 2]), out));
    bench.holdings.fence();
    assert_eq!(bench.serves(), []);
    assert_eq!(bench.answer(2, [(slot(2), AcquireOutcome::Granted(epoch(6)))]), [], "a grant from before the fence counts no longer");
    let opened = bench.run(Holdings::open);
    let release = ClaimAction::Release { attempt: 3, held: vec![(slot(0), epoch(5)), (slot(1), epoch(5))] };
    assert_eq!(opened, [release, ClaimAction::Acquire { attempt: 4, wanted: vec![slot(2)] }]);
    assert_eq!(
        bench.answer(4, [(slot(2), AcquireOutcome::Granted(epoch(6)))]).len(),
        1,
        "its answer was lost; it never served under that epoch"
    );
    let asked = bench.run(|h, now, out| h.released(now, 3, out));
    assert_eq!(asked, [ClaimAction::Acquire { attempt: 5, wanted: vec![slot(0), slot(1)] }]);
}

#[test]
fn a_report_older_than_a_grant_takes_nothing_and_one_after_it_does() {
    let mut bench = Bench::serving(OnDrainTimeout::Hold);
    assert_eq!(bench.report(slot(0), Some(("other", 4))), [], "the former holder");
    assert_eq!(bench.report(slot(0), None), [], "its release");
    assert_eq!(bench.report(slot(0), Some(("me", 5))), []);
    assert_eq!(bench.serves(), [slot(0), slot(1)]);
    let lost = bench.report(slot(0), None);
    let asked = ClaimAction::Acquire { attempt: 2, wanted: vec![slot(0)] };
    assert_eq!(lost, [ClaimAction::Lost(vec![slot(0)]), asked], "somebody has deleted the record by hand");
    assert_eq!(bench.report(slot(1), Some(("other", 9))), [ClaimAction::Lost(vec![slot(1)])]);
}

#[test]
fn a_grant_whose_answer_never_came_is_given_back_if_it_is_wanted_no_longer() {
    let mut bench = Bench::asking();
    assert_eq!(bench.report(slot(0), Some(("me", 5))), [], "the answer is still on its way");
    bench.run(|h, now, out| h.want(now, slots([1]), out));
    let actions = bench.run(|h, now, out| h.failed(now, 1, CallFailure::Retryable, out));
    assert_eq!(actions, [ClaimAction::Release { attempt: 2, held: vec![(slot(0), epoch(5))] }]);
    assert_eq!(bench.holdings.wake_at(), Some(ms(50)), "and slot 1 is asked for after a pause");
}

#[test]
fn failed_calls_are_made_again_with_growing_pauses() {
    let mut bench = Bench::asking();
    let mut pauses = Vec::new();
    for attempt in 1..8 {
        bench.run(|h, now, out| h.failed(now, attempt, CallFailure::Retryable, out));
        let next = bench.holdings.wake_at().unwrap();
        pauses.push(next.since(bench.now).as_millis());
        bench.now = next;
        let asked = bench.run(Holdings::woken);
        assert_eq!(asked, [ClaimAction::Acquire { attempt: attempt + 1, wanted: vec![slot(0), slot(1)] }]);
    }
    assert_eq!(pauses, [50, 100, 200, 400, 800, 1_000, 1_000]);
}

#[test]
fn a_release_that_fails_is_sent_again() {
    let mut bench = Bench::serving(OnDrainTimeout::Hold);
    bench.run(|h, now, out| h.want(now, slots([1]), out));
    bench.run(|h, now, out| h.idle(now, [&slot(0)], out));
    assert_eq!(bench.run(|h, now, out| h.failed(now, 2, CallFailure::Retryable, out)), []);
    assert_eq!(bench.at(50), [ClaimAction::Release { attempt: 3, held: vec![(slot(0), epoch(5))] }]);
}

#[test]
fn what_is_idle_behind_a_slow_release_is_waited_for_without_a_wake() {
    let mut bench = Bench::serving(OnDrainTimeout::Hold);
    bench.run(|h, now, out| h.want(now, slots([]), out));
    let r = bench.run(|h, now, out| h.idle(now, &slots([0]), out));
    assert!(matches!(&r[..], [ClaimAction::Release { .. }]), "{r:?}");
    bench.run(|h, now, out| h.idle(now, &slots([1]), out));
    bench.now = ms(5_000);
    let out = bench.run(Holdings::woken);
    assert!(bench.holdings.wake_at().is_none_or(|at| at > bench.now), "{out:?} wakes {:?} at {:?}", bench.holdings.wake_at(), bench.now);
}

#[test]
fn a_grant_older_than_the_report_does_not_serve() {
    let mut bench = Bench::asking();
    let theirs = Claim { holder: holder("other"), epoch: epoch(9) };
    bench.run(|h, now, out| h.on_claim_changes(now, [(slot(0), Some(theirs.clone()))], out));
    bench.answer(1, [(slot(0), AcquireOutcome::Granted(epoch(5))), (slot(1), AcquireOutcome::Held)]);
    assert_eq!(bench.holdings.serving().count(), 0, "somebody else has it under 9");
}

#[test]
fn an_epoch_serves_once_though_a_report_took_it_away_for_a_while() {
    let mut bench = Bench::serving(OnDrainTimeout::Hold);
    let mine = Claim { holder: holder("me"), epoch: epoch(5) };
    bench.run(|h, now, out| h.on_claim_changes(now, [(slot(0), Some(mine.clone()))], out));
    let lost = bench.run(|h, now, out| h.on_claim_changes(now, [(slot(0), None)], out));
    let Some(ClaimAction::Acquire { attempt, .. }) = lost.last().cloned() else { panic!("{lost:?}") };
    let again = bench.answer(attempt, [(slot(0), AcquireOutcome::Granted(epoch(5)))]);
    assert!(!again.iter().any(|a| matches!(a, ClaimAction::Gained(_))), "{lost:?} then {again:?}");
}

#[test]
fn an_epoch_serves_once_though_the_store_of_claims_was_lost_alone() {
    let mut bench = Bench::with(OnDrainTimeout::Hold);
    let store = |id, floor| crate::ClaimStore { id: crate::StoreId::new(id), floor };
    let a = bench.run(Holdings::enter);
    let [ClaimAction::OpenStore { attempt }] = a[..] else { panic!("{a:?}") };
    bench.run(|h, now, out| h.opened(now, attempt, store(1, 0), out));
    bench.run(|h, now, out| h.on_all_claims(now, [], out));
    let a = bench.run(|h, now, out| h.want(now, slots([0]), out));
    let Some(ClaimAction::Acquire { attempt, .. }) = a.last().cloned() else { panic!("{a:?}") };
    bench.answer(attempt, [(slot(0), AcquireOutcome::Granted(epoch(5)))]);
    let mine = Claim { holder: holder("me"), epoch: epoch(5) };
    bench.run(|h, now, out| h.on_claim_changes(now, [(slot(0), Some(mine.clone()))], out));
    // Only the store's record was deleted by hand: the next acquisition notices, and the claims still exist.
    let a = bench.run(|h, now, out| h.want(now, slots([0, 1]), out));
    let Some(ClaimAction::Acquire { attempt, .. }) = a.last().cloned() else { panic!("{a:?}") };
    let a = bench.run(|h, now, out| h.failed(now, attempt, CallFailure::OtherStore, out));
    let Some(ClaimAction::OpenStore { attempt }) = a.last().cloned() else { panic!("{a:?}") };
    bench.run(|h, now, out| h.opened(now, attempt, store(2, 0), out));
    bench.run(|h, now, out| h.want(now, slots([]), out));
    bench.now = ms(1_000);
    let a = bench.run(Holdings::woken);
    let Some(ClaimAction::OpenStore { attempt }) = a.last().cloned() else { panic!("{a:?}") };
    let a = bench.run(|h, now, out| h.opened(now, attempt, store(2, 5), out));
    assert!(
        a.iter().any(|a| matches!(a, ClaimAction::Release { .. })),
        "slot 0 is still this member's in the backend and is not given back: {a:?}"
    );
}
