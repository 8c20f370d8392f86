//! Store suite: events, by the clauses of [`Store`].

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::StoreHarness;
use super::fence::{TTL, joined, take};
use crate::store::{EventRun, FetchRequest, FetchResult, HeadUpdate, Hold, Outcome, PublisherRegistration, Store, SweepResult};
use crate::{NewEvent, Payload};

const SLOTS: u32 = 8;

pub(super) async fn all<H: StoreHarness, F: Future<Output = H>>(fresh: &impl Fn() -> F) {
    events_come_in_order_with_everything_they_carry(&fresh().await).await;
    only_held_slots_are_read(&fresh().await).await;
    limits_cut_and_the_cursor_goes_round(&fresh().await).await;
    large_events_come_whole_and_only_as_far_as_they_fit(&fresh().await).await;
    a_limit_of_bytes_passes_no_aggregate_over(&fresh().await).await;
    what_is_recorded_is_not_read_again(&fresh().await).await;
    a_fenced_publisher_records_nothing(&fresh().await).await;
    recording_twice_is_harmless(&fresh().await).await;
    what_is_recorded_late_changes_nothing_newer(&fresh().await).await;
    a_retry_waits_and_remembers(&fresh().await).await;
    what_was_put_off_has_not_failed(&fresh().await).await;
    a_blocked_aggregate_waits_for_the_operator(&fresh().await).await;
    a_parked_event_is_set_aside(&fresh().await).await;
    for retention in [Duration::ZERO, Duration::from_millis(1)] {
        delivered_events_are_swept_and_others_are_not(&fresh().await, retention).await;
    }
    the_mark_changes_with_every_insert(&fresh().await).await;
    events_in_slots_that_no_living_publisher_holds_are_counted(&fresh().await).await;
}

fn event(id: &str, number: usize) -> NewEvent {
    NewEvent::new("order", id, "OrderChanged", format!("{{\"n\":{number}}}")).with_id(format!("{id}-{number}"))
}

pub(super) fn events(id: &str, count: usize) -> Vec<NewEvent> {
    (1..=count).map(|number| event(id, number)).collect()
}

fn request() -> FetchRequest {
    FetchRequest { after: None, events_max: 1_000, bytes_max: 1 << 20, except_slots: vec![], except_aggregates: vec![] }
}

/// A publisher that holds every slot of an outbox whose aggregates have their hashes.
pub(super) async fn owner(harness: &impl StoreHarness) -> (Arc<dyn Store>, PublisherRegistration) {
    let (store, me) = joined(harness, 1, SLOTS).await;
    take(&*store, &me, 0..SLOTS).await;
    place(&*store).await;
    (store, me)
}

/// The same, with the events of one aggregate read.
pub(super) async fn one_run(harness: &impl StoreHarness, events: Vec<NewEvent>) -> (Arc<dyn Store>, PublisherRegistration, EventRun) {
    harness.insert(events).await;
    let (store, me) = owner(harness).await;
    let run = fetch(&*store, &me).await.remove(0);
    (store, me, run)
}

async fn place(store: &dyn Store) {
    while store.place_new(2).await.unwrap() > 0 {}
}

pub(super) async fn fetch(store: &dyn Store, me: &PublisherRegistration) -> Vec<EventRun> {
    place(store).await;
    store.fetch(me, &request()).await.unwrap().runs
}

pub(super) fn outcome(run: &EventRun, through: Option<u64>, then: HeadUpdate) -> Outcome {
    Outcome { aggregate: run.aggregate, hold: run.hold, through, then }
}

/// The sequence of the run's n-th event, from 1: sequences rise, and may jump.
pub(super) fn nth(run: &EventRun, n: usize) -> u64 {
    run.events[n - 1].sequence
}

pub(super) fn ids(runs: &[EventRun]) -> Vec<&str> {
    runs.iter().flat_map(|run| &run.events).map(|event| event.id.as_str()).collect()
}

