//! Tests of a sink with two destinations, one of which is down: aggregates with an even number go to one, the others to the other.

use std::time::Duration;

use super::{HOLD, accepted, answer, at, fetches, holding, holding_for, options, read, recorded, run, sent};
use crate::AggregateId;
use crate::decide::*;
use crate::sink::{Acceptance, Refusal};
use crate::store::{EventRun, FetchResult, HeadTrouble, HeadUpdate, Outcome};

pub(super) fn two(limits: SinkLimits) -> Engine {
    holding_for(options(), limits, Box::new(|event| Some(if event.aggregate % 2 == 0 { "even".into() } else { "odd".into() })))
}

pub(super) fn single(aggregate: AggregateId) -> EventRun {
    run(aggregate, HOLD, 1..=1, 1)
}

/// Accepts a whole batch except these aggregates.
pub(super) fn all_but(events: usize, refused: &[AggregateId]) -> Acceptance {
    let apart = refused.iter().map(|aggregate| (*aggregate, (0, Some(Refusal::retryable("503"))))).collect();
    Acceptance { apart, ..accepted(events) }
}

pub(super) fn retries(outcomes: &[Outcome]) -> Vec<(AggregateId, u32, u32)> {
    let retry = |outcome: &Outcome| match outcome.then {
        HeadUpdate::Retry { attempts, failures, .. } => Some((outcome.aggregate, attempts, failures)),
        _ => None,
    };
    outcomes.iter().filter_map(retry).collect()
}

/// An engine that has just found the destination of the even aggregates down.
fn with_one_down() -> Engine {
    let mut engine = two(SinkLimits::default());
    let actions = read(&mut engine, (1..=6).map(single).collect(), at(3));
    assert_eq!(sent(&actions)[0].1.len(), 6, "one batch has events of both");
    let outcomes = recorded(&answer(&mut engine, 0, all_but(6, &[2, 4, 6]), at(4)));
    assert_eq!(retries(&outcomes), [(2, 0, 1), (4, 0, 1), (6, 0, 1)]);
    let report = Report::Refusing { to: Some("even".into()), error: "503".into() };
    assert_eq!((engine.counters(at(4)).destinations_down, engine.reports(at(4))), (1, vec![report]));
    engine.on(EngineInput::Recorded { fenced: vec![] }, at(5));
    engine
}

#[test]
fn what_waits_for_a_destination_that_is_down_is_put_off_and_the_others_go_on() {
    let mut engine = with_one_down();
    let actions = read(&mut engine, (7..=10).map(single).collect(), at(5));
    assert_eq!(sent(&actions), [(1, vec!["7-1".into(), "9-1".into()])]);
    assert_eq!(retries(&recorded(&actions)), [(8, 0, 0), (10, 0, 0)], "not tried, and not charged");
    assert_eq!(engine.counters(at(5)).in_memory, 2, "and nothing of it is kept");
    answer(&mut engine, 1, accepted(2), at(6));
    // When the probe is due, one event is sent, and the rest waits.
    engine.on(EngineInput::Recorded { fenced: vec![] }, at(7));
    let probe_at = at(4).plus(engine.options.backoff);
    assert!(fetches(&engine.next(at(7))));
    engine.on(EngineInput::Recorded { fenced: vec![] }, at(8));
    engine.on(EngineInput::Fetched(FetchResult { runs: vec![single(2), single(11), single(4)], resume: None, more: false }), probe_at);
    let actions = engine.next(probe_at);
    assert_eq!(sent(&actions), [(2, vec!["2-1".into()])], "the probe goes alone, and the sink takes one batch at a time");
    assert_eq!(retries(&recorded(&actions)), [(4, 0, 0)]);
    let actions = answer(&mut engine, 2, accepted(1), probe_at.plus(Duration::from_millis(50)));
    assert_eq!(sent(&actions), [(3, vec!["11-1".into()])]);
    assert_eq!(engine.counters(probe_at).destinations_down, 0);
    assert_eq!(engine.reports(probe_at), [Report::Answering { to: Some("even".into()) }]);
}

/// The event of a single aggregate may itself be the cause, so the outage is reported, and the event is tried as before.
#[test]
fn a_destination_with_one_aggregate_is_reported_and_nothing_is_put_off() {
    let mut engine = two(SinkLimits::default());
    let (refusing, answering) =
        (Report::Refusing { to: Some("even".into()), error: "503".into() }, Report::Answering { to: Some("even".into()) });
    for (turn, is_accepted, reports) in [
        (0, false, vec![]),
        (1, false, vec![]),
        (2, false, vec![refusing]),
        (3, false, vec![]),
        (4, true, vec![answering]),
        (5, false, vec![]),
    ] {
        let now = at(3 + 1_000 * turn);
        engine.on(EngineInput::ReadSoon, now);
        assert_eq!(sent(&read(&mut engine, vec![single(2)], now)), [(turn, vec!["2-1".into()])]);
        let reply = if is_accepted { accepted(1) } else { Acceptance::up_to(0, Refusal::retryable("503")) };
        assert_eq!(recorded(&answer(&mut engine, turn, reply, now)).len(), 1);
        assert_eq!(engine.reports(now), reports, "turn {turn}");
        assert_eq!(engine.counters(now).destinations_down, usize::from(turn == 2 || turn == 3), "turn {turn}");
        engine.on(EngineInput::Recorded { fenced: vec![] }, now);
    }
}

