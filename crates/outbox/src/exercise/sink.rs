//! Sink suite, by the clauses of [`Sink`]; for destinations that are servers also: too large, restarted, no answer, wrong credentials.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::{SinkHarness, deliveries};
use crate::sink::Acceptance;
use crate::{AggregateId, Delivery, Payload, Sink};

/// The longest time that a step may take on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);
/// How long to wait for a call whose answer is lost.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(2);
const AGGREGATES: AggregateId = 5;

type Arrivals = Vec<(String, u64, String)>;

/// Runs every case of the sink suite, each on a fresh destination.
pub async fn sink<H: SinkHarness, F: Future<Output = H>>(fresh: impl Fn() -> F) {
    batches_arrive_in_order(&fresh().await).await;
    odd_events_arrive(&fresh().await).await;
    two_processes_lose_nothing_and_keep_each_ones_order(&fresh().await).await;
    a_dropped_call_leaves_it_usable(&fresh().await).await;
    if fresh().await.server().is_none() {
        return;
    }
    what_is_too_large_is_refused_for_good_and_stops_only_its_aggregate(&fresh().await).await;
    a_restart_in_the_middle_loses_nothing_and_keeps_the_order(&fresh().await).await;
    what_was_not_acknowledged_is_sent_again_under_the_same_id(&fresh().await).await;
    what_is_replayed_arrives_beside_what_it_repeats(&fresh().await).await;
    a_stranger_learns_what_to_do(&fresh().await).await;
}

fn expected(events: &[Delivery]) -> Arrivals {
    events.iter().map(|event| (event.key(), event.sequence, event.id.clone())).collect()
}

async fn batches_arrive_in_order(harness: &impl SinkHarness) {
    let sink = harness.open().await;
    let events: Vec<_> = deliveries("a", 1, 50).into_iter().chain(deliveries("b", 1, 50)).collect();
    for batch in events.chunks(30) {
        assert_eq!(sink.deliver(batch.into()).await, Acceptance::all(batch), "clause 1: a whole batch is accepted");
        let (arrived, done) = (harness.arrived().await, batch.last().map(|event| event.id.clone()));
        assert_eq!(arrived.last().map(|event| event.2.clone()), done, "clause 2: accepted means that a consumer sees it");
    }
    assert_eq!(harness.arrived().await, expected(&events), "clause 1: in the order of the batches");
}

