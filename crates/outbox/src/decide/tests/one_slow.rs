//! Tests of a sink with two destinations, one of which is slow: aggregates with an even number go to one, the others to the other.

use std::collections::BTreeSet;
use std::time::Duration;

use super::several::{retries, single, two};
use super::{HOLD, accepted, answer, at, holding, holding_for, options, read, recorded, run, sent};
use crate::AggregateId;
use crate::decide::slow::SlowMistake;
use crate::decide::*;
use crate::store::{EventRun, FetchResult, HeadUpdate, Outcome};

/// One event a send, and four sends at a time, of which a single destination may have three.
const LIMITS: SinkLimits = SinkLimits { batch_events: 1, batch_bytes: 16 << 20, concurrency: 4, mixed: false };

const fn even(n: AggregateId) -> AggregateId {
    2 * n
}

fn slow() -> Report {
    Report::Slow { to: Some("even".into()) }
}

/// An engine that reads ten events for the even destination at 3 ms and ten more at 4 ms. Three are sent, and nothing is answered.
fn with_a_full_memory() -> Engine {
    let mut engine = two(LIMITS);
    assert_eq!(sent(&read(&mut engine, (1..=10).map(|n| single(even(n))).collect(), at(3))).len(), 3);
    engine.on(EngineInput::ReadSoon, at(4));
    let actions = read(&mut engine, (11..=20).map(|n| single(even(n))).collect(), at(4));
    assert_eq!((sent(&actions), recorded(&actions)), (vec![], vec![]));
    engine
}

fn back(range: std::ops::RangeInclusive<AggregateId>) -> Vec<(AggregateId, u32, u32)> {
    range.map(|n| (even(n), 0, 0)).collect()
}

/// Nothing is down, and everything in memory waits for the slow one.
#[test]
fn a_slow_destination_keeps_half_of_the_memory_and_the_others_go_on() {
    let mut engine = with_a_full_memory();
    assert_eq!(recorded(&engine.next(at(1_002))), []);
    assert_eq!(engine.wake_at(at(1_002)), at(1_003));
    let outcomes = recorded(&engine.next(at(1_003)));
    // Three are sent and five are kept. Ten go back at a time, so that they do not hold up the sends.
    assert_eq!(retries(&outcomes), back(9..=18), "not tried, and not charged");
    for outcome in &outcomes {
        let HeadUpdate::Retry { retry_in, error, .. } = &outcome.then else { panic!("{outcome:?}") };
        assert!((500..=1_000).contains(&retry_in.as_millis()) && error.contains("the destination even is slow"), "{outcome:?}");
    }
    assert_eq!(engine.reports(at(1_003)), [slow()]);
    assert_eq!((engine.counters(at(1_003)).destinations_slow, engine.counters(at(1_003)).destinations_down), (1, 0));
    engine.on(EngineInput::Recorded { fenced: vec![] }, at(1_004));
    assert_eq!(engine.counters(at(1_004)).retried, 10);
    let actions = read(&mut engine, vec![single(1), single(3)], at(1_004));
    assert_eq!(sent(&actions), [(3, vec!["1-1".into()])], "with the send that is kept for others");
    assert_eq!(sent(&answer(&mut engine, 3, accepted(1), at(1_005))), [(4, vec!["3-1".into()])]);
}

/// Otherwise a second would pass after each reading.
#[test]
fn what_is_read_for_a_slow_destination_goes_back_at_once() {
    let mut engine = with_a_full_memory();
    assert_eq!(recorded(&engine.next(at(1_003))).len(), 10);
    engine.on(EngineInput::Recorded { fenced: vec![] }, at(1_004));
    let actions = read(&mut engine, (21..=30).map(|n| single(even(n))).collect(), at(1_004));
    assert_eq!(retries(&recorded(&actions)), back(19..=28));
}

