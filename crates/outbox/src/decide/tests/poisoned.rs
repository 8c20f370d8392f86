//! Tests of a sink that is one destination and refuses some aggregates whatever happens. While it gets nothing else it counts as down.

use std::collections::BTreeMap;

use super::several::{all_but, single};
use super::{HOLD, answer, at, holding, options, read, sent};
use crate::AggregateId;
use crate::decide::destination::OUTAGE_DELAY_MAX;
use crate::decide::*;
use crate::sink::{Acceptance, Refusal};
use crate::store::{EventRun, FetchResult, HeadTrouble, HeadUpdate, Outcome};

/// Aggregates below this number are always refused.
const POISON: AggregateId = 100;
const STEP_MS: u64 = 5;

#[test]
fn a_probe_takes_what_has_failed_least_and_grows() {
    let mut engine = holding(options(), SinkLimits::default());
    assert_eq!(sent(&read(&mut engine, (1..=3).map(single).collect(), at(3)))[0].1.len(), 3);
    answer(&mut engine, 0, all_but(3, &[1, 2, 3]), at(4));
    engine.on(EngineInput::Recorded { fenced: vec![] }, at(5));
    let failed = |aggregate, failures| EventRun { trouble: HeadTrouble { failures, ..HeadTrouble::default() }, ..single(aggregate) };
    let probe_at = at(4).plus(engine.options.backoff);
    let actions = read(&mut engine, vec![failed(1, 2), failed(2, 1), single(4), single(5), failed(3, 1)], probe_at);
    assert_eq!(sent(&actions), [(1, vec!["4-1".into()])]);
    let second = at(5_000);
    assert_eq!(sent(&answer(&mut engine, 1, all_but(1, &[4]), probe_at)), []);
    assert_eq!(sent(&engine.next(second)), [(2, vec!["5-1".into(), "2-1".into()])], "two, in the order of their failures");
}

/// Its sends carry one aggregate each, and while it is down it gets one of them, although several might be under way.
#[test]
fn a_probe_of_a_webhook_stays_one_event() {
    let mut engine = holding(options(), SinkLimits { concurrency: 4, mixed: false, ..SinkLimits::default() });
    let mut sends = sent(&read(&mut engine, (1..=9).map(single).collect(), at(3)));
    let refusal = || Acceptance::up_to(0, Refusal::retryable("503"));
    let mut tried = 0;
    while let Some((id, _)) = sends.pop() {
        sends.extend(sent(&answer(&mut engine, id, refusal(), at(4))));
        tried += 1;
    }
    assert_eq!((tried, engine.counters(at(4)).destinations_down), (6, 1), "four at a time, until three were refused");
    let mut probed = Vec::new();
    for ms in (10..8_000).step_by(10) {
        let mut probes = sent(&engine.next(at(ms)));
        assert!(probes.len() <= 1, "{probes:?}");
        if let Some((id, events)) = probes.pop() {
            assert_eq!(sent(&answer(&mut engine, id, refusal(), at(ms))), []);
            probed.push(events);
        }
    }
    assert_eq!(probed, [["7-1"], ["8-1"], ["9-1"]]);
}

/// Aggregates with one event each: when each may be read, and how often its head has failed.
#[derive(Default)]
struct StoredHeads(BTreeMap<AggregateId, (u64, u32)>);

impl StoredHeads {
    /// Carries out everything that the engine wants at that time, and what follows from it. Calls and the sink answer at once.
    fn step(&mut self, engine: &mut Engine, ms: u64) {
        let mut actions = engine.next(at(ms));
        while !actions.is_empty() {
            for action in std::mem::take(&mut actions) {
                match action {
                    EngineAction::Fetch(request) => {
                        let due = self.0.iter().filter(|(id, (due, _))| *due <= ms && !request.except_aggregates.contains(id));
                        let run = |(id, (_, failures)): (&AggregateId, &(u64, u32))| EventRun {
                            trouble: HeadTrouble { failures: *failures, ..HeadTrouble::default() },
                            ..single(*id)
                        };
                        let runs = due.take(request.events_max).map(run).collect();
                        engine.on(EngineInput::Fetched(FetchResult { runs, resume: None, more: false }), at(ms));
                    }
                    EngineAction::Send { id, batch } => {
                        let poison = batch.iter().filter(|event| event.aggregate < POISON);
                        let apart = poison.map(|event| (event.aggregate, (0, Some(Refusal::retryable("cannot digest"))))).collect();
                        let accepted = Acceptance { events: batch.len(), refusal: None, apart };
                        engine.on(EngineInput::Sent { id, accepted, unknown_end: false }, at(ms));
                    }
                    EngineAction::Record(outcomes) => {
                        for outcome in outcomes {
                            self.record(&outcome, ms);
                        }
                        engine.on(EngineInput::Recorded { fenced: vec![] }, at(ms));
                    }
                    EngineAction::ReadMark => engine.on(EngineInput::MarkRead(Some(ms)), at(ms)),
                    EngineAction::Place { .. } => engine.on(EngineInput::Placed(0), at(ms)),
                    EngineAction::Touch => {
                        engine.on(EngineInput::Touched { started: at(ms), touch: TouchReply::Seen(vec![HOLD]) }, at(ms));
                    }
                    _ => continue,
                }
                actions.extend(engine.next(at(ms)));
            }
        }
    }

    fn record(&mut self, outcome: &Outcome, ms: u64) {
        match outcome.then {
            HeadUpdate::Retry { failures, retry_in, .. } => {
                let retry_in = u64::try_from(retry_in.as_millis()).unwrap();
                self.0.insert(outcome.aggregate, (ms + retry_in, failures));
            }
            _ => drop(self.0.remove(&outcome.aggregate)),
        }
    }
}

/// A probe was one event, and the one that had waited longest. Where an eighth of the aggregates failed always, the rest waited behind
/// them for hours, because they were tried one by one, half a minute apart, and while the memory was full of them others were not read.
#[test]
fn what_always_fails_delays_the_others_no_longer_than_an_outage() {
    let (mut engine, mut pending) = (holding(options(), SinkLimits::default()), StoredHeads::default());
    let others = POISON..POISON + 3;
    pending.0.extend((0..POISON / 2).chain(others.clone()).map(|id| (id, (0, 0))));
    let mut now = 3;
    let mut run_until = |pending: &mut StoredHeads, end: u64| {
        while now < end {
            pending.step(&mut engine, now);
            now += STEP_MS;
        }
    };
    let left = |pending: &StoredHeads| others.clone().filter(|other| pending.0.contains_key(other)).collect::<Vec<_>>();
    // Fifty that fail are first read ten at a time: the probes are of 1, 2, 4, 8, 10 … of them.
    run_until(&mut pending, 120_000);
    assert_eq!(left(&pending), [0; 0], "of those that were written at the same time as what fails");
    let longest = u64::try_from(OUTAGE_DELAY_MAX.as_millis()).unwrap() + 1_000;
    for written in [150_000, 250_000, 400_000] {
        run_until(&mut pending, written);
        pending.0.extend(others.clone().map(|other| (other, (0, 0))));
        run_until(&mut pending, written + longest);
        assert_eq!(left(&pending), [0; 0], "of those that were written at {written} ms");
    }
    assert!(pending.0.len() > 10, "more of what fails is left than fits into memory");
}
