//! Kafka, against librdkafka's mock cluster.

mod cluster;
mod fake;
mod order;

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use shardwise_outbox::exercise::{self, SinkHarness, SinkServer, deliveries};
use shardwise_outbox::sink::{Acceptance, KafkaConfig, KafkaSink, Mode, SaslMechanism, Template, parse_line};
use shardwise_outbox::{AggregateId, Delivery, ErrorKind, Payload, Sink};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use self::cluster::{Cluster, Received, received};
use self::fake::Unwelcoming;
use crate::common::{rich, unique};

/// The sink's limit for one event.
const EVENT_MAX: usize = 16 << 20;

/// One cluster for all tests that disturb it in the same way.
fn shared_cluster(purpose: &'static str, brokers: i32) -> Arc<Cluster> {
    static SHARED: OnceLock<Mutex<HashMap<&'static str, Arc<Cluster>>>> = OnceLock::new();
    let mut shared = SHARED.get_or_init(Mutex::default).lock().unwrap();
    Arc::clone(shared.entry(purpose).or_insert_with(|| Arc::new(Cluster::start(brokers))))
}

/// A new topic.
pub(crate) struct Harness {
    cluster: Arc<Cluster>,
    topic: String,
    partitions: i32,
}

impl Harness {
    fn new(cluster: Arc<Cluster>, partitions: i32) -> Self {
        let topic = unique("topic");
        cluster.create_topic(&topic, partitions);
        Self { cluster, topic, partitions }
    }

    pub(crate) fn quiet(partitions: i32) -> Self {
        Self::new(shared_cluster("quiet", 1), partitions)
    }

    fn config(&self) -> KafkaConfig {
        let mut config = KafkaConfig::from_url(&format!("kafka://{}", self.cluster.brokers), "/outbox/test").unwrap();
        config.topic = Template::parse(&self.topic).unwrap();
        config
    }

    /// A sink with another configuration.
    pub(crate) fn sink(&self, change: impl FnOnce(&mut KafkaConfig)) -> KafkaSink {
        let mut config = self.config();
        change(&mut config);
        KafkaSink::new(config).unwrap()
    }

    pub(crate) async fn received(&self) -> Vec<Received> {
        let (brokers, topic, partitions) = (self.cluster.brokers.clone(), self.topic.clone(), self.partitions);
        tokio::task::spawn_blocking(move || received(&brokers, &topic, partitions)).await.unwrap()
    }

    /// The answers to the next requests that carry events.
    fn answer(&self, answers: &'static [RDKafkaRespErr]) {
        self.cluster.run(move |mock| mock.request_errors(RDKafkaApiKey::Produce, answers));
    }
}

#[async_trait]
impl SinkHarness for Harness {
    async fn open(&self) -> Arc<dyn Sink> {
        Arc::new(KafkaSink::new(self.config()).unwrap())
    }

    async fn arrived(&self) -> Vec<(String, u64, String)> {
        let of = |message: &Received, name| message.header(name).to_owned();
        let event = |message| (of(message, "ce_subject"), of(message, "ce_sequence").parse().unwrap(), of(message, "ce_id"));
        self.received().await.iter().map(event).collect()
    }

    fn server(&self) -> Option<&dyn SinkServer> {
        Some(self)
    }
}

#[async_trait]
impl SinkServer for Harness {
    async fn restart(&self) {
        let down = self.cluster.down(-1);
        tokio::time::sleep(Duration::from_millis(200)).await;
        self.cluster.up(down);
    }

    async fn lose_answers(&self, lose: bool) {
        let delay = if lose { Duration::from_hours(1) } else { Duration::ZERO };
        self.cluster.run(move |mock| mock.broker_round_trip_time(-1, delay)).unwrap();
    }

    fn drops_repeats(&self) -> bool {
        false
    }

    fn too_large(&self) -> usize {
        EVENT_MAX + 1
    }