/// They would pile up until sends are held up.
#[test]
fn nothing_is_put_back_while_a_recording_is_in_flight() {
    let mut engine = with_a_full_memory();
    let actions = answer(&mut engine, 0, accepted(1), at(500));
    assert_eq!((sent(&actions), recorded(&actions).len()), (vec![(3, vec!["8-1".into()])], 1));
    for ms in (1_003..1_100).step_by(10) {
        assert_eq!((recorded(&engine.next(at(ms))), engine.counters(at(ms)).in_memory), (vec![], 19));
    }
    // What goes back is recorded together with what was accepted meanwhile.
    engine.on(EngineInput::Sent { id: 1, accepted: accepted(1), unknown_end: false }, at(1_100));
    assert_eq!(sent(&engine.next(at(1_100))), [(4, vec!["10-1".into()])]);
    engine.on(EngineInput::Recorded { fenced: vec![] }, at(1_101));
    let outcomes = recorded(&engine.next(at(1_101)));
    assert_eq!(retries(&outcomes), back(11..=19));
    assert_eq!(outcomes[0], Outcome { aggregate: 4, hold: HOLD, through: Some(1), then: HeadUpdate::Next });
}

/// What waits behind an event that is being sent is read again later, and in order.
#[test]
fn of_large_aggregates_of_a_slow_destination_the_next_events_are_kept() {
    let mut engine = two(LIMITS);
    assert_eq!(sent(&read(&mut engine, vec![run(2, HOLD, 1..=10, 10)], at(3))), [(0, vec!["2-1".into()])]);
    engine.on(EngineInput::ReadSoon, at(4));
    assert_eq!(sent(&read(&mut engine, vec![run(4, HOLD, 1..=10, 10)], at(4))), [(1, vec!["4-1".into()])]);
    assert_eq!(recorded(&engine.next(at(1_003))), [], "nothing is written for it");
    assert_eq!(engine.counters(at(1_003)).in_memory, 4, "two are sent, and one of each waits behind");
    engine.on(EngineInput::ReadSoon, at(1_003));
    assert_eq!(sent(&read(&mut engine, vec![single(1)], at(1_003))), [(2, vec!["1-1".into()])]);
    let marks = recorded(&answer(&mut engine, 0, accepted(1), at(1_004)));
    assert_eq!(marks, [Outcome { aggregate: 2, hold: HOLD, through: Some(1), then: HeadUpdate::Next }]);
    engine.on(EngineInput::Recorded { fenced: vec![] }, at(1_005));
    let is_left_out = |actions: &[EngineAction]| {
        let left_out = |action: &EngineAction| match action {
            EngineAction::Fetch(request) => Some(request.except_aggregates.contains(&2)),
            _ => None,
        };
        actions.iter().find_map(left_out)
    };
    assert_eq!(is_left_out(&engine.next(at(1_005))), Some(true), "its next event is being sent");
    engine.on(EngineInput::Fetched(FetchResult { runs: vec![], resume: None, more: false }), at(1_005));
    let marks = recorded(&answer(&mut engine, 3, accepted(1), at(1_006)));
    assert_eq!(marks, [Outcome { aggregate: 2, hold: HOLD, through: Some(2), then: HeadUpdate::Next }]);
    engine.on(EngineInput::Recorded { fenced: vec![] }, at(1_007));
    assert_eq!(is_left_out(&engine.next(at(1_007))), Some(false), "the others are read again");
}

/// Few large events fill the memory as well.
#[test]
fn a_slow_destination_keeps_half_of_the_bytes() {
    let mut engine = two(LIMITS);
    assert_eq!(sent(&read(&mut engine, (1..=3).map(|n| single(even(n))).collect(), at(3))).len(), 3);
    engine.on(EngineInput::ReadSoon, at(4));
    let large = |n: AggregateId| {
        let mut run = single(even(n));
        run.events[0].payload = "x".repeat(6 << 20).into();
        run
    };
    assert_eq!(sent(&read(&mut engine, (4..=7).map(large).collect(), at(4))), []);
    assert_eq!(retries(&recorded(&engine.next(at(1_004)))), back(5..=7), "one of 6 MiB stays");
}

/// An event that is larger than the share of its destination is kept while it is the first, and events read later do not overtake it.
#[test]
fn an_event_larger_than_the_share_is_not_passed_over_for_ever() {
    let mut engine = two(LIMITS);
    assert_eq!(sent(&read(&mut engine, (1..=3).map(|n| single(even(n))).collect(), at(3))).len(), 3);
    engine.on(EngineInput::ReadSoon, at(4));
    let mut large = single(even(4));
    large.events[0].payload = "x".repeat(16 << 20).into();
    assert_eq!(sent(&read(&mut engine, vec![large, single(even(5))], at(4))), []);
    assert_eq!(retries(&recorded(&engine.next(at(1_004)))), back(5..=5));
    engine.on(EngineInput::Recorded { fenced: vec![] }, at(1_005));
    assert_eq!(sent(&answer(&mut engine, 0, accepted(1), at(1_006))), [(3, vec!["8-1".into()])], "it goes next");
}

