//! RabbitMQ.

use std::sync::Arc;

use async_trait::async_trait;
use lapin::message::BasicGetMessage;
use lapin::options::{BasicGetOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties, ExchangeKind};
use shardwise_outbox::exercise::{self, SinkHarness, SinkServer, deliveries};
use shardwise_outbox::sink::{Accepted, Mode, RabbitMqConfig, RabbitMqSink, Template, parse_line};
use shardwise_outbox::{ErrorKind, Sink};
use shardwise_testkit::{Direction, RabbitMq, RabbitMqOptions, TcpProxy};
use tokio::sync::OnceCell;

use crate::common::{aside, rich, unique};

/// Larger than the largest event of the suite.
const EVENT_MAX: usize = 2 << 20;

/// One node for all tests of this program, because it takes seconds to start. Those that end it have their own.
async fn shared() -> Arc<RabbitMq> {
    static SHARED: tokio::sync::Mutex<std::sync::Weak<RabbitMq>> = tokio::sync::Mutex::const_new(std::sync::Weak::new());
    let mut shared = SHARED.lock().await;
    if let Some(running) = shared.upgrade() {
        return running;
    }
    let started = Arc::new(RabbitMq::start(RabbitMqOptions::default()).await.unwrap());
    *shared = Arc::downgrade(&started);
    started
}

/// An exchange and a queue of its own.
struct Harness {
    rabbit: Arc<RabbitMq>,
    proxy: TcpProxy,
    name: String,
}

impl Harness {
    async fn new(rabbit: Arc<RabbitMq>) -> Self {
        let proxy = TcpProxy::start(rabbit.socket_addr()).await.unwrap();
        let harness = Self { rabbit, proxy, name: unique("x") };
        let connection = harness.connection().await;
        let channel = connection.create_channel().await.unwrap();
        let name = || harness.name.as_str().into();
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        channel.exchange_declare(name(), ExchangeKind::Topic, durable, FieldTable::default()).await.unwrap();
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(name(), durable, FieldTable::default()).await.unwrap();
        channel.queue_bind(name(), name(), "order.#".into(), QueueBindOptions::default(), FieldTable::default()).await.unwrap();
        connection.close(200, "done".into()).await.unwrap();
        harness
    }

    async fn connection(&self) -> Connection {
        let url = format!("amqp://guest:guest@{}", self.rabbit.socket_addr());
        Connection::connect(&url, ConnectionProperties::default()).await.unwrap()
    }

    fn config(&self) -> RabbitMqConfig {
        let config = RabbitMqConfig::from_url(&format!("amqp://guest@{}", self.proxy.address()), "/outbox/test").unwrap();
        config.password("guest").exchange(&self.name).unwrap().event_bytes_max(EVENT_MAX)
    }

    /// Everything in the queue. It goes back, in its order, when the connection ends.
    async fn messages(&self) -> Vec<BasicGetMessage> {
        let connection = self.connection().await;
        let channel = connection.create_channel().await.unwrap();
        let mut messages = Vec::new();
        while let Some(message) = channel.basic_get(self.name.as_str().into(), BasicGetOptions::default()).await.unwrap() {
            messages.push(message);
        }
        connection.close(200, "done".into()).await.unwrap();
        messages
    }
}

fn header(message: &BasicGetMessage, name: &str) -> String {
    let headers = message.properties.headers().as_ref().unwrap();
    match headers.inner().get(name) {
        Some(AMQPValue::LongString(text)) => String::from_utf8(text.as_bytes().to_vec()).unwrap(),
        other => panic!("{name} is {other:?}"),
    }
}

#[async_trait]
impl SinkHarness for Harness {
    async fn open(&self) -> Arc<dyn Sink> {
        Arc::new(RabbitMqSink::new(self.config()))
    }

