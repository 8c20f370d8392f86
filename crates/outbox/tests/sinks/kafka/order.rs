//! Order and loss, from the database, while leaders change, brokers go away and acknowledgements are lost.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use shardwise_outbox::sink::KafkaSink;
use shardwise_outbox::{OutboxPublisher, PublisherOptions, Store as _};

use super::cluster::received;
use super::{Harness, shared_cluster};
use crate::common::LIMIT;
use crate::shared::{Outbox, Running, TestSharding, events, eventually};

const AGGREGATES: u64 = 30;
/// Turns of the writer, and events of an aggregate in each.
const TURNS: u64 = 40;
const EACH: u64 = 10;
const WRITES_EVERY_MS: u64 = 150;
const PARTITIONS: i32 = 4;
const BROKERS: i32 = 3;
/// Answers of a broker that does not take a request. The last one ends the producer.
const ANSWERS: [RDKafkaRespErr; 6] = [
    RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
    RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
    RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
    RDKafkaRespErr::RD_KAFKA_RESP_ERR__TRANSPORT,
    RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
];

/// Changes leaders, refuses requests, and loses acknowledgements, until `over` is set. Returns how often.
fn disturb(harness: &Harness, over: &AtomicBool) -> u32 {
    let pause = |ms| std::thread::sleep(Duration::from_millis(ms));
    let mut turn = 0_u32;
    while !over.load(Ordering::SeqCst) {
        let broker = i32::try_from(turn / 2).unwrap() % BROKERS + 1;
        let lead = |partition| {
            let topic = harness.topic.clone();
            harness.cluster.run(move |mock| mock.partition_leader(&topic, partition, Some(broker))).unwrap();
        };
        if turn.is_multiple_of(3) {
            // What arrives now is kept, and its answer goes down with the connection. Long enough for a turn of the writer.
            harness.cluster.run(|mock| mock.clear_request_errors(RDKafkaApiKey::Produce));
            (0..PARTITIONS).for_each(lead);
            // Until the producer has learned of it, by a request that is refused.
            pause(2 * WRITES_EVERY_MS);
            harness.cluster.run(move |mock| mock.broker_round_trip_time(broker, Duration::from_mins(1))).unwrap();
            pause(2 * WRITES_EVERY_MS);
            let down = harness.cluster.down(broker);
            harness.cluster.run(move |mock| mock.broker_round_trip_time(broker, Duration::ZERO)).unwrap();
            pause(30);
            harness.cluster.up(down);
        } else {
            lead(i32::try_from(turn).unwrap() % PARTITIONS);
            let answer = ANSWERS[turn as usize % ANSWERS.len()];
            harness.cluster.run(move |mock| mock.request_errors(RDKafkaApiKey::Produce, &[answer]));
            pause(30);
        }
        turn += 1;
    }
    harness.cluster.run(|mock| mock.clear_request_errors(RDKafkaApiKey::Produce));
    turn
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_survives_changed_leaders_and_lost_acknowledgements() {
    let cluster = shared_cluster("order", BROKERS);
    let harness = Arc::new(Harness::new(cluster, PARTITIONS));
    let outbox = Outbox::new().await;
    let store = outbox.store().await;
    let (poll, backoff) = (Duration::from_millis(50), Duration::from_millis(5));
    let options = PublisherOptions { batch: 200, max_attempts: 1_000, poll, backoff, ..PublisherOptions::default() };
    let sink = Arc::new(KafkaSink::new(harness.config()).unwrap());
    let publisher = OutboxPublisher::new(Arc::new(store.clone()), sink, Arc::new(TestSharding::full("one")));
    let running = Running::start(publisher.unwrap().options(options).unwrap());
    let over = Arc::new(AtomicBool::new(false));
    let (disturbed, until) = (Arc::clone(&harness), Arc::clone(&over));
    let disturbing = tokio::task::spawn_blocking(move || disturb(&disturbed, &until));
    for turn in 0..TURNS {
        let numbers = turn * EACH + 1..=(turn + 1) * EACH;
        outbox.insert_plainly((0..AGGREGATES).flat_map(|n| events(&n.to_string(), numbers.clone())).collect()).await;
        tokio::time::sleep(Duration::from_millis(WRITES_EVERY_MS)).await;
    }
    over.store(true, Ordering::SeqCst);
    let turns = disturbing.await.unwrap();
    eventually("all is marked", LIMIT, async || store.status().await.unwrap().pending == 0).await;
    running.stop().await;
    let status = store.status().await.unwrap();
    assert_eq!((status.blocked_aggregates, status.parked), (0, 0));
    let (brokers, topic) = (harness.cluster.brokers.clone(), harness.topic.clone());
    let all = tokio::task::spawn_blocking(move || received(&brokers, &topic, PARTITIONS)).await.unwrap();
    let (messages, mut seen, mut last) = (all.len(), HashSet::new(), BTreeMap::new());
    for message in all {
        let sequence: u64 = message.header("ce_sequence").parse().unwrap();
        if seen.insert(message.header("ce_id").to_owned()) {
            assert_eq!(last.insert(message.key.clone(), sequence).unwrap_or(0) + 1, sequence, "{} is out of order", message.key);
        }
    }
    assert_eq!(seen.len() as u64, AGGREGATES * TURNS * EACH, "lost");
    let again = messages - seen.len();
    eprintln!("{again} events came again, after {turns} disturbances");
    assert!(again > 0, "no acknowledgement was lost, so this has tested nothing");
}
