//! What a publisher asks of its store before it sleeps, as lists of calls with their times, and a model of writers that notify.

use super::*;
use crate::decide::destination::Jitter;
use crate::decide::tests::{HOLD, accepted, at, holding, options, run};
use crate::decide::{Engine, EngineAction, EngineInput, StoreCall};
use crate::sink::SinkLimits;
use crate::store::{EventRun, FetchResult, SweepResult, TouchReply};

const TICKET: SleepTicket = SleepTicket { number: 3, unseen_below: 50 };

/// The answer to an action that has nothing to do with reading and sleeping.
fn other_answer(action: &EngineAction, now: Moment) -> EngineInput {
    match action {
        EngineAction::Touch => EngineInput::Touched { started: now, touch: TouchReply::Seen(vec![HOLD]) },
        EngineAction::Send { id, batch } => EngineInput::Sent { id: *id, accepted: accepted(batch.len()), unknown_end: false },
        EngineAction::Record(_) => EngineInput::Recorded { fenced: vec![] },
        EngineAction::Sweep { .. } => EngineInput::Swept(SweepResult::default()),
        EngineAction::Clean { .. } => EngineInput::Cleaned { more: false },
        other => unreachable!("{other:?}"),
    }
}

/// Carries out every action at once. `found` is what a reading finds at its time; the transactions that were open end at `ended`. Returns
/// the calls for reading and sleeping, with their times.
fn trace(
    engine: &mut Engine,
    times: impl IntoIterator<Item = u64>,
    mut found: impl FnMut(u64) -> Vec<EventRun>,
    ended: u64,
) -> Vec<(u64, &'static str)> {
    let mut calls = Vec::new();
    for ms in times {
        loop {
            let actions = engine.next(at(ms));
            if actions.is_empty() {
                break;
            }
            for action in actions {
                let (name, input) = match action {
                    EngineAction::ReadMark => ("read_mark", EngineInput::MarkRead(None)),
                    EngineAction::Place { .. } => ("place", EngineInput::Placed(0)),
                    EngineAction::Fetch(_) => ("fetch", EngineInput::Fetched(FetchResult { runs: found(ms), resume: None, more: false })),
                    EngineAction::FallAsleep => ("announce", EngineInput::FellAsleep(Some(TICKET))),
                    EngineAction::AskEnded(ticket) => {
                        assert_eq!(ticket, TICKET);
                        ("ask", EngineInput::Ended(ms >= ended))
                    }
                    other => {
                        engine.on(other_answer(&other, at(ms)), at(ms));
                        continue;
                    }
                };
                calls.push((ms, name));
                engine.on(input, at(ms));
            }
        }
    }
    calls
}

fn nothing(_: u64) -> Vec<EventRun> {
    Vec::new()
}

