//! Tests of the engine as a whole: inputs, and the actions that must follow.

mod one_slow;
mod poisoned;
mod several;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shardwise::SlotSet;

use super::retention::{EVERY as SWEEP_EVERY, PAUSE as SWEEP_PAUSE};
use super::*;
use crate::sink::{Acceptance, Refusal};
use crate::store::{EventRun, FetchResult, HeadTrouble, HeadUpdate, Outcome, SweepResult};
use crate::{AggregateId, Delivery, Payload};

pub(super) const fn at(ms: u64) -> Moment {
    Moment::from_nanos(ms * 1_000_000)
}

pub(super) fn delivery(aggregate: AggregateId, hold: Hold, sequence: u64) -> Delivery {
    Delivery {
        id: format!("{aggregate}-{sequence}"),
        aggregate_type: "a".into(),
        aggregate_id: aggregate.to_string(),
        event_type: "t".into(),
        payload: Payload::None,
        headers: None,
        created_at_unix_ms: 0,
        sequence,
        replayed: None,
        slot: hold.slot,
        epoch: hold.epoch,
        aggregate,
    }
}

/// `last` is the aggregate's newest sequence.
pub(super) fn run(aggregate: AggregateId, hold: Hold, sequences: std::ops::RangeInclusive<u64>, last: u64) -> EventRun {
    EventRun {
        aggregate,
        hold,
        trouble: HeadTrouble::default(),
        through: *sequences.end(),
        more: *sequences.end() < last,
        events: sequences.map(|sequence| delivery(aggregate, hold, sequence)).collect(),
    }
}

pub(super) fn options() -> PublisherOptions {
    PublisherOptions { batch: 10, retention: Duration::ZERO, ..PublisherOptions::default() }
}

pub(super) fn timing() -> Timing {
    Timing::new(Duration::from_secs(9), None, Duration::from_millis(100)).unwrap()
}

pub(super) const HOLD: Hold = Hold { slot: 0, epoch: 7 };

/// An engine that holds slot 0 of 4 under epoch 7, wants it without limit, and has read nothing yet.
pub(super) fn holding(options: PublisherOptions, limits: SinkLimits) -> Engine {
    holding_for(options, limits, Box::new(|_| None))
}

/// The same for a sink of several destinations.
pub(super) fn holding_for(options: PublisherOptions, limits: SinkLimits, address: DestinationResolver) -> Engine {
    let mut engine = Engine::new(options, limits, timing(), 4, 1, address);
    engine.on(EngineInput::Wanted { slots: SlotSet::from_slots(4, [0]), until: None }, at(0));
    assert_eq!(engine.next(at(0)), [EngineAction::Register]);
    engine.on(EngineInput::Registered { started: at(0) }, at(1));
    let first = engine.next(at(1));
    assert!(first.contains(&EngineAction::Take(SlotSet::from_slots(4, [0]))), "{first:?}");
    engine.on(EngineInput::MarkRead(Some(1)), at(1));
    engine.on(EngineInput::Placed(0), at(1));
    engine.on(EngineInput::Taken(vec![HOLD]), at(2));
    engine
}

pub(super) fn fetches(actions: &[EngineAction]) -> bool {
    actions.iter().any(|action| matches!(action, EngineAction::Fetch(_)))
}

pub(super) fn sent(actions: &[EngineAction]) -> Vec<(SendId, Vec<String>)> {
    let sends = actions.iter().filter_map(|action| match action {
        EngineAction::Send { id, batch } => Some((*id, batch.iter().map(|event| event.id.clone()).collect())),
        _ => None,
    });
    sends.collect()
}

pub(super) fn recorded(actions: &[EngineAction]) -> Vec<Outcome> {
    actions
        .iter()
        .find_map(|action| if let EngineAction::Record(outcomes) = action { Some(outcomes.clone()) } else { None })
        .unwrap_or_default()
}

pub(super) fn read(engine: &mut Engine, runs: Vec<EventRun>, now: Moment) -> Vec<EngineAction> {
    assert!(fetches(&engine.next(now)), "it reads");
    engine.on(EngineInput::Fetched(FetchResult { runs, resume: None, more: false }), now);
    engine.next(now)
}

pub(super) fn accepted(events: usize) -> Acceptance {
    Acceptance { events, refusal: None, apart: BTreeMap::new() }
}

