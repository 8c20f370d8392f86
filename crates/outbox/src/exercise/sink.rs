//! Sink suite, by the clauses of [`Sink`].

mod server;

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use super::{SinkHarness, deliveries};
use crate::sink::Acceptance;
use crate::{Delivery, Payload};

type Arrivals = Vec<(String, u64, String)>;

/// Runs every case of the sink suite, each on a fresh destination.
pub async fn sink<H: SinkHarness, F: Future<Output = H>>(fresh: impl Fn() -> F) {
    batches_arrive_in_order(&fresh().await).await;
    odd_events_arrive(&fresh().await).await;
    two_processes_lose_nothing_and_keep_each_ones_order(&fresh().await).await;
    a_dropped_call_leaves_it_usable(&fresh().await).await;
    server::all(&fresh).await;
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
    let send = async |sink: &dyn crate::Sink, name: &str| {
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
    drop(tokio::time::timeout(Duration::ZERO, sink.deliver(deliveries("a", 1, 1_000).into())).await);
    let batch = deliveries("b", 1, 10);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    // The cancelled call may still be under way; the sink then asks the next call to retry.
    while sink.deliver(batch.clone().into()).await != Acceptance::all(&batch) {
        assert!(tokio::time::Instant::now() < deadline, "clause 4: still not usable after 10 s");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let arrived = harness.arrived().await;
    let (of_a, of_b): (Arrivals, Arrivals) = arrived.into_iter().partition(|(key, ..)| key == "order/a");
    assert_eq!(of_b, expected(&batch));
    assert_eq!(of_a, expected(&deliveries("a", 1, of_a.len() as u64)), "clause 4: what was begun arrives as a prefix");
}
