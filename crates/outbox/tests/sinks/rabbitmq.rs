//! RabbitMQ.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lapin::message::BasicGetMessage;
use lapin::options::{BasicGetOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Connection, ConnectionProperties, ExchangeKind};
use shardwise_outbox::exercise::{self, SinkHarness, SinkServer, deliveries};
use shardwise_outbox::sink::{Acceptance, Mode, RabbitMqConfig, RabbitMqSink, Template, TlsFiles, parse_line};
use shardwise_outbox::{Delivery, ErrorKind, Sink};
use shardwise_testkit::{Authority, CertIdentity, Direction, RabbitMq, RabbitMqOptions, TcpProxy};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OnceCell};
use tokio::time::timeout;

use crate::common::{LIMIT, aside, headers, rich, unique};
use crate::shared::eventually;

/// The sink's limit for one event.
const EVENT_MAX: usize = 16 << 20;

/// One node for all tests of this program, because it takes seconds to start. Tests that stop a node start a separate one.
pub(crate) async fn shared() -> Arc<RabbitMq> {
    static SHARED: OnceCell<Arc<RabbitMq>> = OnceCell::const_new();
    let start = async || RabbitMq::start(RabbitMqOptions::default()).await.map(Arc::new);
    SHARED.get_or_try_init(start).await.unwrap().clone()
}

/// A node that speaks TLS on a second port, and who its clients must be.
struct Guarded {
    rabbit: Arc<RabbitMq>,
    client: CertIdentity,
    expired: CertIdentity,
}

impl Guarded {
    async fn start() -> Self {
        let authority = Authority::new().unwrap();
        let (client, expired) = (authority.client("publisher").unwrap(), authority.expired().unwrap());
        let rabbit = RabbitMq::start(RabbitMqOptions::default().with_tls(&authority.server().unwrap(), true)).await.unwrap();
        Self { rabbit: Arc::new(rabbit), client, expired }
    }

    /// One for all tests that do not restart it.
    async fn shared() -> &'static Self {
        static SHARED: OnceCell<Guarded> = OnceCell::const_new();
        SHARED.get_or_init(Self::start).await
    }

    fn files(&self) -> TlsFiles {
        TlsFiles { ca: Some(self.client.authority()), identity: Some((self.client.certificate(), self.client.key())) }
    }

    async fn harness(&self) -> Harness {
        Harness::at(Arc::clone(&self.rabbit), self.rabbit.tls_addr().unwrap(), Some(self.files())).await
    }
}

/// A new exchange and a new queue.
pub(crate) struct Harness {
    pub(crate) rabbit: Arc<RabbitMq>,
    proxy: TcpProxy,
    pub(crate) name: String,
    tls: Option<TlsFiles>,
}

impl Harness {
    pub(crate) async fn new(rabbit: Arc<RabbitMq>) -> Self {
        let address = rabbit.socket_addr();
        Self::at(rabbit, address, None).await
    }