pub(super) fn answer(engine: &mut Engine, id: SendId, accepted: Acceptance, now: Moment) -> Vec<EngineAction> {
    engine.on(EngineInput::Sent { id, accepted, unknown_end: false }, now);
    engine.next(now)
}

#[test]
fn events_are_read_sent_recorded_and_read_on() {
    let mut engine = holding(options(), SinkLimits::default());
    let actions = read(&mut engine, vec![run(1, HOLD, 1..=2, 2), run(2, HOLD, 1..=1, 1)], at(3));
    assert_eq!(sent(&actions), [(0, vec!["1-1".into(), "1-2".into(), "2-1".into()])]);
    let mut outcomes = recorded(&answer(&mut engine, 0, accepted(3), at(4)));
    outcomes.sort_by_key(|outcome| outcome.aggregate);
    let next = |aggregate, through| Outcome { aggregate, hold: HOLD, through: Some(through), then: HeadUpdate::Next };
    assert_eq!(outcomes, [next(1, 2), next(2, 1)]);
    engine.on(EngineInput::Recorded { fenced: vec![] }, at(5));
    assert_eq!(engine.counters(at(5)).delivered, 3);
    assert!(fetches(&engine.next(at(5))), "there may be more by now");
}

#[test]
fn the_next_event_of_an_aggregate_waits_for_the_one_before() {
    let limits = SinkLimits { batch_events: 1, concurrency: 8, ..SinkLimits::default() };
    let mut engine = holding(options(), limits);
    let actions = read(&mut engine, vec![run(1, HOLD, 1..=3, 3), run(2, HOLD, 1..=2, 2)], at(3));
    assert_eq!(sent(&actions), [(0, vec!["1-1".into()]), (1, vec!["2-1".into()])]);
    assert_eq!(sent(&answer(&mut engine, 1, accepted(1), at(4))), [(2, vec!["2-2".into()])], "before its mark, not before its answer");
    assert_eq!(sent(&answer(&mut engine, 0, accepted(1), at(5))), [(3, vec!["1-2".into()])]);
}

#[test]
fn a_refusal_keeps_its_aggregate_and_sends_the_others_again() {
    let mut engine = holding(options(), SinkLimits::default());
    let runs = vec![run(1, HOLD, 1..=2, 2), run(2, HOLD, 1..=3, 3), run(3, HOLD, 1..=2, 2)];
    assert_eq!(sent(&read(&mut engine, runs, at(3))).len(), 1);
    let actions = answer(&mut engine, 0, Acceptance::up_to(3, Refusal::retryable("503")), at(4));
    assert_eq!(sent(&actions), [(1, vec!["3-1".into(), "3-2".into()])]);
    let mut outcomes = recorded(&actions);
    outcomes.sort_by_key(|outcome| outcome.aggregate);
    assert_eq!((outcomes[0].through, &outcomes[0].then), (Some(2), &HeadUpdate::Next));
    assert_eq!(outcomes[1].through, Some(1));
    assert!(matches!(outcomes[1].then, HeadUpdate::Retry { attempts: 0, failures: 1, .. }), "{outcomes:?}");
}

/// A sink that treats aggregates independently answers for each, and accepted events of the others are not sent again.
#[test]
fn a_refusal_apart_holds_up_no_others() {
    let mut engine = holding(options(), SinkLimits::default());
    let runs = vec![run(1, HOLD, 1..=3, 3), run(2, HOLD, 1..=2, 2), run(3, HOLD, 1..=1, 1), run(4, HOLD, 1..=3, 3)];
    let sends = sent(&read(&mut engine, runs, at(3)));
    let (busy, large) = (Refusal::retryable("503"), Refusal::permanent("too large"));
    let apart = BTreeMap::from([(1, (1, Some(busy))), (3, (0, Some(large))), (4, (2, None))]);
    let all = || Acceptance { events: sends[0].1.len(), refusal: None, apart: apart.clone() };
    let actions = answer(&mut engine, 0, all(), at(4));
    assert_eq!(sent(&actions), [(1, vec!["4-3".into()])], "what was not tried for want of time");
    assert_eq!(answer(&mut engine, 0, all(), at(4)), [], "an answer that comes twice counts once");
    let mut outcomes = recorded(&actions);
    outcomes.sort_by_key(|outcome| outcome.aggregate);
    assert_eq!(outcomes.iter().map(|outcome| outcome.through).collect::<Vec<_>>(), [Some(1), Some(2), None, Some(2)]);
    assert!(matches!(outcomes[0].then, HeadUpdate::Retry { failures: 1, .. }), "{outcomes:?}");
    assert_eq!(outcomes[1].then, HeadUpdate::Next);
    assert!(matches!(outcomes[2].then, HeadUpdate::Block { .. }), "{outcomes:?}");
    let reports = engine.reports(at(4));
    assert!(matches!(&reports[..], [Report::GivenUp(event)] if event.key == "a/3" && event.attempts == 1), "{reports:?}");
    engine.on(EngineInput::Recorded { fenced: vec![] }, at(5));
    assert_eq!(engine.counters(at(5)).delivered, 5);
}

