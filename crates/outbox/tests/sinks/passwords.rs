//! A user of the broker gets another password while a publisher runs.

use std::sync::Arc;
use std::time::Duration;

use shardwise_outbox::exercise::SinkHarness as _;
use shardwise_outbox::sink::{RabbitMqConfig, RabbitMqSink};
use shardwise_outbox::{ErrorKind, OutboxPublisher, PublisherOptions, Sink as _, Store as _};
use shardwise_testkit::{RabbitMq, RabbitMqOptions};

use crate::common::LIMIT;
use crate::rabbitmq::Harness;
use crate::shared::{Outbox, Running, TestSharding, events, eventually};

const ADVICE: &str = "correct the user in sink and the password in sink_password_file, and restart the publisher";

async fn publisher(outbox: &Outbox, name: &str, config: RabbitMqConfig) -> Running {
    let (poll, backoff) = (Duration::from_millis(50), Duration::from_millis(5));
    let options = PublisherOptions { poll, backoff, ..PublisherOptions::default() };
    let (store, sink, sharding) = (outbox.store().await, RabbitMqSink::new(config), TestSharding::full(name));
    let publisher = OutboxPublisher::new(Arc::new(store), Arc::new(sink), Arc::new(sharding)).unwrap();
    Running::start(publisher.options(options).unwrap())
}

/// The publisher has the password from its start, and says that it must be restarted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rabbitmq_with_another_password_is_an_outage_that_names_the_setting_until_a_publisher_has_the_new_one() {
    // Its own node: the others' tests need the password.
    let harness = Harness::new(Arc::new(RabbitMq::start(RabbitMqOptions::default()).await.unwrap())).await;
    let (outbox, former) = (Outbox::new().await, harness.config());
    let store = outbox.store().await;
    let pending = async || store.status().await.unwrap().pending;
    outbox.insert_plainly(events("a", 1..=2)).await;
    let running = publisher(&outbox, "one", former.clone()).await;
    eventually("the first events are delivered and marked", LIMIT, async || pending().await == 0).await;
    harness.rabbit.change_password("guest", "changed").await.unwrap();
    // A connection that is there may stay; the next one is refused.
    harness.hang_up().await;
    outbox.insert_plainly([events("a", 3..=4), events("b", 1..=1)].concat()).await;
    let named = || running.stats.snapshot().last_error.is_some_and(|error| error.contains(ADVICE));
    eventually("the publisher names the setting and what to do", LIMIT, async || named()).await;
    let former = RabbitMqSink::new(former);
    let denied = async || former.check().await.is_err_and(|error| error.kind() == ErrorKind::Denied && error.to_string().contains(ADVICE));
    eventually("so does a check", LIMIT, denied).await;
    let status = store.status().await.unwrap();
    assert_eq!((status.pending, status.blocked_aggregates, status.parked), (3, 0, 0), "all of them wait");
    running.stop().await;

    let running = publisher(&outbox, "two", harness.config().password("changed")).await;
    eventually("a publisher with the new password delivers them", LIMIT, async || pending().await == 0).await;
    running.stop().await;
    harness.rabbit.change_password("guest", "guest").await.unwrap();
    let arrived = harness.arrived().await;
    let of = |key: &str| arrived.iter().filter(|(of, ..)| of == key).map(|(_, _, id)| id.clone()).collect::<Vec<_>>();
    assert_eq!((of("order/a"), of("order/b")), (["a-1", "a-2", "a-3", "a-4"].map(str::to_owned).to_vec(), vec!["b-1".to_owned()]));
}