#[test]
fn where_a_send_carries_several_aggregates_nothing_is_put_back() {
    let mut engine = two(SinkLimits::default());
    assert_eq!(sent(&read(&mut engine, (1..=10).map(single).collect(), at(3))).len(), 1);
    engine.on(EngineInput::ReadSoon, at(4));
    read(&mut engine, (11..=20).map(single).collect(), at(4));
    for ms in [1_003, 1_004, 2_900] {
        assert_eq!((recorded(&engine.next(at(ms))), engine.counters(at(ms)).in_memory), (vec![], 20));
    }
}

#[test]
fn a_sink_that_is_one_destination_puts_nothing_back() {
    let mut engine = holding(options(), LIMITS);
    assert_eq!(sent(&read(&mut engine, (1..=10).map(single).collect(), at(3))).len(), 4);
    engine.on(EngineInput::ReadSoon, at(4));
    read(&mut engine, (11..=20).map(single).collect(), at(4));
    for ms in [1_003, 1_004, 2_900] {
        assert_eq!((recorded(&engine.next(at(ms))), engine.counters(at(ms)).in_memory), (vec![], 20));
    }
}

/// A store that does not record makes the events of fast destinations old as well.
#[test]
fn a_destination_is_not_slow_because_the_store_held_up_its_sends() {
    let mut engine = with_a_full_memory();
    engine.slow.held_up(true, at(900));
    for ms in [1_003, 1_500, 2_002] {
        assert_eq!(recorded(&engine.next(at(ms))), [], "at {ms}");
    }
    assert_eq!(engine.wake_at(at(2_002)), at(2_003));
    assert_eq!(retries(&recorded(&engine.next(at(2_003)))), back(9..=18));
}

#[test]
fn sends_that_wait_for_a_recording_are_noticed() {
    let address: DestinationResolver = Box::new(|_| Some("even".into()));
    let (mut engine, mut aggregate) = (holding_for(PublisherOptions { batch: 2, ..options() }, LIMITS, address), 0);
    for ms in 3..50 {
        for action in engine.next(at(ms)) {
            // The recording is not answered.
            match action {
                EngineAction::Fetch(_) => {
                    aggregate += 2;
                    let runs = vec![single(aggregate), single(aggregate + 1)];
                    engine.on(EngineInput::Fetched(FetchResult { runs, resume: Some(1), more: false }), at(ms));
                }
                EngineAction::Send { id, .. } => {
                    engine.on(EngineInput::Sent { id, accepted: accepted(1), unknown_end: false }, at(ms));
                }
                _ => {}
            }
        }
    }
    assert_eq!((engine.flow.unrecorded(), engine.slow.held_up_at), (4, at(49)));
}

/// A publisher for six seconds: new aggregates of one destination without end, each sent within so many milliseconds. Returns the actions
/// and the most events that were in memory.
fn six_seconds(takes_ms: u64, mistake: Option<SlowMistake>) -> (Vec<(u64, EngineAction)>, usize) {
    let mut engine = holding_for(PublisherOptions { batch: 100, ..options() }, LIMITS, Box::new(|_| Some("even".into())));
    engine.slow.mistake = mistake;
    let mut due: Vec<(u64, EngineInput)> = Vec::new();
    let mut all: Vec<(u64, EngineAction)> = Vec::new();
    let (mut aggregate, mut most): (AggregateId, usize) = (0, 0);
    for ms in 3..6_000 {
        let (now, later): (Vec<_>, Vec<_>) = due.into_iter().partition(|(at, _)| *at <= ms);
        due = later;
        for (_, input) in now {
            engine.on(input, at(ms));
        }
        let actions = engine.next(at(ms));
        for action in &actions {
            let answer = match action {
                EngineAction::Send { id, batch } => {
                    (takes_ms, EngineInput::Sent { id: *id, accepted: accepted(batch.len()), unknown_end: false })
                }
                EngineAction::Fetch(request) => {
                    let runs = (0..request.events_max).map(|_| {
                        aggregate += 1;
                        single(aggregate)
                    });
                    (2, EngineInput::Fetched(FetchResult { runs: runs.collect(), resume: Some(1), more: false }))
                }
                EngineAction::Record(_) => (3, EngineInput::Recorded { fenced: vec![] }),
                EngineAction::Touch => (1, EngineInput::Touched { started: at(ms), touch: TouchReply::Seen(vec![HOLD]) }),
                _ => continue,
            };
            due.push((ms + answer.0, answer.1));
        }
        most = most.max(engine.flow.waiting_events);
        all.extend(actions.into_iter().map(|action| (ms, action)));
    }
    (all, most)
}