#[test]
fn a_lost_slot_takes_its_buffer_and_its_sends_along() {
    let limits = SinkLimits { batch_events: 1, ..SinkLimits::default() };
    let mut engine = holding(options(), limits);
    let actions = read(&mut engine, vec![run(1, HOLD, 1..=2, 2), run(2, HOLD, 1..=1, 1)], at(3));
    assert_eq!(sent(&actions), [(0, vec!["1-1".into()])]);
    assert_eq!(engine.next(at(3_001))[0], EngineAction::Touch);
    engine.on(EngineInput::Touched { started: at(3_001), touch: TouchReply::Seen(vec![]) }, at(3_002));
    let actions = engine.next(at(3_002));
    assert_eq!(actions[0], EngineAction::Cancel(0));
    assert!(sent(&actions).is_empty(), "{actions:?}");
    assert!(actions.contains(&EngineAction::Take(SlotSet::from_slots(4, [0]))), "taken again only by the usual rule: {actions:?}");
    let counters = engine.counters(at(3_002));
    assert_eq!((counters.fenced, counters.in_memory, counters.repeated), (1, 0, 1));
}

#[test]
fn past_the_fence_everything_is_dropped_whether_or_not_a_timer_ran() {
    let mut engine = holding(options(), SinkLimits { batch_events: 1, ..SinkLimits::default() });
    assert_eq!(sent(&read(&mut engine, vec![run(1, HOLD, 1..=2, 2)], at(3))).len(), 1);
    // 0.99 of 9 s less 100 ms after the start of the registration.
    let late = at(8_810);
    let actions = engine.next(late);
    assert_eq!(actions[..2], [EngineAction::Cancel(0), EngineAction::Touch], "{actions:?}");
    assert_eq!(engine.counters(late).lapsed, 1);
    assert!(answer(&mut engine, 0, accepted(1), late).is_empty(), "a cancelled send's answer is nobody's");
    engine.on(EngineInput::Touched { started: late, touch: TouchReply::Seen(vec![HOLD]) }, late);
    assert!(fetches(&engine.next(late)), "nobody took it: it goes on");
}

#[test]
fn a_slot_is_released_after_its_last_mark_and_not_used_meanwhile() {
    let mut engine = holding(options(), SinkLimits { batch_events: 1, ..SinkLimits::default() });
    assert_eq!(sent(&read(&mut engine, vec![run(1, HOLD, 1..=2, 2)], at(3))).len(), 1);
    engine.on(EngineInput::Wanted { slots: SlotSet::empty(4), until: None }, at(4));
    assert!(engine.next(at(4)).is_empty(), "a send is under way");
    let actions = answer(&mut engine, 0, accepted(1), at(5));
    assert_eq!((recorded(&actions).len(), actions.len()), (1, 1), "the rest is not sent: {actions:?}");
    engine.on(EngineInput::Recorded { fenced: vec![] }, at(6));
    assert_eq!(engine.next(at(6)), [EngineAction::Release(vec![HOLD])]);
    // Wanted again before the answer: the hold being released is not used; the slot is taken again after the answer.
    engine.on(EngineInput::Wanted { slots: SlotSet::from_slots(4, [0]), until: None }, at(7));
    assert!(!fetches(&engine.next(at(7))));
    engine.on(EngineInput::Released, at(8));
    assert_eq!(engine.next(at(8)), [EngineAction::Take(SlotSet::from_slots(4, [0]))]);
}