    /// The mock cluster knows no users.
    async fn open_as_stranger(&self) -> Option<Arc<dyn Sink>> {
        None
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_is_a_sink() {
    exercise::sink(async || Harness::new(shared_cluster("suite", 1), 1)).await;
}

#[tokio::test]
async fn an_event_is_a_cloud_event_in_both_modes() {
    let harness = Harness::quiet(1);
    for mode in [Mode::Binary, Mode::Structured] {
        let sink = harness.sink(|config| config.mode = mode);
        let event = rich("a.b *");
        assert_eq!(sink.deliver([event.clone()].into()).await, Acceptance::all(&[event]));
    }
    let messages = harness.received().await;
    for (name, value) in [
        ("ce_specversion", "1.0"),
        ("ce_id", "a.b *-1"),
        ("ce_subject", "order/a.b *"),
        ("ce_sequence", "1"),
        ("ce_shardslot", "7"),
        ("ce_shardepoch", "9"),
        ("ce_tenant", "ü 1"),
        ("content-type", "application/json"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ] {
        assert_eq!(messages[0].header(name), value, "{name}");
    }
    assert_eq!((messages[0].key.as_str(), messages[0].value.as_deref()), ("a.b *", Some(br#"{"n":1}"#.as_slice())));
    assert_eq!(messages[1].header("content-type"), "application/cloudevents+json; charset=utf-8");
    assert_eq!((messages[1].key.as_str(), messages[1].headers.contains_key("ce_id")), ("a.b *", false));
    assert_eq!(parse_line(messages[1].value.as_deref().unwrap()).unwrap().id, "a.b *-1");
}

/// A null value deletes in a compacted topic.
#[tokio::test]
async fn an_event_without_a_payload_has_an_empty_value_and_not_a_null_one() {
    let harness = Harness::quiet(1);
    let event = Delivery { payload: Payload::None, ..deliveries("a", 1, 1).remove(0) };
    let sink = KafkaSink::new(harness.config()).unwrap();
    assert_eq!(sink.deliver([event.clone()].into()).await, Acceptance::all(&[event]));
    assert_eq!(harness.received().await[0].value.as_deref(), Some(&b""[..]));
}

/// Keys and their hashes from the tests of Kafka's own client.
#[tokio::test]
async fn the_key_decides_the_partition_as_in_kafkas_own_client() {
    let harness = Harness::quiet(8);
    let keys = [("21", -973_932_308_i32), ("foobar", -790_332_482), ("abc", 479_470_107)];
    let sink = KafkaSink::new(harness.config()).unwrap();
    for (key, _) in keys {
        let batch = deliveries(key, 1, 1);
        assert_eq!(sink.deliver(batch.clone().into()).await, Acceptance::all(&batch));
    }
    let messages = harness.received().await;
    for (key, hash) in keys {
        let message = messages.iter().find(|message| message.key == key).unwrap();
        assert_eq!(message.partition, (hash & i32::MAX) % 8, "{key}");
    }
    let keyed = harness.sink(|config| config.key = Template::parse("{aggregatetype}/{aggregateid}").unwrap());
    keyed.deliver(deliveries("x", 1, 1).into()).await;
    assert!(harness.received().await.iter().any(|message| message.key == "order/x"));
}

/// Two events of each of three aggregates, in turn.
fn interleaved() -> Vec<Delivery> {
    let of = |aggregate: AggregateId| {
        let events = deliveries(&format!("agg-{aggregate}"), 1, 2).into_iter();
        events.map(move |event| Delivery { aggregate, ..event }).collect::<Vec<_>>()
    };
    let aggregates: Vec<_> = (1..=3).map(of).collect();
    (0..2).flat_map(|turn| aggregates.iter().map(move |events| events[turn].clone())).collect()
}

fn ids(messages: &[Received]) -> Vec<&str> {
    messages.iter().map(|message| message.header("ce_id")).collect()
}

/// The brokers refuse a request as a whole, so its events are sent alone to find the one that is too large.
#[tokio::test]
async fn what_is_too_large_for_the_brokers_is_found_and_nothing_overtakes_it() {
    use RDKafkaRespErr::{RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE, RD_KAFKA_RESP_ERR_NO_ERROR};
    let harness = Harness::new(Arc::new(Cluster::start(1)), 1);
    harness.answer(&[RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE, RD_KAFKA_RESP_ERR_NO_ERROR, RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE]);
    let (sink, batch) = (KafkaSink::new(harness.config()).unwrap(), interleaved());
    let answer = sink.deliver(batch.clone().into()).await;
    let refusal = |aggregate| answer.apart[&aggregate].clone();
    let (accepted, found) = refusal(2);
    let found = found.unwrap();
    assert!(accepted == 0 && found.permanent && !found.blameless && found.message.contains("max.message.bytes"), "{found:?}");
    assert!(found.message.contains("payload_bytes_max"), "{found:?}");
    // The request of the third one may have been written when the second one was refused.
    for (aggregate, most) in [(1, 1), (3, 1)] {
        let (accepted, other) = refusal(aggregate);
        let other = other.unwrap();
        assert!(accepted <= most && !other.permanent && other.blameless, "{answer:?}");
    }
    let arrived = harness.received().await;
    assert!(
        ids(&arrived).starts_with(&["agg-1-1"]) && !ids(&arrived).contains(&"agg-2-2"),
        "nothing behind it is sent: {:?}",
        ids(&arrived)
    );
    let rest: Vec<_> = batch.into_iter().skip(1).collect();
    assert_eq!(sink.deliver(rest.clone().into()).await, Acceptance::all(&rest));
    let mut seen = HashSet::new();
    let arrived = harness.received().await;
    let firsts: Vec<_> = ids(&arrived).into_iter().filter(|id| seen.insert(*id)).collect();
    for aggregate in ["agg-1", "agg-2", "agg-3"] {
        let of: Vec<_> = firsts.iter().filter(|id| id.starts_with(aggregate)).copied().collect();
        assert_eq!(of, [format!("{aggregate}-1"), format!("{aggregate}-2")]);
    }
}

/// The first event of each of so many aggregates.
fn firsts(aggregates: std::ops::RangeInclusive<AggregateId>) -> Vec<Delivery> {
    let first = |aggregate: AggregateId| Delivery { aggregate, ..deliveries(&format!("agg-{aggregate}"), 1, 1).remove(0) };
    aggregates.map(first).collect()
}

/// Regression: the events that had waited behind the refused one were charged, although nothing is known against them.
#[tokio::test]
async fn an_event_that_ends_the_producer_is_the_only_one_to_blame() {
    let harness = Harness::new(Arc::new(Cluster::start(1)), 1);
    let sink = harness.sink(|config| config.topic = Template::parse("{aggregatetype}").unwrap());
    let topics: Vec<_> = (0..6).map(|_| unique("blame")).collect();
    for topic in &topics {
        harness.cluster.create_topic(topic, 1);
    }
    let batch: Vec<_> =
        firsts(1..=6).into_iter().zip(&topics).map(|(event, topic)| Delivery { aggregate_type: topic.clone(), ..event }).collect();
    harness.answer(&[RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED]);
    let answer = sink.deliver(batch.clone().into()).await;
    let (others, cause): (Vec<_>, Vec<_>) = answer.refusals().partition(|refusal| refusal.blameless);
    assert!(cause.len() == 1 && cause[0].message.contains("no right to topic"), "{answer:?}");
    assert!(!others.is_empty() && others.iter().all(|refusal| !refusal.permanent), "{answer:?}");
    assert_eq!(sink.deliver(batch.clone().into()).await, Acceptance::all(&batch));
}

/// Regression: each topic had five seconds of its own, whatever the time of the batch.
#[tokio::test]
async fn topics_that_no_broker_answers_for_do_not_extend_the_time_of_a_batch() {
    let harness = Harness::new(Arc::new(Cluster::start(1)), 1);
    let sink = harness.sink(|config| {
        (config.topic, config.timeout) = (Template::parse("{aggregatetype}").unwrap(), Duration::from_secs(1));
    });
    let of = |event: Delivery, topic: &str| Delivery { aggregate_type: topic.into(), ..event };
    let first = [of(firsts(1..=1).remove(0), &harness.topic)];
    assert_eq!(sink.deliver(first.clone().into()).await, Acceptance::all(&first));
    harness.lose_answers(true).await;
    let batch: Vec<_> = firsts(2..=5)
        .into_iter()
        .map(|event| {
            let topic = unique("unanswered");
            of(event, &topic)
        })
        .collect();
    let begun = Instant::now();
    let answer = sink.deliver(batch.into()).await;
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert_eq!(answer.apart.len(), 4, "{answer:?}");
    assert!(answer.refusals().all(|refusal| !refusal.permanent), "{answer:?}");
    assert!(answer.refusals().any(|refusal| refusal.message.contains("whether there is a topic unanswered")), "{answer:?}");
}

/// Successors that are refused behind it would be kept by a broker that does not know the producer yet.
#[tokio::test]
async fn no_successor_of_an_aggregates_first_event_arrives_before_it() {
    let harness = Harness::new(Arc::new(Cluster::start(1)), 1);
    let sink = KafkaSink::new(harness.config()).unwrap();
    // More than fit into one request; all of it fits into the cluster's 5 MiB of memory.
    let large = |event: Delivery| Delivery { payload: Payload::Text("1".repeat(100 << 10)), ..event };
    for turn in 1..=5_u32 {
        let (aggregate, key) = (AggregateId::from(turn), format!("new-{turn}"));
        harness.answer(&[RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED]);
        let batch: Vec<_> = deliveries(&key, 1, 8).into_iter().map(|event| large(Delivery { aggregate, ..event })).collect();
        let answer = sink.deliver(batch.clone().into()).await;
        assert_eq!(answer.apart[&aggregate].0, 0, "{answer:?}");
        let arrived = harness.received().await;
        assert!(arrived.iter().all(|message| message.key != key), "turn {turn}: {:?}", ids(&arrived));
        assert_eq!(sink.deliver(batch.clone().into()).await, Acceptance::all(&batch));
    }
}

/// No event has a reason of its own, and the outage must be noticed.
#[tokio::test]
async fn a_user_without_the_right_to_a_producer_is_an_outage() {
    let harness = Harness::new(Arc::new(Cluster::start(1)), 1);
    harness.cluster.run(|mock| {
        mock.request_errors(RDKafkaApiKey::InitProducerId, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED; 4]);
    });
    let sink = KafkaSink::new(harness.config()).unwrap();
    let answer = sink.deliver(firsts(1..=3).into()).await;
    assert!(answer.refusals().next().is_some() && answer.refusals().all(|refusal| !refusal.permanent && !refusal.blameless), "{answer:?}");
    // Regression: a send that was refused before librdkafka's own word of it seemed unacknowledged.
    assert!(answer.refusals().all(|refusal| refusal.message.contains("IdempotentWrite")), "{answer:?}");
}

/// The first batch that is over time ends the producer, and with it what others have handed over later.
#[tokio::test]
async fn a_batch_that_another_ones_time_has_ended_is_not_to_blame() {
    let harness = Harness::new(Arc::new(Cluster::start(1)), 1);
    let sink = harness.sink(|config| config.timeout = Duration::from_secs(2));
    let first = firsts(1..=1);
    assert_eq!(sink.deliver(first.clone().into()).await, Acceptance::all(&first));
    harness.lose_answers(true).await;
    let later = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        sink.deliver(firsts(3..=3).into()).await
    };
    let (over_time, later) = tokio::join!(sink.deliver(firsts(2..=2).into()), later);
    let refusal = |answer: &Acceptance, aggregate| answer.apart[&aggregate].1.clone().unwrap();
    assert!(!refusal(&over_time, 2).blameless && refusal(&later, 3).blameless, "{over_time:?} {later:?}");
}

/// A producer whose numbers the brokers do not accept, or whose user lost a right, is of no more use.
#[tokio::test]
async fn a_producer_that_cannot_go_on_is_replaced() {
    let harness = Harness::new(Arc::new(Cluster::start(1)), 1);
    let sink = KafkaSink::new(harness.config()).unwrap();
    let first = deliveries("a", 1, 1);
    assert_eq!(sink.deliver(first.clone().into()).await, Acceptance::all(&first));
    let answers: [(&'static [RDKafkaRespErr], &str); 2] = [
        (&[RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER], "OutOfOrderSequenceNumber"),
        (&[RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED], "no right to topic"),
    ];
    for (from, (answer, expected)) in (2..).step_by(3).zip(answers) {
        harness.answer(answer);
        let batch = deliveries("a", from, 3);
        let refused = sink.deliver(batch.clone().into()).await;
        let (accepted, refusal) = refused.apart[&1].clone();
        let refusal = refusal.unwrap();
        assert!(accepted == 0 && !refusal.permanent && refusal.message.contains(expected), "{refusal:?}");
        assert_eq!(sink.deliver(batch.clone().into()).await, Acceptance::all(&batch), "by another producer");
    }
    let arrived: Vec<_> = harness.arrived().await.into_iter().map(|(_, sequence, _)| sequence).collect();
    assert_eq!(arrived, (1..=7).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_missing_topic_is_named_and_holds_no_other_up() {
    let harness = Harness::quiet(1);
    let missing = unique("missing");
    let error = harness.sink(|config| config.topic = Template::parse(&missing).unwrap()).check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Missing);
    assert!(error.to_string().contains(&format!("create topic {missing}")), "{error}");
    let sink = harness.sink(|config| config.topic = Template::parse("{aggregatetype}").unwrap());
    let of = |aggregate: AggregateId, kind: &str| Delivery { aggregate, aggregate_type: kind.into(), ..deliveries("a", 1, 1).remove(0) };
    let batch = [of(1, &missing), of(2, &harness.topic), of(3, "a b")];
    let answer = sink.deliver(batch.clone().into()).await;
    let refusal = |aggregate| answer.apart[&aggregate].1.clone().unwrap();
    assert_eq!(answer.apart.len(), 2, "{answer:?}");
    assert!(!refusal(1).permanent && refusal(1).message.contains(&format!("create topic {missing}")), "{answer:?}");
    assert!(refusal(3).permanent && refusal(3).message.contains("sink_to"), "{answer:?}");
    assert_eq!(harness.received().await.len(), 1);
    harness.cluster.create_topic(&missing, 1);
    assert_eq!(sink.deliver(batch[..1].to_vec().into()).await, Acceptance::all(&batch[..1]));
}

fn at(address: SocketAddr) -> KafkaConfig {
    KafkaConfig::from_url(&format!("kafka://{address}"), "/outbox/test").unwrap()
}

#[tokio::test]
async fn a_broker_that_answers_nothing_and_one_that_is_away_are_told_apart() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    // The kernel accepts the connections.
    let begun = Instant::now();
    let answer = KafkaSink::new(at(address)).unwrap().deliver(deliveries("a", 1, 1).into()).await;
    let refusal = answer.refusal.unwrap();
    let text = refusal.message.to_lowercase();
    assert!(!refusal.permanent && text.contains(&address.to_string()), "{refusal:?}");
    assert!(text.contains("timed out") || text.contains("does not answer within"), "{refusal:?}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let gone = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap();
    let error = KafkaSink::new(at(gone)).unwrap().check().await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn a_broker_without_tls_is_told_apart() {
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("kafkas://{}", plain.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = plain.accept().await {
            // The client may have gone already.
            drop(client.write_all(b"this is no TLS, whatever you have sent\r\n").await);
        }
    });
    let sink = KafkaSink::new(KafkaConfig::from_url(&url, "/outbox/test").unwrap()).unwrap();
    let error = sink.check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("TLS with Kafka at") && error.to_string().contains("sink_ca_file"), "{error}");
}

/// The acknowledgement never comes, and the connection stays.
#[tokio::test]
async fn what_is_not_acknowledged_in_time_is_refused_with_address_and_timeout() {
    let harness = Harness::new(Arc::new(Cluster::start(1)), 1);
    let sink = harness.sink(|config| config.timeout = Duration::from_secs(1));
    let first = deliveries("a", 1, 1);
    assert_eq!(sink.deliver(first.clone().into()).await, Acceptance::all(&first));
    harness.lose_answers(true).await;
    let begun = Instant::now();
    let answer = sink.deliver(deliveries("a", 2, 3).into()).await;
    let (accepted, refusal) = answer.apart[&1].clone();
    let refusal = refusal.unwrap();
    assert!(accepted == 0 && !refusal.permanent, "{refusal:?}");
    assert!(refusal.message.contains(&harness.cluster.brokers) && refusal.message.contains("not acknowledged within 1s"), "{refusal:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    harness.lose_answers(false).await;
    let rest = deliveries("a", 2, 3);
    assert_eq!(sink.deliver(rest.clone().into()).await, Acceptance::all(&rest), "by another producer");
}

/// Regression: the end of a connection counted as wrong credentials, and a publisher did not start while a broker restarted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_hangs_up_before_the_login_has_not_refused_the_user() {
    let broker = Unwelcoming::that_hangs_up().await;
    let url = format!("kafka://me@{}", broker.address);
    let sink = KafkaSink::new(KafkaConfig::from_url(&url, "/outbox/test").unwrap().password("hush")).unwrap();
    let error = sink.check().await.unwrap_err();
    assert!(error.is_retryable() && !error.to_string().contains("does not accept this user"), "{error}");
    assert!(error.to_string().contains(&broker.address.to_string()), "{error}");
}

/// The same while the broker shakes hands for TLS.
#[tokio::test]
async fn a_broker_that_hangs_up_in_the_handshake_of_tls_is_away() {
    let broker = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("kafkas://{}", broker.local_addr().unwrap());
    tokio::spawn(async move { while broker.accept().await.is_ok() {} });
    let error = KafkaSink::new(KafkaConfig::from_url(&url, "/outbox/test").unwrap()).unwrap().check().await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_credentials_are_named_and_a_new_password_is_read() {
    let broker = Unwelcoming::start().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "hush-old\n").unwrap();
    let url = format!("kafka://me@{}", broker.address);
    let mut config = KafkaConfig::from_url(&url, "/outbox/test").unwrap().password_file(file.path());
    config.sasl = Some(SaslMechanism::ScramSha256);
    let sink = KafkaSink::new(config).unwrap();
    let error = sink.check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let text = error.to_string();
    assert!(text.contains("correct") && text.contains("sink_password_file") && text.contains("expired"), "{text}");
    std::fs::write(file.path(), "hush-new\n").unwrap();
    let refusal = sink.deliver(deliveries("a", 1, 1).into()).await.refusal.unwrap();
    assert!(!refusal.permanent && refusal.message.contains("sink_password_file"), "{refusal:?}");
    assert!(!format!("{text}{refusal:?}{sink:?}").contains("hush"), "{text}");
    let tried = broker.tried.lock().unwrap().clone();
    assert!(tried.iter().any(|password| password == "hush-old") && tried.iter().any(|password| password == "hush-new"), "{tried:?}");
}