async fn odd_events_arrive(harness: &impl SinkHarness) {
    let sink = harness.open().await;
    let payloads: [Payload; 8] = [
        Payload::None,
        "".into(),
        "{\n\"a\":\r\n1}".into(),
        "not json\n".into(),
        "\0".into(),
        "\u{2028}\u{fffd}".into(),
        vec![0, 0xff, b'\n'].into(),
        "x".repeat(1_048_576).into(),
    ];
    let mut batch = deliveries("a / \"ü\n", 1, payloads.len() as u64);
    batch.iter_mut().zip(payloads).for_each(|(event, payload)| event.payload = payload);
    batch[0].headers = Some(r#"{"traceparent":"00-1-2-01","X-Odd":{"deep":["\n"]}}"#.into());
    assert_eq!(sink.deliver(batch.clone().into()).await, Acceptance::all(&batch));
    assert_eq!(harness.arrived().await, expected(&batch));
}

async fn two_processes_lose_nothing_and_keep_each_ones_order(harness: &impl SinkHarness) {
    let (one, two) = (harness.open().await, harness.open().await);
    let send = async |sink: &dyn Sink, name: &str| {
        for from in (1..=200).step_by(10) {
            let batch = deliveries(name, from, 10);
            assert_eq!(sink.deliver(batch.clone().into()).await, Acceptance::all(&batch));
        }
    };
    futures::join!(send(&*one, "a"), send(&*two, "b"));
    let mut by_key: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (key, sequence, _) in harness.arrived().await {
        by_key.entry(key).or_default().push(sequence);
    }
    let all: Vec<u64> = (1..=200).collect();
    assert_eq!(by_key.into_values().collect::<Vec<_>>(), [all.clone(), all]);
}

async fn a_dropped_call_leaves_it_usable(harness: &impl SinkHarness) {
    let sink = harness.open().await;
    drop(timeout(Duration::ZERO, sink.deliver(deliveries("a", 1, 1_000).into())).await);
    let batch = deliveries("b", 1, 10);
    let deadline = Instant::now() + Duration::from_secs(10);
    // The cancelled call may still be under way; the sink then asks the next call to retry.
    while sink.deliver(batch.clone().into()).await != Acceptance::all(&batch) {
        assert!(Instant::now() < deadline, "clause 4: still not usable after 10 s");
        sleep(Duration::from_millis(5)).await;
    }
    let arrived = harness.arrived().await;
    let (of_a, of_b): (Arrivals, Arrivals) = arrived.into_iter().partition(|(key, ..)| key == "order/a");
    assert_eq!(of_b, expected(&batch));
    assert_eq!(of_a, expected(&deliveries("a", 1, of_a.len() as u64)), "clause 4: what was begun arrives as a prefix");
}

fn interleaved(from: u64, events: u64) -> Vec<Delivery> {
    let of = |aggregate: AggregateId| {
        let events = deliveries(&format!("agg-{aggregate}"), from, events).into_iter();
        events.map(move |event| Delivery { aggregate, ..event }).collect::<Vec<_>>()
    };
    let aggregates: Vec<_> = (1..=AGGREGATES).map(of).collect();
    (0..aggregates[0].len()).flat_map(|turn| aggregates.iter().map(move |events| events[turn].clone())).collect()
}

/// The events of a batch that must be sent again after this answer.
fn rest(batch: &[Delivery], answer: &Acceptance) -> Vec<Delivery> {
    let mut left: BTreeMap<AggregateId, usize> = answer.apart.iter().map(|(aggregate, (events, _))| (*aggregate, *events)).collect();
    let accepted = |index: usize, event: &Delivery, left: &mut BTreeMap<AggregateId, usize>| match left.get_mut(&event.aggregate) {
        Some(0) => false,
        Some(events) => {
            *events -= 1;
            true
        }
        None => index < answer.events,
    };
    batch.iter().enumerate().filter(|(index, event)| !accepted(*index, event, &mut left)).map(|(_, event)| event.clone()).collect()
}

async fn send_until_accepted(sink: &dyn Sink, mut batch: Vec<Delivery>) {
    let begun = Instant::now();
    let mut last = None;
    while !batch.is_empty() {
        assert!(begun.elapsed() < PATIENCE, "still not accepted after {PATIENCE:?}; last: {last:?}");
        if let Ok(answer) = timeout(PATIENCE, sink.deliver(batch.clone().into())).await {
            batch = rest(&batch, &answer);
            if let Some(refusal) = answer.refusals().next() {
                assert!(!refusal.permanent, "refused for good: {refusal}");
                last = Some(refusal.clone());
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Each aggregate's sequences as seen by a consumer that drops repetitions.
fn first_deliveries(arrived: Arrivals) -> BTreeMap<String, Vec<u64>> {
    let mut by_key: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (key, sequence, id) in arrived {
        assert!(id.ends_with(&format!("-{sequence}")), "a repetition has the same id");
        let seen = by_key.entry(key).or_default();
        if !seen.contains(&sequence) {
            seen.push(sequence);
        }
    }
    by_key
}

fn assert_in_order(arrived: Arrivals, events: u64) {
    let by_key = first_deliveries(arrived);
    assert_eq!(by_key.len() as u64, AGGREGATES.cast_unsigned());
    for (key, sequences) in by_key {
        assert_eq!(sequences, (1..=events).collect::<Vec<_>>(), "{key}");
    }
}

async fn what_is_too_large_is_refused_for_good_and_stops_only_its_aggregate(harness: &impl SinkHarness) {
    let (sink, server) = (harness.open().await, harness.server().unwrap());
    let mut batch = interleaved(1, 3);
    let large = batch.iter().position(|event| (event.aggregate, event.sequence) == (3, 2)).unwrap();
    batch[large].payload = vec![b'x'; server.too_large()].into();
    let answer = sink.deliver(batch.clone().into()).await;
    assert!(answer.refusals().all(|refusal| refusal.permanent), "{answer:?}");
    let left = rest(&batch, &answer);
    assert_eq!((left[0].aggregate, left[0].sequence), (3, 2), "the one that is too large is the first that is left");
    let others: Vec<_> = left.into_iter().filter(|event| event.aggregate != 3).collect();
    send_until_accepted(&*sink, others).await;
    let mut by_key = first_deliveries(harness.arrived().await);
    assert_eq!(by_key.remove("order/agg-3"), Some(vec![1]), "nothing behind it was tried");
    assert!(by_key.values().all(|sequences| *sequences == [1, 2, 3]), "{by_key:?}");
}

async fn a_restart_in_the_middle_loses_nothing_and_keeps_the_order(harness: &impl SinkHarness) {
    const EVENTS: u64 = 40;
    let (sink, server) = (harness.open().await, harness.server().unwrap());
    let send = async {
        for from in (1..=EVENTS).step_by(2) {
            send_until_accepted(&*sink, interleaved(from, 2)).await;
        }
    };
    let restart = async {
        let begun = Instant::now();
        while harness.arrived().await.len() < 20 {
            assert!(begun.elapsed() < PATIENCE, "20 events have not arrived within {PATIENCE:?}");
            sleep(Duration::from_millis(2)).await;
        }
        server.restart().await;
    };
    futures::join!(send, restart);
    assert_in_order(harness.arrived().await, EVENTS);
}

async fn what_was_not_acknowledged_is_sent_again_under_the_same_id(harness: &impl SinkHarness) {
    let (sink, server) = (harness.open().await, harness.server().unwrap());
    send_until_accepted(&*sink, interleaved(1, 1)).await;
    server.lose_answers(true).await;
    let batch = interleaved(2, 3);
    let answer = timeout(GIVEN_UP_AFTER, sink.deliver(batch.clone().into())).await;
    assert!(answer.is_err() || answer.is_ok_and(|answer| rest(&batch, &answer).len() == batch.len()), "accepted without an answer");
    server.lose_answers(false).await;
    send_until_accepted(&*sink, batch).await;
    let arrived = harness.arrived().await;
    if server.drops_repeats() {
        assert_eq!(arrived.len() as u64, 4 * AGGREGATES.cast_unsigned(), "{arrived:?}");
    }
    assert_in_order(arrived, 4);
}

/// A destination that drops repetitions must not take a replay for one.
async fn what_is_replayed_arrives_beside_what_it_repeats(harness: &impl SinkHarness) {
    let (sink, drops_repeats) = (harness.open().await, harness.server().unwrap().drops_repeats());
    let events = deliveries("a", 1, 2);
    let replays: Vec<_> = [3, 4].map(|sequence| Delivery { sequence, replayed: Some(1), ..events[0].clone() }).into();
    for batch in [&events, &replays] {
        send_until_accepted(&*sink, batch.clone()).await;
    }
    let arrived: Vec<_> = harness.arrived().await.into_iter().map(|(_, sequence, id)| (sequence, id)).collect();
    let expected = [(1, "a-1"), (2, "a-2"), (3, "a-1"), (4, "a-1")].map(|(sequence, id)| (sequence, id.to_owned()));
    assert_eq!(arrived, expected, "under its own id, each time anew");
    // A replay other than the last one, and the last one, are repeated.
    send_until_accepted(&*sink, replays).await;
    let again = if drops_repeats { 0 } else { 2 };
    assert_eq!(harness.arrived().await.len(), expected.len() + again, "a replay's own repetition is one");
}

async fn a_stranger_learns_what_to_do(harness: &impl SinkHarness) {
    let Some(stranger) = harness.server().unwrap().open_as_stranger().await else { return };
    let error = stranger.check().await.unwrap_err();
    assert!(!error.is_retryable(), "{error}");
    assert!(error.to_string().contains("correct"), "says what to do: {error}");
    // Wrong credentials are not the event's fault.
    let answer = stranger.deliver(interleaved(1, 1).into()).await;
    assert!(answer.refusals().all(|refusal| !refusal.permanent) && answer.refusals().next().is_some(), "{answer:?}");
    assert!(harness.arrived().await.is_empty());
}