#[test]
fn what_cannot_be_recorded_is_kept_and_bounds_what_is_sent() {
    let mut engine = holding(PublisherOptions { batch: 2, ..options() }, SinkLimits::default());
    let (mut unmarked, mut aggregate) = (0, 0);
    for ms in 3..2_000 {
        for action in engine.next(at(ms)) {
            match action {
                EngineAction::Fetch(_) => {
                    aggregate += 2;
                    let runs = vec![run(aggregate, HOLD, 1..=1, 1), run(aggregate + 1, HOLD, 1..=1, 1)];
                    engine.on(EngineInput::Fetched(FetchResult { runs, resume: None, more: false }), at(ms));
                }
                EngineAction::Send { id, batch } => {
                    unmarked += batch.len();
                    engine.on(EngineInput::Sent { id, accepted: accepted(batch.len()), unknown_end: false }, at(ms));
                }
                EngineAction::Record(_) => engine.on(EngineInput::Failed(StoreCall::Record), at(ms)),
                _ => {}
            }
        }
    }
    assert_eq!(unmarked, 4, "two batches may be sent and not marked");
    let outcomes = (2_000..5_000).map(|ms| recorded(&engine.next(at(ms)))).find(|outcomes| !outcomes.is_empty());
    assert_eq!(outcomes.unwrap().len(), 4, "all of it is recorded once that works again");
}

#[test]
fn a_stop_finishes_gives_back_and_leaves() {
    let mut engine = holding(options(), SinkLimits::default());
    assert_eq!(sent(&read(&mut engine, vec![run(1, HOLD, 1..=1, 1)], at(3))).len(), 1);
    engine.on(EngineInput::Stop { by: at(1_000) }, at(4));
    assert!(engine.next(at(4)).is_empty());
    assert_eq!(recorded(&answer(&mut engine, 0, accepted(1), at(5))).len(), 1);
    engine.on(EngineInput::Recorded { fenced: vec![] }, at(6));
    assert_eq!(engine.next(at(6)), [EngineAction::Release(vec![HOLD])]);
    engine.on(EngineInput::Released, at(7));
    assert_eq!(engine.next(at(7)), [EngineAction::Leave]);
    engine.on(EngineInput::Gone, at(8));
    assert_eq!(engine.next(at(8)), [EngineAction::Finish]);
}

#[test]
fn a_stop_that_takes_too_long_ends_without_giving_back_what_is_in_flight() {
    let mut engine = holding(options(), SinkLimits::default());
    assert_eq!(sent(&read(&mut engine, vec![run(1, HOLD, 1..=1, 1)], at(3))).len(), 1);
    engine.on(EngineInput::Stop { by: at(1_000) }, at(4));
    assert!(engine.wake_at(at(4)) <= at(1_000));
    assert_eq!(engine.next(at(1_000)), [EngineAction::Finish], "its slots come free with its TTL");
}

#[test]
fn memory_is_bounded_whatever_the_store_offers() {
    let mut engine = holding(options(), SinkLimits::default());
    let mut offered = 0;
    for n in 1..100 {
        if fetches(&engine.next(at(3))) {
            offered += 10;
            engine.on(EngineInput::Fetched(FetchResult { runs: vec![run(n, HOLD, 1..=10, 1_000)], resume: Some(1), more: false }), at(3));
        }
    }
    assert_eq!((offered, engine.counters(at(3)).in_memory), (20, 20), "one batch on its way and one ahead");
}

#[test]
fn unused_answers_do_no_harm() {
    let mut engine = holding(options(), SinkLimits::default());
    engine.on(EngineInput::Sent { id: 99, accepted: accepted(3), unknown_end: true }, at(3));
    engine.on(EngineInput::Recorded { fenced: vec![HOLD] }, at(3));
    let batch: Arc<[Delivery]> = Arc::from([]);
    assert!(!engine.next(at(3)).contains(&EngineAction::Send { id: 0, batch }));
}

#[test]
fn the_rest_of_a_refused_batch_goes_with_its_slot() {
    let mut engine = holding(options(), SinkLimits::default());
    let other = Hold { slot: 1, epoch: 8 };
    engine.on(EngineInput::Wanted { slots: SlotSet::from_slots(4, [0, 1]), until: None }, at(2));
    engine.next(at(2));
    engine.on(EngineInput::Taken(vec![other]), at(3));
    engine.next(at(3));
    engine.on(
        EngineInput::Fetched(FetchResult { runs: vec![run(1, HOLD, 1..=2, 2), run(2, other, 1..=2, 2)], resume: None, more: false }),
        at(4),
    );
    assert_eq!(sent(&engine.next(at(4))).len(), 1);
    // Another publisher holds slot 1. The send continues, since part of it is of slot 0.
    engine.on(EngineInput::Touched { started: at(3_100), touch: TouchReply::Seen(vec![HOLD]) }, at(3_101));
    engine.next(at(3_101));
    let actions = answer(&mut engine, 0, Acceptance::up_to(0, Refusal::retryable("503")), at(3_102));
    assert!(sent(&actions).is_empty(), "{actions:?}");
    assert_eq!(engine.counters(at(3_102)).in_memory, 0);
}