/// The events there were given up, or their slots are another publisher's.
#[test]
fn a_destination_that_is_not_tried_any_more_is_not_reported_for_ever() {
    let mut engine = with_one_down();
    for (ms, reported) in [(600_003, 1), (600_004, 0), (900_000, 0)] {
        engine.next(at(ms));
        assert_eq!((engine.counters(at(ms)).destinations_down, engine.reports(at(ms))), (reported, vec![]), "{ms}");
    }
    assert_eq!(engine.destinations.down(), 1, "what comes for it begins with a probe");
}

/// A sink that is one destination needs no room for events of others, so its waiting events stay in memory.
#[test]
fn a_sink_that_is_one_destination_is_never_put_off() {
    let mut engine = holding(options(), SinkLimits::default());
    assert_eq!(sent(&read(&mut engine, (1..=3).map(single).collect(), at(3)))[0].1.len(), 3);
    assert_eq!(recorded(&answer(&mut engine, 0, all_but(3, &[1, 2, 3]), at(4))).len(), 3);
    assert_eq!(engine.counters(at(4)).destinations_down, 1);
    engine.on(EngineInput::Recorded { fenced: vec![] }, at(5));
    let mut actions = read(&mut engine, (4..=6).map(single).collect(), at(5));
    for ms in (10..900).step_by(10) {
        actions.extend(engine.next(at(ms)));
    }
    assert_eq!((sent(&actions), recorded(&actions), engine.counters(at(900)).in_memory), (vec![], vec![], 3));
    let probe = sent(&engine.next(at(4).plus(engine.options.backoff)));
    assert_eq!(probe, [(1, vec!["4-1".into()])]);
}

#[test]
fn an_attempt_is_charged_by_what_its_own_destination_has_accepted() {
    for (other, charged) in [(1, 0), (4, 1)] {
        let mut engine = two(SinkLimits::default());
        assert_eq!(sent(&read(&mut engine, vec![single(other)], at(503)))[0].1.len(), 1);
        answer(&mut engine, 0, accepted(1), at(504));
        engine.on(EngineInput::Recorded { fenced: vec![] }, at(504));
        let second = Some(Duration::from_secs(1));
        let trouble = HeadTrouble { failures: 1, failing_for: second, attempted_ago: second, ..HeadTrouble::default() };
        assert_eq!(sent(&read(&mut engine, vec![EventRun { trouble, ..single(2) }], at(1_005)))[0].1.len(), 1);
        let outcomes = recorded(&answer(&mut engine, 1, Acceptance::up_to(0, Refusal::retryable("503")), at(1_006)));
        assert_eq!(retries(&outcomes), [(2, charged, 2)], "after {other} was accepted");
    }
}

/// Sends to a destination that hangs would use all sends of the sink unless some are reserved for other destinations.
#[test]
fn a_destination_that_hangs_leaves_sends_to_the_others() {
    let limits = SinkLimits { batch_events: 1, concurrency: 4, mixed: false, ..SinkLimits::default() };
    let mut engine = two(limits);
    let hanging = read(&mut engine, (1..=6).map(|n| single(2 * n)).collect(), at(3));
    assert_eq!(sent(&hanging).len(), 3);
    engine.on(EngineInput::ReadSoon, at(4));
    let actions = read(&mut engine, vec![single(1), single(3)], at(4));
    assert_eq!(sent(&actions), [(3, vec!["1-1".into()])]);
    assert_eq!(sent(&answer(&mut engine, 3, accepted(1), at(5))), [(4, vec!["3-1".into()])]);
}

/// While nothing is accepted, waiting events return to the store in steps, so that the store is not kept busy.
#[test]
fn while_nothing_is_accepted_little_is_put_off() {
    let mut engine = two(SinkLimits { batch_events: 3, ..SinkLimits::default() });
    assert_eq!(sent(&read(&mut engine, (1..=3).map(|n| single(2 * n)).collect(), at(3))).len(), 1);
    answer(&mut engine, 0, all_but(3, &[2, 4, 6]), at(4));
    engine.on(EngineInput::Recorded { fenced: vec![] }, at(4));
    let (mut put_off, mut next) = (0, 8);
    for ms in (5..900).step_by(5) {
        let actions = engine.next(at(ms));
        put_off += recorded(&actions).len();
        assert_eq!(sent(&actions), []);
        if !recorded(&actions).is_empty() {
            engine.on(EngineInput::Recorded { fenced: vec![] }, at(ms));
        }
        if fetches(&actions) {
            let runs = (0..10).map(|n| single(next + 2 * n)).collect();
            next += 20;
            engine.on(EngineInput::Fetched(FetchResult { runs, resume: Some(1), more: false }), at(ms));
        }
    }
    assert_eq!(put_off, 30, "a batch of ten at once, after 250 ms and after 750");
}

/// A resolver that changes its answer costs batches but blocks no event.
#[test]
fn a_destination_that_is_another_one_each_time_stops_no_event() {
    let asked = std::sync::atomic::AtomicU64::new(0);
    let address = move |_: &crate::Delivery| Some(asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst).to_string().into());
    let mut engine = holding_for(options(), SinkLimits::default(), Box::new(address));
    assert_eq!(sent(&read(&mut engine, vec![single(1)], at(3))), [(0, vec!["1-1".into()])]);
}