    async fn arrived(&self) -> Vec<(String, u64, String)> {
        let of = |name: &str, message| header(message, &format!("cloudEvents_{name}"));
        let event = |message| (of("subject", message), of("sequence", message).parse().unwrap(), of("id", message));
        self.messages().await.iter().map(event).collect()
    }

    fn server(&self) -> Option<&dyn SinkServer> {
        Some(self)
    }
}

#[async_trait]
impl SinkServer for Harness {
    async fn restart(&self) {
        let rabbit = Arc::clone(&self.rabbit);
        aside(move || async move { rabbit.restart().await.unwrap() }).await;
    }

    async fn lose_answers(&self, lose: bool) {
        if lose {
            self.proxy.cut(Direction::ToClient);
        } else {
            self.proxy.reset();
            self.proxy.heal().await.unwrap();
        }
    }

    fn drops_repeats(&self) -> bool {
        false
    }

    fn too_large(&self) -> usize {
        EVENT_MAX + 1
    }

    async fn open_as_stranger(&self) -> Option<Arc<dyn Sink>> {
        Some(Arc::new(RabbitMqSink::new(self.config().password("wrong"))))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rabbitmq_is_a_sink() {
    let own = OnceCell::new();
    let start = async || Arc::new(RabbitMq::start(RabbitMqOptions::default()).await.unwrap());
    exercise::sink(async || Harness::new(Arc::clone(own.get_or_init(start).await)).await).await;
}

#[tokio::test]
async fn an_event_is_a_cloud_event_in_both_modes() {
    let harness = Harness::new(shared().await).await;
    for mode in [Mode::Binary, Mode::Structured] {
        let sink = RabbitMqSink::new(harness.config().mode(mode));
        let event = rich("a.b *");
        assert_eq!(sink.deliver([event.clone()].into()).await, Accepted::all(&[event]));
    }
    let messages = harness.messages().await;
    assert_eq!(messages[0].routing_key.as_str(), "order.a%2Eb%20%2A");
    for (name, value) in [
        ("cloudEvents_specversion", "1.0"),
        ("cloudEvents_id", "a.b *-1"),
        ("cloudEvents_subject", "order/a.b *"),
        ("cloudEvents_sequence", "1"),
        ("cloudEvents_shardslot", "7"),
        ("cloudEvents_shardepoch", "9"),
        ("cloudEvents_tenant", "ü 1"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ] {
        assert_eq!(header(&messages[0], name), value, "{name}");
    }
    let properties = &messages[0].properties;
    assert_eq!(properties.message_id().as_ref().map(|id| id.as_str()), Some("a.b *-1"));
    assert_eq!(properties.content_type().as_ref().map(|kind| kind.as_str()), Some("application/json"));
    assert_eq!(*properties.delivery_mode(), Some(2));
    assert_eq!(messages[0].data, br#"{"n":1}"#);
    assert_eq!(parse_line(&messages[1].data).unwrap().id, "a.b *-1");
}

#[tokio::test]
async fn what_reaches_no_queue_is_refused_and_a_missing_exchange_is_told() {
    let harness = Harness::new(shared().await).await;
    let astray = harness.config().routing_key(Template::parse("elsewhere.{aggregateid}").unwrap());
    let answer = RabbitMqSink::new(astray).deliver(deliveries("a", 1, 2).into()).await;
    let refusal = answer.refusals().next().unwrap();
    assert!(!refusal.permanent && refusal.message.contains("no queue takes the routing key elsewhere.a: bind one"), "{answer:?}");
    assert!(harness.messages().await.is_empty());
    let error = RabbitMqSink::new(harness.config().exchange("nowhere").unwrap()).check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Missing);
    assert!(error.to_string().contains("has no exchange nowhere: declare it"), "{error}");
    let long = deliveries(&"x".repeat(300), 1, 1);
    let answer = RabbitMqSink::new(harness.config()).deliver(long.into()).await;
    let refusal = answer.refusals().next().unwrap();
    assert!(refusal.permanent && refusal.message.contains("routing key has 306 bytes"), "{answer:?}");
}