#[test]
fn the_rest_of_a_refused_batch_goes_with_the_ownerships_deadline() {
    let mut engine = holding(options(), SinkLimits::default());
    engine.on(EngineInput::Wanted { slots: SlotSet::from_slots(4, [0]), until: Some(at(1_000)) }, at(2));
    assert_eq!(sent(&read(&mut engine, vec![run(1, HOLD, 1..=2, 2), run(2, HOLD, 1..=2, 2)], at(4))).len(), 1);
    engine.next(at(1_001));
    let actions = answer(&mut engine, 0, Acceptance::up_to(0, Refusal::retryable("503")), at(1_002));
    assert!(sent(&actions).is_empty(), "{actions:?}");
    assert_eq!(engine.counters(at(1_002)).in_memory, 0);
}

/// Rows may have been delivered under another retention.
#[test]
fn without_retention_it_sweeps_too() {
    let mut engine = holding(options(), SinkLimits::default());
    let sweeps = |actions: &[EngineAction]| actions.iter().any(|action| matches!(action, EngineAction::Sweep { .. }));
    assert!(sweeps(&engine.next(at(3))));
    engine.on(EngineInput::Swept(SweepResult::default()), at(4));
    assert!(!sweeps(&engine.next(at(5))), "once a minute");
}

/// Three aggregates that are refused while others are accepted are not an outage.
#[test]
fn an_answer_that_accepts_something_does_not_say_that_the_destination_is_down() {
    let mut engine = holding(options(), SinkLimits::default());
    let runs = (1..=5).map(|aggregate| run(aggregate, HOLD, 1..=1, 1)).collect();
    assert_eq!(sent(&read(&mut engine, runs, at(3))).len(), 1);
    let refused =
        |range: std::ops::RangeInclusive<AggregateId>| range.map(|aggregate| (aggregate, (0, Some(Refusal::retryable("503"))))).collect();
    answer(&mut engine, 0, Acceptance { events: 5, refusal: None, apart: refused(2..=5) }, at(4));
    assert_eq!(engine.counters(at(4)).destinations_down, 0, "aggregate 1 was accepted");
    engine.on(EngineInput::Recorded { fenced: vec![] }, at(5));
    let actions = read(&mut engine, (6..=10).map(|aggregate| run(aggregate, HOLD, 1..=1, 1)).collect(), at(5));
    assert_eq!(sent(&actions)[0].1.len(), 5, "and the gate is open");
    answer(&mut engine, 1, Acceptance { events: 5, refusal: None, apart: refused(6..=10) }, at(6));
    assert_eq!(engine.counters(at(6)).destinations_down, 1, "five refused and nothing accepted");
}

/// Regression: one event too large for the brokers ended what all others of the batches were sent with, and those were charged until they
/// were blocked.
#[test]
fn events_that_another_one_is_the_cause_of_are_neither_charged_nor_an_outage() {
    let second = Some(Duration::from_secs(1));
    let trouble = HeadTrouble { failures: 3, failing_for: second, attempted_ago: second, ..HeadTrouble::default() };
    for (refusal, charged, down) in [(Refusal::blameless("another"), 0, 0), (Refusal::retryable("503"), 1, 1)] {
        let mut engine = holding(PublisherOptions { max_attempts: 2, ..options() }, SinkLimits::default());
        assert_eq!(sent(&read(&mut engine, vec![run(9, HOLD, 1..=1, 1)], at(1_003))).len(), 1);
        answer(&mut engine, 0, accepted(1), at(1_004));
        engine.on(EngineInput::Recorded { fenced: vec![] }, at(1_005));
        let runs = (1..=4).map(|aggregate| EventRun { trouble, ..run(aggregate, HOLD, 1..=1, 1) }).collect();
        assert_eq!(sent(&read(&mut engine, runs, at(1_505)))[0].1.len(), 4);
        let apart = (1..=4).map(|aggregate| (aggregate, (0, Some(refusal.clone())))).collect();
        let actions = answer(&mut engine, 1, Acceptance { events: 4, refusal: None, apart }, at(1_506));
        let attempts: Vec<_> = recorded(&actions)
            .iter()
            .map(|outcome| if let HeadUpdate::Retry { attempts, failures: 4, .. } = outcome.then { attempts } else { 99 })
            .collect();
        assert_eq!((attempts, engine.counters(at(1_506)).destinations_down), (vec![charged; 4], down), "{refusal:?}");
    }
}