    /// The sink goes to this port of the node, with TLS if there are files for it.
    async fn at(rabbit: Arc<RabbitMq>, address: SocketAddr, tls: Option<TlsFiles>) -> Self {
        let proxy = TcpProxy::start(address).await.unwrap();
        let harness = Self { rabbit, proxy, name: unique("x"), tls };
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

    pub(crate) fn config_in(&self, mode: Mode) -> RabbitMqConfig {
        let mut config = self.config();
        config.mode = mode;
        config
    }

    pub(crate) fn config(&self) -> RabbitMqConfig {
        self.config_by(self.proxy.address())
    }

    /// By another way to the same node.
    fn config_by(&self, way: SocketAddr) -> RabbitMqConfig {
        let scheme = if self.tls.is_some() { "amqps" } else { "amqp" };
        let mut config = RabbitMqConfig::from_url(&format!("{scheme}://guest@{way}"), "/outbox/test").unwrap();
        config.tls = self.tls.clone().unwrap_or_default();
        config.password("guest").exchange(&self.name).unwrap()
    }

    /// Breaks the sink's connection.
    pub(crate) async fn hang_up(&self) {
        self.proxy.reset();
        eventually("the connection ends", LIMIT, async || self.proxy.open() == 0).await;
    }

    /// All messages in the queue. They return to it, in order, when the connection ends.
    pub(crate) async fn messages(&self) -> Vec<BasicGetMessage> {
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

pub(crate) fn header(message: &BasicGetMessage, name: &str) -> String {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_of_sinks_holds_over_tls() {
    let own = OnceCell::new();
    exercise::sink(async || own.get_or_init(Guarded::start).await.harness().await).await;
}

#[tokio::test]
async fn tls_is_checked_on_both_sides() {
    let guarded = Guarded::shared().await;
    let harness = guarded.harness().await;
    let batch = deliveries("a", 1, 2);
    assert_eq!(RabbitMqSink::new(harness.config()).deliver(batch.clone().into()).await, Acceptance::all(&batch));
    let with = |ca: PathBuf, client: Option<&CertIdentity>| {
        let mut config = harness.config();
        config.tls = TlsFiles { ca: Some(ca), identity: client.map(|client| (client.certificate(), client.key())) };
        RabbitMqSink::new(config)
    };
    let stranger = Authority::new().unwrap();
    let (ours, theirs) = (guarded.client.authority(), stranger.client("publisher").unwrap());
    for (sink, expected) in [
        (with(stranger.file(), Some(&guarded.client)), "set sink_ca_file to the certificate of its issuer"),
        (with(ours.clone(), None), "correct sink_cert_file and sink_key_file"),
        (with(ours.clone(), Some(&theirs)), "correct sink_cert_file and sink_key_file"),
        (with(ours.clone(), Some(&guarded.expired)), "correct sink_cert_file and sink_key_file"),
    ] {
        // A server that hangs up at once may reset the connection before its reason is read.
        let denied = timeout(LIMIT, async {
            loop {
                match sink.check().await.unwrap_err() {
                    error if error.is_retryable() => tokio::time::sleep(Duration::from_millis(50)).await,
                    error => break error,
                }
            }
        });
        let error = denied.await.expect("the server says why");
        assert!(error.kind() == ErrorKind::Denied && error.to_string().contains(expected), "{error}");
        let answer = sink.deliver(batch.clone().into()).await;
        assert!(answer.refusals().next().is_some_and(|refusal| !refusal.permanent), "{answer:?}");
    }
    let error = with("nowhere.pem".into(), None).check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Settings);
    assert!(error.to_string().contains("sink_ca_file is \"nowhere.pem\", which cannot be read"), "{error}");
    assert_eq!(harness.messages().await.len(), 2, "nothing else arrived");
}

#[tokio::test]
async fn a_port_without_tls_is_reported() {
    let harness = Harness { tls: Some(TlsFiles::default()), ..Harness::new(shared().await).await };
    let authority = Authority::new().unwrap();
    let mut config = harness.config();
    config.tls = TlsFiles { ca: Some(authority.file()), identity: None };
    let sink = RabbitMqSink::new(config);
    // The server may end the connection before its answer is read.
    eventually("it says why", Duration::from_secs(30), async || {
        let error = sink.check().await.unwrap_err();
        error.kind() == ErrorKind::Denied && error.to_string().contains("does not speak TLS")
    })
    .await;
}

#[tokio::test]
async fn an_event_is_a_cloud_event_in_both_modes() {
    let harness = Harness::new(shared().await).await;
    for mode in [Mode::Binary, Mode::Structured] {
        let sink = RabbitMqSink::new(harness.config_in(mode));
        let event = rich("a.b *");
        assert_eq!(sink.deliver([event.clone()].into()).await, Acceptance::all(&[event]));
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
    assert_eq!(properties.message_id().as_ref().map(ShortString::as_str), Some("a.b *-1"));
    assert_eq!(properties.content_type().as_ref().map(ShortString::as_str), Some("application/json"));
    assert_eq!(*properties.delivery_mode(), Some(2));
    assert_eq!(messages[0].data, br#"{"n":1}"#);
    assert_eq!(parse_line(&messages[1].data).unwrap().id, "a.b *-1");
}

#[tokio::test]
async fn what_reaches_no_queue_is_refused_and_a_missing_exchange_is_reported() {
    let harness = Harness::new(shared().await).await;
    let mut astray = harness.config();
    astray.routing_key = Template::parse("elsewhere.{aggregateid}").unwrap();
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

/// Events of the aggregate with this number.
fn of(aggregate: u64, aggregate_type: &str, from: u64) -> impl Iterator<Item = Delivery> {
    let named = deliveries(&format!("n{aggregate}"), from, 2).into_iter();
    let aggregate_type = aggregate_type.to_owned();
    named.map(move |event| Delivery { aggregate: aggregate.try_into().unwrap(), aggregate_type: aggregate_type.clone(), ..event })
}

/// The server returns unroutable messages without a number: a return must not be attributed to another event in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn unroutable_events_are_not_mistaken_for_those_beside_them() {
    let harness = Harness::new(shared().await).await;
    let connection = harness.connection().await;
    let channel = connection.create_channel().await.unwrap();
    // In memory, so that confirmations are fast and interleaved.
    let queue = format!("{}-memory", harness.name);
    channel.queue_declare(queue.as_str().into(), QueueDeclareOptions::default(), FieldTable::default()).await.unwrap();
    let mut config = harness.config().exchange("").unwrap();
    config.routing_key = Template::parse("{aggregatetype}").unwrap();
    let sink = RabbitMqSink::new(config);
    let kind = |n: u64| if n.is_multiple_of(2) { queue.as_str() } else { "astray" };
    for from in [1, 3, 5] {
        let batch: Vec<_> = (0..300).flat_map(|n| of(n, kind(n), from)).collect();
        let answer = sink.deliver(batch.clone().into()).await;
        let refused: Vec<_> = answer.apart.keys().map(|aggregate| u64::try_from(*aggregate).unwrap()).collect();
        assert_eq!(refused, (0..300).filter(|n| n % 2 == 1).collect::<Vec<_>>());
        for (aggregate, (done, refusal)) in &answer.apart {
            let refusal = refusal.as_ref().unwrap();
            assert!(*done == 0 && !refusal.permanent && refusal.message.contains("bind one"), "{aggregate}: {done} {refusal}");
        }
    }
    let mut arrived: Vec<(String, u64)> = Vec::new();
    while let Some(message) = channel.basic_get(queue.as_str().into(), BasicGetOptions::default()).await.unwrap() {
        let of = |name: &str| header(&message, &format!("cloudEvents_{name}"));
        arrived.push((of("subject"), of("sequence").parse().unwrap()));
    }
    connection.close(200, "done".into()).await.unwrap();
    // A stable sort keeps the order within an aggregate.
    arrived.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut expected: Vec<_> = (0..300).step_by(2).map(|n| format!("{queue}/n{n}")).collect();
    expected.sort();
    let expected: Vec<_> = expected.into_iter().flat_map(|key| (1..=6).map(move |sequence| (key.clone(), sequence))).collect();
    assert_eq!(arrived, expected);
}

/// Reads until the other side ends the connection; returns how many bytes there were, and how it ended.
async fn rest_of(stream: &mut TcpStream) -> (usize, std::io::Result<()>) {
    let (mut bytes, mut part) = (0, vec![0; 1 << 16]);
    loop {
        match timeout(Duration::from_secs(20), stream.read(&mut part)).await.expect("the connection is still there") {
            Ok(0) => return (bytes, Ok(())),
            Ok(read) => bytes += read,
            Err(error) => return (bytes, Err(error)),
        }
    }
}

/// An unconfirmed event must not be sent later, when another publisher may have continued.
#[tokio::test]
async fn what_is_not_confirmed_is_not_sent_later() {
    let harness = Harness::new(shared().await).await;
    let server = harness.rabbit.socket_addr();
    is_not_sent_later(&harness, server).await;
}

#[tokio::test]
async fn what_is_not_confirmed_over_tls_is_not_sent_later() {
    let guarded = Guarded::shared().await;
    is_not_sent_later(&guarded.harness().await, guarded.rabbit.tls_addr().unwrap()).await;
}

async fn is_not_sent_later(harness: &Harness, server: SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let way = listener.local_addr().unwrap();
    let stop = Arc::new(Notify::new());
    let stopped = Arc::clone(&stop);
    let relay = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut server = TcpStream::connect(server).await.unwrap();
        tokio::select! {
            ended = tokio::io::copy_bidirectional(&mut client, &mut server) => panic!("the connection ended: {ended:?}"),
            () = stopped.notified() => (client, server),
        }
    });
    let sink = RabbitMqSink::new(harness.config_by(way));
    let first = deliveries("a", 1, 1);
    assert_eq!(sink.deliver(first.clone().into()).await, Acceptance::all(&first));
    stop.notify_one();
    let (mut client, _server) = relay.await.unwrap();
    // More than the socket buffers hold.
    let size = 15 << 20;
    let large = Delivery { payload: "x".repeat(size).into(), ..deliveries("a", 2, 1).remove(0) };
    let answer = sink.deliver([large].into()).await;
    let refusal = answer.refusals().next().unwrap();
    assert!(!refusal.permanent && refusal.message.contains("confirmed"), "{answer:?}");
    let (bytes, end) = rest_of(&mut client).await;
    assert!(bytes < size, "all of it was sent");
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_server_that_says_nothing_costs_no_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("amqp://guest@{}", listener.local_addr().unwrap());
    let sink = RabbitMqSink::new(RabbitMqConfig::from_url(&url, "/").unwrap());
    let (checked, accepted) = tokio::join!(sink.check(), listener.accept());
    let error = checked.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("does not answer"), "{error}");
    let (greeting, _) = rest_of(&mut accepted.unwrap().0).await;
    assert_eq!(greeting, b"AMQP\x00\x00\x09\x01".len());
}

#[tokio::test]
async fn a_server_short_of_memory_is_an_outage() {
    let options = RabbitMqOptions::default().with_setting("vm_memory_high_watermark.absolute = 1000000");
    let harness = Harness::new(Arc::new(RabbitMq::start(options).await.unwrap())).await;
    let sink = Arc::new(RabbitMqSink::new(harness.config()));
    let first = tokio::spawn({
        let sink = Arc::clone(&sink);
        async move { sink.deliver(deliveries("a", 1, 1).into()).await }
    });
    // The server notifies only connections that send something.
    let reported = timeout(Duration::from_secs(30), async {
        loop {
            match sink.check().await {
                Err(error) if error.to_string().contains("takes no events now") => break error,
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    });
    assert_eq!(reported.await.expect("the server reports it").kind(), ErrorKind::Unavailable);
    let second = sink.deliver(deliveries("b", 1, 1).into()).await;
    let refusal = second.refusals().next().unwrap();
    assert!(!refusal.permanent && refusal.message.contains("takes no events now"), "{second:?}");
    let first = first.await.unwrap();
    let refusal = first.refusals().next().unwrap();
    assert!(!refusal.permanent && refusal.message.contains("may be short of memory or disk"), "{first:?}");
    assert!(harness.arrived().await.is_empty());
}

#[tokio::test]
async fn an_event_with_thousands_of_headers_is_refused_and_those_beside_it_are_not() {
    let harness = Harness::new(shared().await).await;
    let large = of(1, "order", 1).map(|event| Delivery { headers: Some(headers(5_000)), ..event });
    let batch: Vec<_> = large.chain(of(2, "order", 1)).collect();
    let answer = RabbitMqSink::new(harness.config()).deliver(batch.into()).await;
    assert_eq!(answer.apart.keys().collect::<Vec<_>>(), [&1]);
    let (done, refusal) = &answer.apart[&1];
    let refusal = refusal.as_ref().unwrap();
    assert!(*done == 0 && refusal.permanent && refusal.message.contains("the event's headers have"), "{answer:?}");
    assert_eq!(harness.arrived().await.len(), 2);
    let structured = RabbitMqSink::new(harness.config_in(Mode::Structured));
    let large = of(1, "order", 1).map(|event| Delivery { headers: Some(headers(5_000)), ..event }).collect::<Vec<_>>();
    assert_eq!(structured.deliver(large.clone().into()).await, Acceptance::all(&large));
}