/// The first fix took such a destination for a slow one, because all its sends are always in flight.
#[test]
fn a_destination_that_is_full_and_fast_is_read_and_sent_as_if_there_were_no_rule() {
    for (takes_ms, is_slow) in [(1, false), (8, false), (100, true)] {
        let ((with, most), (without, _)) = (six_seconds(takes_ms, None), six_seconds(takes_ms, Some(SlowMistake::KeepsEverything)));
        assert!(most >= 100, "the memory is full: {most}");
        let back = with.iter().filter(|(_, action)| !retries(&recorded(std::slice::from_ref(action))).is_empty()).count();
        assert_eq!((with != without, back > 0), (is_slow, is_slow), "{takes_ms} ms");
        let sends = |all: &[(u64, EngineAction)]| all.iter().filter(|(_, action)| matches!(action, EngineAction::Send { .. })).count();
        assert_eq!(sends(&with), sends(&without), "the slow one is sent as much, too: {takes_ms} ms");
    }
}

/// The longer it lasts, and the more have been put back, the rarer its events are written back: a thousand a second return.
#[test]
fn what_a_slow_destination_has_to_wait_for_grows_and_the_memory_stays_bounded() {
    let mut engine = with_a_full_memory();
    let (mut next, mut waits, mut put_back) = (100, Vec::new(), BTreeSet::new());
    for ms in (1_003..120_000).step_by(5) {
        for action in engine.next(at(ms)) {
            match action {
                EngineAction::Touch => {
                    engine.on(EngineInput::Touched { started: at(ms), touch: TouchReply::Seen(vec![HOLD]) }, at(ms));
                }
                EngineAction::Record(outcomes) => {
                    for outcome in outcomes {
                        let HeadUpdate::Retry { retry_in, attempts: 0, failures: 0, .. } = outcome.then else { panic!("{outcome:?}") };
                        waits.push(retry_in);
                        assert!(put_back.insert(outcome.aggregate), "{} is put back twice", outcome.aggregate);
                    }
                    engine.on(EngineInput::Recorded { fenced: vec![] }, at(ms));
                }
                EngineAction::Fetch(request) => {
                    let runs: Vec<EventRun> = (0..).take(request.events_max).map(|n| single(even(next + n))).collect();
                    next += AggregateId::try_from(runs.len()).unwrap();
                    engine.on(EngineInput::Fetched(FetchResult { runs, resume: Some(1), more: false }), at(ms));
                }
                _ => {}
            }
        }
        assert!(engine.counters(at(ms)).in_memory <= 2 * 10 + 3, "{:?}", engine.counters(at(ms)));
    }
    let last = waits.last().copied().unwrap();
    let return_within = Duration::from_millis(u64::try_from(waits.len()).unwrap());
    let least = return_within.saturating_sub(Duration::from_secs(119)).max(Duration::from_secs(15));
    let most = return_within.max(Duration::from_secs(30));
    assert!(waits[0] <= Duration::from_secs(1) && (least..=most).contains(&last), "{last:?}, of {}", waits.len());
}

#[test]
fn a_destination_that_is_in_time_for_a_minute_is_not_reported_any_more() {
    let mut engine = with_a_full_memory();
    engine.next(at(1_003));
    assert_eq!(engine.reports(at(1_003)), [slow()]);
    let in_time = Report::InTime { to: Some("even".into()) };
    for (ms, slow, reports) in [(61_002, 1, vec![]), (61_003, 0, vec![in_time]), (61_004, 0, vec![])] {
        engine.next(at(ms));
        assert_eq!((engine.counters(at(ms)).destinations_slow, engine.reports(at(ms))), (slow, reports), "{ms}");
    }
}