/// An answer counts as one failure, however many aggregates its batch has.
#[test]
fn one_answer_doubles_the_wait_for_the_next_probe_once() {
    let limits = SinkLimits { batch_events: 5, concurrency: 2, ..SinkLimits::default() };
    let mut engine = holding(options(), limits);
    let actions = read(&mut engine, (1..=10).map(|aggregate| run(aggregate, HOLD, 1..=1, 1)).collect(), at(3));
    assert_eq!(sent(&actions).len(), 2);
    let refused = |range: std::ops::RangeInclusive<AggregateId>| Acceptance {
        events: 5,
        refusal: None,
        apart: range.map(|aggregate| (aggregate, (0, Some(Refusal::retryable("503"))))).collect(),
    };
    answer(&mut engine, 0, refused(1..=5), at(4));
    answer(&mut engine, 1, refused(6..=10), at(5));
    let first = at(4).plus(engine.options.backoff);
    let gate = |engine: &Engine| engine.destinations.gate(&None, 0, at(5));
    assert_eq!(gate(&engine), destination::SendGate::Shut { until: first }, "the second one was under way, and says nothing new");
    engine.on(EngineInput::Recorded { fenced: vec![] }, at(6));
    engine.on(EngineInput::Fetched(FetchResult { runs: vec![run(11, HOLD, 1..=1, 1)], resume: None, more: false }), at(6));
    assert_eq!(sent(&engine.next(at(6))), []);
    assert_eq!(sent(&engine.next(first)), [(2, vec!["11-1".into()])], "the probe");
    answer(&mut engine, 2, Acceptance::up_to(0, Refusal::retryable("503")), first);
    assert_eq!(gate(&engine), destination::SendGate::Shut { until: first.plus(engine.options.backoff * 2) });
}

/// An answer for each aggregate that accepts everything.
#[test]
fn an_aggregate_of_which_all_is_accepted_is_delivered() {
    let mut engine = holding(options(), SinkLimits::default());
    assert_eq!(sent(&read(&mut engine, vec![run(1, HOLD, 1..=3, 3), run(2, HOLD, 1..=1, 1)], at(3))).len(), 1);
    let apart = BTreeMap::from([(1, (3, None)), (2, (7, None))]);
    let actions = answer(&mut engine, 0, Acceptance { events: 4, refusal: None, apart }, at(4));
    assert_eq!(sent(&actions), [], "nothing is left to send");
    assert_eq!(recorded(&actions).iter().map(|outcome| outcome.through).collect::<Vec<_>>(), [Some(3), Some(1)]);
    engine.on(EngineInput::Recorded { fenced: vec![] }, at(5));
    assert_eq!(engine.counters(at(5)).delivered, 4);
}

/// The position after which each reading begins.
fn fetches_after(actions: &[EngineAction]) -> Vec<Option<u64>> {
    actions.iter().filter_map(|action| if let EngineAction::Fetch(request) = action { Some(request.after) } else { None }).collect()
}

/// The first reading of a large backlog is short, and later ones grow.
#[test]
fn readings_begin_small_and_grow_while_they_come_back_full() {
    let mut engine = holding(PublisherOptions { batch: 1_000, ..options() }, SinkLimits::default());
    let (mut actions, mut sizes) = (engine.next(at(3)), Vec::new());
    for (aggregate, full) in (1..).zip([true, true, true, false, true, true]) {
        let size =
            actions.iter().find_map(|action| if let EngineAction::Fetch(request) = action { Some(request.events_max) } else { None });
        sizes.extend(size);
        let events = if full { size.unwrap() as u64 } else { 5 };
        let fetched = FetchResult { runs: vec![run(aggregate, HOLD, 1..=events, 10_000)], resume: full.then_some(7), more: false };
        engine.on(EngineInput::Fetched(fetched), at(3));
        actions = engine.next(at(3));
        for (id, batch) in sent(&actions) {
            actions.extend(answer(&mut engine, id, accepted(batch.len()), at(3)));
        }
        engine.on(EngineInput::Recorded { fenced: vec![] }, at(3));
        actions.extend(engine.next(at(3)));
    }
    assert_eq!(sizes, [250, 500, 1_000, 1_000, 250, 500]);
    engine.on(EngineInput::Fetched(FetchResult { runs: vec![], resume: Some(9), more: false }), at(3));
    assert_eq!(engine.reading, 1_000, "full of aggregates that have nothing to send");
}