async fn events_come_in_order_with_everything_they_carry(harness: &impl StoreHarness) {
    let full = NewEvent::new("order", "ü/1", "OrderPlaced", vec![0u8, 0xff]).with_id("first").with_header("traceparent", "00-1");
    let empty = NewEvent { payload: Payload::None, ..event("ü/1", 2) };
    let odd = if harness.text_may_have_nul() { "\0 text" } else { "\u{1} \\ text" };
    harness.insert(vec![full, empty, NewEvent::new("order", "ü/1", "OrderPaid", odd)]).await;
    let (store, me) = owner(harness).await;
    let runs = fetch(&*store, &me).await;
    assert_eq!(runs.len(), 1);
    let (run, events) = (&runs[0], &runs[0].events);
    assert!(nth(run, 1) >= 1 && events.is_sorted_by(|one, next| one.sequence < next.sequence), "{events:?}");
    assert_eq!((events.len(), run.through, run.more), (3, nth(run, 3), false));
    assert_eq!((events[0].id.as_str(), events[0].key().as_str(), events[0].event_type.as_str()), ("first", "order/ü/1", "OrderPlaced"));
    assert_eq!(events[0].headers.as_deref(), Some(r#"{"traceparent":"00-1"}"#));
    let payloads: Vec<_> = events.iter().map(|event| event.payload.clone()).collect();
    assert_eq!(payloads, [vec![0u8, 0xff].into(), Payload::None, odd.into()]);
    assert!(events.iter().all(|event| (event.slot, event.epoch) == (run.hold.slot, run.hold.epoch)));
    let hash = shardwise::ShardKey::key_hash("order/ü/1");
    assert_eq!(run.hold.slot, shardwise::slot_of(hash, SLOTS), "the slot is protocol 1's");
    assert!(!events[2].id.is_empty(), "an id is drawn");
}

async fn only_held_slots_are_read(harness: &impl StoreHarness) {
    let all: Vec<NewEvent> = (0..64).map(|n| event(&n.to_string(), 1)).collect();
    harness.insert(all).await;
    let ((one, a), (two, b)) = (joined(harness, 1, SLOTS).await, joined(harness, 2, SLOTS).await);
    take(&*one, &a, 0..3).await;
    take(&*two, &b, 3..SLOTS).await;
    assert!(fetch(&*one, &a).await.iter().all(|run| run.hold.slot < 3));
    assert_eq!(fetch(&*one, &a).await.len() + fetch(&*two, &b).await.len(), 64, "every aggregate is somebody's");
    let except = FetchRequest { except_slots: vec![0, 1], ..request() };
    assert!(one.fetch(&a, &except).await.unwrap().runs.iter().all(|run| run.hold.slot == 2));
    let mine = fetch(&*one, &a).await;
    let except = FetchRequest { except_aggregates: mine.iter().skip(1).map(|run| run.aggregate).collect(), ..request() };
    assert_eq!(one.fetch(&a, &except).await.unwrap().runs, mine[..1]);
}

async fn limits_cut_and_the_cursor_goes_round(harness: &impl StoreHarness) {
    harness.insert((0..20).flat_map(|n| events(&n.to_string(), 3)).collect()).await;
    let (store, me) = owner(harness).await;
    let (mut after, mut seen) = (None, Vec::new());
    for _ in 0..20 {
        let FetchResult { runs, resume, .. } = store.fetch(&me, &FetchRequest { after, events_max: 3, ..request() }).await.unwrap();
        assert_eq!(runs.iter().map(|run| run.events.len()).sum::<usize>(), 3);
        seen.extend(runs.iter().map(|run| run.aggregate));
        after = resume;
        assert!(after.is_some(), "a limit cut it short");
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 20, "one turn reads every aggregate once");
    let one = store.fetch(&me, &FetchRequest { bytes_max: 1, ..request() }).await.unwrap();
    assert_eq!(ids(&one.runs).len(), 1, "one event is read in any case");
    let partly = store.fetch(&me, &FetchRequest { events_max: 2, ..request() }).await.unwrap();
    assert_eq!((partly.runs[0].through, partly.runs[0].more), (nth(&partly.runs[0], 2), true));
    assert_eq!(store.fetch(&me, &request()).await.unwrap().resume, None, "nothing is left to read");
}

async fn large_events_come_whole_and_only_as_far_as_they_fit(harness: &impl StoreHarness) {
    const LARGE: usize = 100_000;
    let mut written = Vec::new();
    for (number, mut event) in events("a", 6).into_iter().enumerate() {
        event.payload = match number {
            1 => Payload::Text(format!("\"{}\"", "é".repeat(LARGE / 2))),
            2 => Payload::Binary(vec![7; LARGE]),
            4 => Payload::Text(format!("[{}1]", "1,".repeat(LARGE / 2))),
            _ => event.payload,
        };
        written.push(if number == 3 { event.with_header("large", "h".repeat(60_000)) } else { event });
    }
    harness.insert(written.clone()).await;
    let (store, me) = owner(harness).await;
    for events_max in [6, 1_000] {
        let runs = store.fetch(&me, &FetchRequest { events_max, ..request() }).await.unwrap().runs;
        assert_eq!(runs.len(), 1);
        let run = &runs[0];
        // Where the limit is reached with the last event, there may be more.
        assert_eq!((run.through, run.more && events_max > 6, run.events.len()), (nth(run, 6), false, 6));
        for (read, written) in run.events.iter().zip(&written) {
            assert_eq!(read.payload, written.payload, "{}", read.id);
            assert_eq!(read.headers.as_ref().map_or(2, String::len) > 60_000, read.id == "a-4", "{}", read.id);
        }
    }
    // The event that reaches the limit is still returned.
    for (bytes_max, whole) in [(1, 1), (1_000, 2), (LARGE + 1_000, 3), (2 * LARGE + 1_000, 4), (2 * LARGE + 70_000, 5), (4 * LARGE, 6)] {
        let fetched = store.fetch(&me, &FetchRequest { bytes_max, ..request() }).await.unwrap();
        let run = &fetched.runs[0];
        assert_eq!((run.events.len(), run.through), (whole, nth(run, whole)), "of {bytes_max} bytes");
        assert!(run.more || whole == 6, "of {bytes_max} bytes");
        assert_eq!(fetched.resume.is_some(), whole < 6, "of {bytes_max} bytes");
        assert_eq!(run.events.last().map(|event| &event.payload), written.get(whole - 1).map(|event| &event.payload));
    }
}

async fn a_limit_of_bytes_passes_no_aggregate_over(harness: &impl StoreHarness) {
    let mut written = (0..12).flat_map(|n| events(&n.to_string(), 4)).collect::<Vec<_>>();
    for (number, event) in written.iter_mut().enumerate().filter(|(number, _)| number % 3 == 0) {
        event.payload = Payload::Text(format!("\"{}\"", number.to_string().repeat(20_000)));
    }
    harness.insert(written.clone()).await;
    let (store, me) = owner(harness).await;
    let whole = |runs: &[EventRun]| {
        for event in runs.iter().flat_map(|run| &run.events) {
            let written = written.iter().find(|written| written.id.as_deref() == Some(&event.id)).map(|written| &written.payload);
            assert_eq!(Some(&event.payload), written, "{}", event.id);
        }
    };
    let all = store.fetch(&me, &FetchRequest { bytes_max: 16 << 20, ..request() }).await.unwrap();
    assert_eq!((all.runs.len(), ids(&all.runs).len(), all.resume), (12, 48, None));
    whole(&all.runs);
    let (mut after, mut seen, mut readings) = (None, std::collections::BTreeSet::new(), 0);
    let mut first = None;
    while readings < 40 {
        let FetchResult { runs, resume, .. } = store.fetch(&me, &FetchRequest { after, bytes_max: 90_000, ..request() }).await.unwrap();
        whole(&runs);
        assert!(!runs.is_empty() && resume.is_some(), "more than the limit is pending");
        // Whatever was not returned before the first aggregate comes again was skipped.
        let around = first.is_some_and(|first| runs.iter().any(|run| run.aggregate == first));
        first = first.or(Some(runs[0].aggregate));
        seen.extend(runs.iter().map(|run| run.aggregate));
        (after, readings) = (resume, readings + 1);
        if around {
            break;
        }
    }
    assert_eq!(seen.len(), 12, "{readings} readings");
}

async fn what_is_recorded_is_not_read_again(harness: &impl StoreHarness) {
    harness.insert([events("a", 3), events("b", 2)].concat()).await;
    let (store, me) = owner(harness).await;
    let runs = fetch(&*store, &me).await;
    let (of_a, of_b): (Vec<_>, Vec<_>) = runs.iter().partition(|run| run.events[0].aggregate_id == "a");
    assert_eq!(store.record(&me, &[outcome(of_a[0], Some(nth(of_a[0], 2)), HeadUpdate::Next)], false).await.unwrap(), []);
    let mut left = ids(&fetch(&*store, &me).await).into_iter().map(str::to_owned).collect::<Vec<_>>();
    left.sort_unstable();
    assert_eq!(left, ["a-3", "b-1", "b-2"]);
    assert_eq!(store.record(&me, &[outcome(of_b[0], Some(nth(of_b[0], 2)), HeadUpdate::Next)], true).await.unwrap(), []);
    assert_eq!(ids(&fetch(&*store, &me).await), ["a-3"]);
    harness.insert(vec![event("b", 3)]).await;
    let runs = fetch(&*store, &me).await;
    let b = runs.iter().find(|run| run.events[0].aggregate_id == "b").unwrap();
    assert!(nth(b, 1) > nth(of_b[0], 2), "the sequence goes on although the delivered events are deleted");
    assert_eq!(store.status().await.unwrap().pending, 2);
}

async fn a_fenced_publisher_records_nothing(harness: &impl StoreHarness) {
    let (one, a, stale) = one_run(harness, events("a", 3)).await;
    harness.advance(TTL + Duration::from_secs(1)).await;
    let (two, b) = joined(harness, 2, SLOTS).await;
    take(&*two, &b, 0..SLOTS).await;
    for then in [
        HeadUpdate::Next,
        HeadUpdate::Retry { sequence: nth(&stale, 2), attempts: 1, failures: 1, retry_in: TTL, error: "late".into() },
        HeadUpdate::Block { sequence: nth(&stale, 2), attempts: 1, error: "late".into() },
        HeadUpdate::Park { sequence: nth(&stale, 1), error: "late".into() },
    ] {
        for delete in [false, true] {
            let late = [outcome(&stale, Some(nth(&stale, 1)), then.clone())];
            assert_eq!(one.record(&a, &late, delete).await.unwrap(), [stale.hold], "clause 4: {then:?}");
        }
    }
    assert!(fetch(&*one, &a).await.is_empty());
    let now = fetch(&*two, &b).await;
    assert_eq!(ids(&now), ["a-1", "a-2", "a-3"], "clause 4: nothing was written");
    assert_eq!(now[0].trouble, crate::store::HeadTrouble::default());
    let status = two.status().await.unwrap();
    assert_eq!((status.pending, status.parked, status.blocked_aggregates), (3, 0, 0));
    let right = Hold { epoch: stale.hold.epoch, ..now[0].hold };
    let forged = Outcome { hold: right, ..outcome(&now[0], Some(nth(&now[0], 1)), HeadUpdate::Next) };
    assert_eq!(two.record(&b, &[forged], false).await.unwrap(), [right], "clause 4: the right publisher, an old epoch");
}

async fn recording_twice_is_harmless(harness: &impl StoreHarness) {
    let (store, me, run) = one_run(harness, events("a", 3)).await;
    for _ in 0..2 {
        assert_eq!(store.record(&me, &[outcome(&run, Some(nth(&run, 2)), HeadUpdate::Next)], false).await.unwrap(), []);
        assert_eq!(ids(&fetch(&*store, &me).await), ["a-3"]);
    }
}

/// A call that was given up may be executed long after it was repeated and its result was changed.
async fn what_is_recorded_late_changes_nothing_newer(harness: &impl StoreHarness) {
    for delete in [false, true] {
        let (store, me, run) = one_run(harness, events(&format!("late{delete}"), 4)).await;
        let retry = |failures| HeadUpdate::Retry {
            sequence: nth(&run, 2),
            attempts: failures,
            failures,
            retry_in: Duration::from_mins(10),
            error: "503".into(),
        };
        let mark = outcome(&run, Some(nth(&run, 1)), HeadUpdate::Next);
        let (first, second) = (outcome(&run, None, retry(1)), outcome(&run, None, retry(2)));
        let both = outcome(&run, Some(nth(&run, 1)), retry(1));
        for newer in [&mark, &first, &second] {
            assert_eq!(store.record(&me, std::slice::from_ref(newer), delete).await.unwrap(), []);
        }
        for late in [&mark, &first, &both] {
            assert_eq!(store.record(&me, std::slice::from_ref(late), delete).await.unwrap(), [], "the hold is current: {late:?}");
            assert_eq!(fetch(&*store, &me).await, [], "the head still waits for its retry, {late:?} came late");
        }
        let now = HeadUpdate::Retry { sequence: nth(&run, 2), attempts: 2, failures: 2, retry_in: Duration::ZERO, error: "503".into() };
        let due = outcome(&run, None, now);
        assert_eq!(store.record(&me, &[due], delete).await.unwrap(), []);
        let head = fetch(&*store, &me).await.remove(0);
        let charged = (nth(&head, 1), head.trouble.attempts, head.trouble.failures);
        assert_eq!(charged, (nth(&run, 2), 2, 2), "what was charged is remembered");
        assert_eq!(store.record(&me, &[outcome(&run, Some(nth(&run, 4)), HeadUpdate::Next)], delete).await.unwrap(), []);
        for late in [&mark, &second, &both] {
            assert_eq!(store.record(&me, std::slice::from_ref(late), delete).await.unwrap(), []);
        }
        assert_eq!(store.status().await.unwrap().pending, 0);
    }
}

async fn a_retry_waits_and_remembers(harness: &impl StoreHarness) {
    harness.insert([events("a", 3), events("b", 1)].concat()).await;
    let (store, me) = owner(harness).await;
    let run = fetch(&*store, &me).await.into_iter().find(|run| run.events.len() == 3).unwrap();
    assert_eq!(store.status().await.unwrap().retrying, None);
    let retry = |retry_in, failures| HeadUpdate::Retry {
        sequence: nth(&run, 2),
        attempts: 2,
        failures,
        retry_in,
        error: "503\n\u{1b}[31m".repeat(failures as usize),
    };
    let long = outcome(&run, Some(nth(&run, 1)), retry(Duration::from_secs(200), 3));
    assert_eq!(store.record(&me, &[long], false).await.unwrap(), []);
    assert_eq!(ids(&fetch(&*store, &me).await), ["b-1"], "it waits, others do not");
    let retrying = store.status().await.unwrap().retrying.unwrap();
    assert_eq!((retrying.aggregates, retrying.pending, retrying.key.as_str()), (1, 2, "order/a"));
    assert_eq!(retrying.error, r"503 \u{1b}[31m503 \u{1b}[31m503 \u{1b}[31m", "one line, and safe for a terminal");
    let in_time = Duration::from_secs(100)..=Duration::from_secs(200);
    assert!(in_time.contains(&retrying.next_attempt_in) && retrying.failing_for >= retrying.failed_ago, "{retrying:?}");
    assert_eq!(store.record(&me, &[outcome(&run, None, retry(Duration::ZERO, 4))], false).await.unwrap(), []);
    let retrying = store.status().await.unwrap().retrying.unwrap();
    assert_eq!((retrying.aggregates, retrying.next_attempt_in), (1, Duration::ZERO), "it is due");
    let due = fetch(&*store, &me).await.into_iter().find(|run| run.events.first().is_some_and(|event| event.id == "a-2")).unwrap();
    assert_eq!((due.events.len(), due.through, due.more), (1, nth(&run, 2), true), "the head alone, until it is through");
    assert_eq!((due.trouble.attempts, due.trouble.failures), (2, 4));
    assert!(due.trouble.failing_for >= due.trouble.attempted_ago && due.trouble.failing_for.is_some());
    assert_eq!(store.record(&me, &[outcome(&due, Some(due.through), HeadUpdate::Next)], false).await.unwrap(), []);
    let next = fetch(&*store, &me).await.into_iter().find(|run| run.events[0].id == "a-3").unwrap();
    assert_eq!(next.trouble, crate::store::HeadTrouble::default(), "the next event starts afresh");
    assert_eq!(store.status().await.unwrap().retrying, None);
}

async fn what_was_put_off_has_not_failed(harness: &impl StoreHarness) {
    harness.insert(events("a", 1)).await;
    let (store, me) = owner(harness).await;
    for (failures, fails) in [(0, false), (0, false), (1, true)] {
        let run = fetch(&*store, &me).await.remove(0);
        let then = HeadUpdate::Retry { sequence: nth(&run, 1), attempts: 0, failures, retry_in: Duration::ZERO, error: "503".into() };
        assert_eq!(store.record(&me, &[outcome(&run, None, then)], false).await.unwrap(), []);
        let trouble = fetch(&*store, &me).await.remove(0).trouble;
        assert_eq!((trouble.failing_for.is_some(), trouble.attempted_ago.is_some()), (fails, fails), "{failures}");
        let retrying = store.status().await.unwrap().retrying.unwrap();
        assert!(retrying.failed_ago < Duration::from_hours(1) && retrying.failing_for < Duration::from_hours(1), "{retrying:?}");
    }
}

async fn a_blocked_aggregate_waits_for_the_operator(harness: &impl StoreHarness) {
    harness.insert([events("a", 3), events("b", 1)].concat()).await;
    let (store, me) = owner(harness).await;
    let run = fetch(&*store, &me).await.into_iter().find(|run| run.events.len() == 3).unwrap();
    let block = HeadUpdate::Block { sequence: nth(&run, 2), attempts: 10, error: "413 too large".into() };
    let block = outcome(&run, Some(nth(&run, 1)), block);
    assert_eq!(store.record(&me, &[block], false).await.unwrap(), []);
    assert_eq!(ids(&fetch(&*store, &me).await), ["b-1"]);
    let status = store.status().await.unwrap();
    assert_eq!((status.pending, status.blocked_aggregates), (3, 1), "what waits behind it is pending");
    let blocked = &status.blocked[0];
    assert_eq!((blocked.key.as_str(), blocked.pending, blocked.error.as_str()), ("order/a", 2, "413 too large"));
    assert_eq!(store.unblock(Some("order/b")).await.unwrap(), 0);
    assert_eq!(store.unblock(Some("order/a")).await.unwrap(), 1);
    assert_eq!(fetch(&*store, &me).await.iter().map(|run| run.events.len()).sum::<usize>(), 3);
}

async fn a_parked_event_is_set_aside(harness: &impl StoreHarness) {
    for delete in [false, true] {
        let (store, me, run) = one_run(harness, events(&format!("a{delete}"), 3)).await;
        let park = outcome(&run, Some(nth(&run, 1)), HeadUpdate::Park { sequence: nth(&run, 2), error: "422".into() });
        assert_eq!(store.record(&me, &[park], delete).await.unwrap(), []);
        let left = fetch(&*store, &me).await;
        assert_eq!(ids(&left), [format!("a{delete}-3")]);
        store.record(&me, &[outcome(&left[0], Some(nth(&run, 3)), HeadUpdate::Next)], delete).await.unwrap();
        let status = store.status().await.unwrap();
        assert_eq!((status.pending, status.parked), (0, 1 + u64::from(delete)), "a parked event is kept and is not pending");
    }
}

async fn delivered_events_are_swept_and_others_are_not(harness: &impl StoreHarness, retention: Duration) {
    harness.insert([events("a", 10), events("b", 10), events("c", 2)].concat()).await;
    let (store, me) = owner(harness).await;
    for run in fetch(&*store, &me).await {
        let then = match run.events[0].aggregate_id.as_str() {
            "a" => outcome(&run, Some(nth(&run, 10)), HeadUpdate::Next),
            "b" => outcome(&run, Some(nth(&run, 4)), HeadUpdate::Next),
            _ => outcome(&run, None, HeadUpdate::Park { sequence: nth(&run, 1), error: "422".into() }),
        };
        assert_eq!(store.record(&me, &[then], false).await.unwrap(), []);
    }
    assert_eq!(store.sweep(Duration::from_hours(1), 0, 100).await.unwrap(), SweepResult::default(), "all of it is younger than an hour");
    // An event written in this millisecond is not older than zero.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let (mut position, mut rounds) = (0, 0);
    while let Some(next) = store.sweep(retention, position, 5).await.unwrap().resume {
        (position, rounds) = (next, rounds + 1);
        assert!(rounds <= 22, "it comes to an end");
    }
    assert!(rounds >= 2, "fourteen are delivered, five at a time");
    let status = store.status().await.unwrap();
    assert_eq!((status.pending, status.parked), (7, 1));
    assert_eq!(fetch(&*store, &me).await.iter().map(|run| run.events.len()).sum::<usize>(), 7);
}

async fn the_mark_changes_with_every_insert(harness: &impl StoreHarness) {
    let (store, _) = owner(harness).await;
    let Some(before) = store.change_mark().await.unwrap() else { return };
    assert_eq!(store.change_mark().await.unwrap(), Some(before), "nothing happened");
    harness.insert(events("a", 1)).await;
    assert_ne!(store.change_mark().await.unwrap(), Some(before));
}

async fn events_in_slots_that_no_living_publisher_holds_are_counted(harness: &impl StoreHarness) {
    harness.insert((0..64).flat_map(|n| events(&n.to_string(), 2)).collect()).await;
    let store = harness.open().await;
    let seen = async || {
        let (status, backlog) = (store.status().await.unwrap(), store.backlog(1_000).await.unwrap().unwrap());
        assert_eq!((status.unpublished, status.free_slots), (backlog.unpublished, backlog.free_slots));
        (status.unpublished, status.free_slots)
    };
    assert_eq!(seen().await, (128, 0), "nobody has ever published");
    let (one, a) = joined(harness, 1, SLOTS).await;
    take(&*one, &a, 0..SLOTS / 2).await;
    place(&*store).await;
    let (two, b) = joined(harness, 2, SLOTS).await;
    take(&*two, &b, SLOTS / 2..SLOTS).await;
    assert_eq!(seen().await, (0, 0));
    let runs = fetch(&*two, &b).await;
    let theirs = 2 * runs.len() as u64;
    assert!(theirs > 0 && theirs < 128, "{theirs}");
    // One head waits for a retry; one aggregate is blocked and is reported elsewhere.
    let error = String::from("503");
    let first = [nth(&runs[0], 1), nth(&runs[1], 1)];
    let retry = HeadUpdate::Retry { sequence: first[0], attempts: 1, failures: 1, retry_in: Duration::from_mins(1), error: error.clone() };
    let block = HeadUpdate::Block { sequence: first[1], attempts: 1, error };
    two.record(&b, &[outcome(&runs[0], None, retry), outcome(&runs[1], None, block)], false).await.unwrap();
    two.leave(&b).await.unwrap();
    assert_eq!(seen().await, (theirs - 2, SLOTS / 2), "given back and taken by nobody");
    harness.advance(TTL + Duration::from_secs(1)).await;
    assert_eq!(seen().await, (126, SLOTS), "the last publisher is dead");
}
