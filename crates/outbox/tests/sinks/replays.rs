//! Replayed events reach a destination that drops duplicates.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::stream::Config;
use shardwise_outbox::exercise::StoreHarness as _;
use shardwise_outbox::sink::NatsSink;
use shardwise_outbox::store::Signature;
use shardwise_outbox::{NewEvent, OutboxPublisher, Poison, PublisherOptions, Store as _};

use crate::common::LIMIT;
use crate::nats::{Harness, server};
use crate::shared::{Outbox, Running, TestSharding, eventually};

/// Publishes until nothing is pending.
async fn deliver(outbox: &Outbox, harness: &Harness) {
    let options = PublisherOptions { poison: Poison::Park, poll: Duration::from_millis(50), ..PublisherOptions::default() };
    let sink = NatsSink::new(harness.config()).unwrap();
    let store = outbox.store().await;
    let publisher = OutboxPublisher::new(Arc::new(store.clone()), Arc::new(sink), Arc::new(TestSharding::full("one")))
        .unwrap()
        .options(options)
        .unwrap();
    let running = Running::start(publisher);
    eventually("nothing is pending", LIMIT, async || store.status().await.unwrap().pending == 0).await;
    running.stop().await;
}

/// The stream refuses the second of three events because of its size, and accepts it later.
async fn an_aggregate_sent_again_is_in_the_stream_again(fence: bool) {
    let (outbox, harness) = (Outbox::new().await, Harness::new(server().await, fence).await);
    let context = harness.context().await;
    let limit = async |bytes| {
        let subjects = vec![format!("{}.>", harness.name)];
        context.update_stream(Config { name: harness.name.clone(), subjects, max_message_size: bytes, ..Config::default() }).await.unwrap();
    };
    limit(4_000).await;
    let event = |n: usize| {
        let payload = "x".repeat(if n == 2 { 8_000 } else { 10 });
        NewEvent::new("order", "a", "OrderChanged", payload).with_id(format!("a-{n}"))
    };
    outbox.insert_plainly((1..=3).map(event).collect()).await;
    deliver(&outbox, &harness).await;
    assert_eq!(outbox.store().await.status().await.unwrap().parked, 1);
    limit(-1).await;
    let by = Signature::new("ann", "the stream takes larger events now").unwrap();
    let resent = outbox.open_dead_letters().await.replay_aggregate("order/a", None, 10, &by).await.unwrap().unwrap();
    assert_eq!((resent.events, resent.from), (2, 4));
    deliver(&outbox, &harness).await;
    let messages = harness.messages().await;
    let header = |name: &str| {
        let of = |headers: &async_nats::HeaderMap| headers.get(name).map_or_else(String::new, |value| value.as_str().to_owned());
        messages.iter().map(|message| of(&message.headers)).collect::<Vec<_>>()
    };
    assert_eq!(header("ce-id"), ["a-1", "a-3", "a-2", "a-3"], "its own id, by which a consumer drops what it has done");
    assert_eq!(header("Nats-Msg-Id"), ["a-1", "a-3", "a-2.r4", "a-3.r5"], "the message's, by which the stream drops repetitions");
    assert_eq!(header("ce-sequence"), ["1", "3", "4", "5"]);
    assert_eq!(header("ce-replayed"), ["", "", "2", "3"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sent_again_is_in_the_stream_again() {
    an_aggregate_sent_again_is_in_the_stream_again(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sent_again_is_in_a_fenced_stream_again() {
    an_aggregate_sent_again_is_in_the_stream_again(true).await;
}