fn of(calls: &[(u64, &'static str)], name: &str) -> Vec<u64> {
    calls.iter().filter(|(_, called)| *called == name).map(|(ms, _)| *ms).collect()
}

/// An engine with a store that notifies, at 2 ms.
fn notified() -> Engine {
    let mut engine = holding(options(), SinkLimits::default());
    engine.on(EngineInput::Woken, at(2));
    engine
}

/// The same, asleep since 34 ms.
fn asleep() -> Engine {
    let mut engine = notified();
    trace(&mut engine, 2..=100, nothing, 0);
    engine
}

#[test]
fn an_idle_publisher_says_that_it_falls_asleep_polls_until_all_have_ended_and_only_then_sleeps() {
    let mut engine = notified();
    let calls = trace(&mut engine, 2..1_109, nothing, 100);
    let reading = |ms: u64| [(ms, "place"), (ms, "fetch")];
    let read_mark = |ms: u64| [(ms, "read_mark"), (ms, "place"), (ms, "fetch")];
    let ask_and_read_mark = |ms: u64| [(ms, "ask"), (ms, "read_mark"), (ms, "place"), (ms, "fetch")];
    let mut expected = reading(2).to_vec();
    expected.extend([6, 10, 18].map(read_mark).concat());
    expected.extend([(34, "announce"), (34, "ask")]);
    expected.extend([59, 84, 109].map(ask_and_read_mark).concat());
    assert_eq!(calls, expected, "and then nothing, up to `poll` behind the last reading");
    assert_eq!(engine.wake_at(at(1_108)), at(1_109));
    assert_eq!(trace(&mut engine, 1_109..2_109, nothing, 100), reading(1_109), "asleep it reads once a poll");
}

#[test]
fn with_nobody_else_at_work_it_reads_once_more_and_sleeps() {
    let mut engine = notified();
    let calls = trace(&mut engine, 2..=1_000, nothing, 0);
    assert_eq!(calls[calls.len() - 4..], [(34, "announce"), (34, "ask"), (34, "place"), (34, "fetch")]);
}

#[test]
fn a_notification_ends_the_sleep_in_the_same_turn() {
    let mut engine = asleep();
    engine.on(EngineInput::Woken, at(200));
    let calls = trace(&mut engine, 200..=232, nothing, 0);
    assert_eq!(calls[..2], [(200, "place"), (200, "fetch")]);
    assert_eq!((of(&calls, "read_mark"), of(&calls, "announce")), (vec![204, 208, 216], vec![232]));
}

#[test]
fn a_finding_ends_the_sleep_whatever_led_to_it() {
    let mut engine = asleep();
    engine.on(EngineInput::ReadSoon, at(200));
    let mut first = Some(run(1, HOLD, 1..=1, 1));
    let calls = trace(&mut engine, 200..=300, |_| first.take().into_iter().collect(), 0);
    assert_eq!(calls[..2], [(200, "place"), (200, "fetch")]);
    assert_eq!(of(&calls, "announce"), [232], "the next sleep is announced again");
    // While the transactions are open that may not have seen it.
    let mut engine = notified();
    let mut first = Some(run(1, HOLD, 1..=1, 1));
    let found = |ms: u64| if ms == 84 { first.take().into_iter().collect() } else { Vec::new() };
    let calls = trace(&mut engine, 2..=200, found, 500);
    assert_eq!(of(&calls, "announce"), [34, 116]);
    assert_eq!(of(&calls, "ask"), [34, 59, 84, 116, 141, 166, 191]);
}

#[test]
fn an_announcement_that_was_answered_before_it_was_known_is_made_again() {
    let mut engine = notified();
    trace(&mut engine, 2..=33, nothing, 0);
    assert_eq!(engine.next(at(34)), [EngineAction::FallAsleep]);
    engine.on(EngineInput::Woken, at(35));
    let calls = trace(&mut engine, 35..=36, nothing, 0);
    assert_eq!(calls, [(35, "place"), (35, "fetch")]);
    engine.on(EngineInput::FellAsleep(Some(TICKET)), at(37));
    let calls = trace(&mut engine, 37..=100, nothing, 0);
    assert_eq!((of(&calls, "announce"), of(&calls, "ask")), (vec![67], vec![67]), "{calls:?}");
}

/// Its answer may take long: it polls as often as one that is awake.
#[test]
fn a_store_that_hangs_delays_no_poll() {
    let mut engine = notified();
    trace(&mut engine, 2..=33, nothing, 0);
    assert_eq!(engine.next(at(34)), [EngineAction::FallAsleep]);
    let calls = trace(&mut engine, 35..=200, nothing, 0);
    assert_eq!(of(&calls, "read_mark"), [59, 84, 109, 134, 159, 184]);
    engine.on(EngineInput::FellAsleep(Some(TICKET)), at(201));
    assert_eq!(engine.next(at(201)), [EngineAction::AskEnded(TICKET)]);
    assert_eq!(of(&trace(&mut engine, 202..=300, nothing, 0), "read_mark"), [226, 251, 276]);
}

#[test]
fn after_a_failure_it_polls_as_if_there_were_no_notifications_and_tries_again_later() {
    let mut engine = notified();
    trace(&mut engine, 2..=33, nothing, 0);
    assert_eq!(engine.next(at(34)), [EngineAction::FallAsleep]);
    engine.on(EngineInput::Failed(StoreCall::Sleep), at(34));
    let calls = trace(&mut engine, 34..10_034, nothing, 0);
    assert_eq!(calls[..2], [(34, "place"), (34, "fetch")]);
    assert_eq!(of(&calls, "read_mark")[..6], [59, 109, 209, 409, 809, 1_609]);
    assert!(of(&calls, "announce").is_empty(), "{calls:?}");
    assert_eq!(of(&trace(&mut engine, 10_034..10_100, nothing, 0), "announce").len(), 1);
}

#[test]
fn without_notifications_nothing_is_announced() {
    let mut engine = holding(options(), SinkLimits::default());
    assert!(of(&trace(&mut engine, 2..5_000, nothing, 0), "announce").is_empty());
    // They have failed.
    let mut engine = asleep();
    engine.on(EngineInput::NotificationsLost, at(200));
    let calls = trace(&mut engine, 200..2_000, nothing, 0);
    assert_eq!(calls[..2], [(200, "place"), (200, "fetch")], "one may have been missed");
    assert_eq!((of(&calls, "read_mark")[..3].to_vec(), of(&calls, "announce")), (vec![225, 275, 375], vec![]));
    engine.on(EngineInput::Woken, at(2_000));
    assert_eq!(of(&trace(&mut engine, 2_000..2_100, nothing, 0), "announce"), [2_032], "they arrive again");
    // The store always sends them.
    let mut engine = notified();
    trace(&mut engine, 2..=33, nothing, 0);
    assert_eq!(engine.next(at(34)), [EngineAction::FallAsleep]);
    engine.on(EngineInput::FellAsleep(None), at(34));
    engine.on(EngineInput::Woken, at(100));
    let calls = trace(&mut engine, 100..2_900, nothing, 0);
    assert_eq!((calls[1], of(&calls, "announce")), ((100, "fetch"), vec![]));
}

#[test]
fn nothing_is_asked_while_events_flow_or_are_being_sent() {
    let mut engine = notified();
    let mut last = 0;
    let found = |ms: u64| {
        if ms < last + 10 {
            return Vec::new();
        }
        last = ms;
        vec![run(i64::try_from(ms).unwrap(), HOLD, 1..=1, 1)]
    };
    let calls = trace(&mut engine, 2..=2_500, found, 0);
    assert!(of(&calls, "announce").is_empty(), "{calls:?}");
    let mut engine = notified();
    assert!(engine.next(at(2)).iter().any(|action| matches!(action, EngineAction::Fetch(_))));
    engine.on(EngineInput::Placed(0), at(2));
    engine.on(EngineInput::Fetched(FetchResult { runs: vec![run(1, HOLD, 1..=1, 1)], resume: None, more: false }), at(2));
    assert!(engine.next(at(2)).iter().any(|action| matches!(action, EngineAction::Send { .. })));
    let calls = trace(&mut engine, 3..=1_100, nothing, 0);
    assert_eq!(of(&calls, "announce").len(), 1, "a destination that hangs keeps it awake for no longer than a second: {calls:?}");
    assert!(of(&calls, "announce")[0] >= 1_000);
}

#[test]
fn a_publisher_without_slots_announces_nothing() {
    let mut engine = notified();
    engine.on(EngineInput::Wanted { slots: shardwise::SlotSet::empty(4), until: None }, at(2));
    let released = engine.next(at(2));
    assert!(released.contains(&EngineAction::Release(vec![HOLD])), "{released:?}");
    engine.on(EngineInput::Released, at(2));
    engine.on(EngineInput::Placed(0), at(2));
    let calls = trace(&mut engine, 3..=500, nothing, 0);
    assert_eq!((of(&calls, "announce"), of(&calls, "fetch")), (vec![], vec![]));
    assert!(of(&calls, "read_mark").len() <= 500 / 25 + 5);
}

#[test]
fn it_withdraws_its_announcement_before_it_leaves() {
    let mut engine = asleep();
    engine.on(EngineInput::Stop { by: at(10_000) }, at(200));
    assert_eq!(engine.next(at(200)), [EngineAction::Release(vec![HOLD]), EngineAction::Withdraw(TICKET)]);
    engine.on(EngineInput::Released, at(201));
    assert_eq!(engine.next(at(201)), []);
    engine.on(EngineInput::Failed(StoreCall::Sleep), at(202));
    assert_eq!(engine.next(at(202)), [EngineAction::Leave], "once, and whatever came of it");
}

mod model;