/// A store may list aggregates that have nothing to send, while a writer holds their rows.
#[test]
fn a_reading_that_is_cut_short_without_events_goes_on_behind_and_once_around() {
    let mut engine = holding(options(), SinkLimits::default());
    let empty = |resume| EngineInput::Fetched(FetchResult { runs: vec![], resume: Some(resume), more: false });
    assert_eq!(fetches_after(&engine.next(at(3))), [None]);
    for quarter in 1..=3 {
        engine.on(empty(quarter << 62), at(3));
        assert_eq!(fetches_after(&engine.next(at(3))), [Some(quarter << 62)]);
    }
    engine.on(empty(7), at(3));
    assert_eq!(fetches_after(&engine.next(at(3))), [], "once around, and nothing: it waits");
    let later = at(3).plus(engine.options.poll);
    assert_eq!(fetches_after(&engine.next(later)), [Some(7)]);
    engine.on(EngineInput::Fetched(FetchResult { runs: vec![run(1, HOLD, 1..=1, 1)], resume: Some(9), more: false }), later);
    assert_eq!(sent(&engine.next(later)).len(), 1);
    engine.on(empty(9), later);
    assert_eq!(fetches_after(&engine.next(later)), [], "no step is the whole way");
}

/// A missing right that only the cleaning needs must stop nothing else.
#[test]
fn cleaning_fails_and_goes_on_by_itself() {
    let mut engine = holding(options(), SinkLimits::default());
    let cleans = |actions: &[EngineAction]| actions.iter().any(|action| matches!(action, EngineAction::Clean { .. }));
    let sweeps = |actions: &[EngineAction]| actions.iter().any(|action| matches!(action, EngineAction::Sweep { .. }));
    let first = engine.next(at(3));
    assert!(cleans(&first) && sweeps(&first));
    engine.on(EngineInput::Failed(StoreCall::Clean), at(4));
    engine.on(EngineInput::Swept(SweepResult { deleted: 1_000, resume: Some(7), ..SweepResult::default() }), at(4));
    let next = engine.next(at(4).plus(SWEEP_PAUSE));
    assert!(sweeps(&next) && !cleans(&next), "{next:?}");
    let later = at(4).plus(SWEEP_EVERY);
    engine.on(EngineInput::Touched { started: later, touch: TouchReply::Seen(vec![HOLD]) }, later);
    assert!(cleans(&engine.next(later)));
    engine.on(EngineInput::Cleaned { more: true }, later);
    assert!(cleans(&engine.next(later.plus(SWEEP_PAUSE))), "there is more");
    engine.on(EngineInput::Cleaned { more: false }, later.plus(SWEEP_PAUSE));
    assert!(!cleans(&engine.next(later.plus(SWEEP_PAUSE * 2))));
}

/// Statements for one poison head in each large batch would slow down all other events.
#[test]
fn few_retries_beside_many_marks_wait_for_company() {
    let mut engine = holding(PublisherOptions { batch: 100, ..options() }, SinkLimits::default());
    let refused = || BTreeMap::from([(1, (0, Some(Refusal::retryable("503"))))]);
    let runs = (1..=40).map(|aggregate| run(aggregate, HOLD, 1..=1, 1)).collect();
    assert_eq!(sent(&read(&mut engine, runs, at(3))).len(), 1);
    let marks = recorded(&answer(&mut engine, 0, Acceptance { apart: refused(), ..accepted(40) }, at(4)));
    assert_eq!((marks.len(), marks[0].aggregate), (39, 2), "all but the one that is tried later");
    engine.on(EngineInput::Recorded { fenced: vec![] }, at(5));
    let last = at(4).plus(Duration::from_millis(100));
    assert_eq!(recorded(&engine.next(at(90))), []);
    assert_eq!(engine.wake_at(at(90)), last, "not longer than that");
    let retries = recorded(&engine.next(last));
    assert!(matches!(&retries[..], [Outcome { aggregate: 1, then: HeadUpdate::Retry { .. }, .. }]), "{retries:?}");
}
