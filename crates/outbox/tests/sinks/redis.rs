//! Redis streams.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use shardwise_outbox::exercise::{self, SinkHarness, SinkServer, deliveries};
use shardwise_outbox::sink::{Acceptance, Mode, RedisConfig, RedisSink, Template, TlsFiles, parse_line};
use shardwise_outbox::{Delivery, ErrorKind, Sink};
use shardwise_testkit::{Authority, CertIdentity, Direction, Redis, RedisOptions, TcpProxy};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::common::{LIMIT, aside, headers, rich, unique};

/// The sink's limit for one event.
const EVENT_MAX: usize = 16 << 20;
pub(crate) const PER_AGGREGATE: &str = "{aggregatetype}.{aggregateid}";

/// Streams with a unique prefix, on a server that the cases share.
pub(crate) struct Harness {
    redis: Arc<Redis>,
    proxy: TcpProxy,
    name: String,
    stream: &'static str,
}

/// An entry: its id, and its fields with values.
pub(crate) type Entry = (String, Vec<Vec<u8>>);

fn field(entry: &Entry, name: &str) -> String {
    let mut fields = entry.1.chunks(2).filter(|pair| pair[0] == name.as_bytes());
    String::from_utf8(fields.next().unwrap_or_else(|| panic!("no {name} in {entry:?}"))[1].clone()).unwrap()
}

impl Harness {
    pub(crate) async fn new(redis: Arc<Redis>, stream: &'static str) -> Self {
        let proxy = TcpProxy::start(redis.socket_addr()).await.unwrap();
        Self { redis, proxy, name: unique("s"), stream }
    }

    pub(crate) fn config_in(&self, mode: Mode) -> RedisConfig {
        let mut config = self.config();
        config.mode = mode;
        config
    }

    pub(crate) fn config(&self) -> RedisConfig {
        let stream = Template::parse(&format!("{}:{}", self.name, self.stream)).unwrap();
        let config = RedisConfig::from_url(&format!("redis://{}", self.proxy.address()), "/outbox/test").unwrap();
        let mut config = config.password("secret");
        config.stream = stream;
        config
    }

    async fn connection(&self) -> MultiplexedConnection {
        let client = redis::Client::open(format!("redis://:secret@{}", self.redis.socket_addr())).unwrap();
        // The client's default timeout is half a second, and a server that writes its log to a busy disk answers later.
        let patient = AsyncConnectionConfig::new().set_connection_timeout(Some(LIMIT)).set_response_timeout(Some(LIMIT));
        client.get_multiplexed_async_connection_with_config(&patient).await.unwrap()
    }

    /// All streams by name, and their entries.
    pub(crate) async fn streams(&self) -> Vec<(String, Vec<Entry>)> {
        let mut connection = self.connection().await;
        let mut names: Vec<String> = redis::cmd("KEYS").arg(format!("{}:*", self.name)).query_async(&mut connection).await.unwrap();
        names.sort();
        let mut streams = Vec::new();
        for name in names {
            let entries = redis::cmd("XRANGE").arg(&name).arg("-").arg("+").query_async(&mut connection).await.unwrap();
            streams.push((name, entries));
        }
        streams
    }
}

#[async_trait]
impl SinkHarness for Harness {
    async fn open(&self) -> Arc<dyn Sink> {
        Arc::new(RedisSink::new(self.config()))
    }

    async fn arrived(&self) -> Vec<(String, u64, String)> {
        let streams = self.streams().await;
        let entries = streams.iter().flat_map(|(_, entries)| entries);
        entries.map(|entry| (field(entry, "subject"), field(entry, "sequence").parse().unwrap(), field(entry, "id"))).collect()
    }

    fn server(&self) -> Option<&dyn SinkServer> {
        Some(self)
    }
}

#[async_trait]
impl SinkServer for Harness {
    async fn restart(&self) {
        let redis = Arc::clone(&self.redis);
        aside(move || async move { redis.restart().await.unwrap() }).await;
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
        self.stream == PER_AGGREGATE
    }

    fn too_large(&self) -> usize {
        EVENT_MAX
    }

    async fn open_as_stranger(&self) -> Option<Arc<dyn Sink>> {
        Some(Arc::new(RedisSink::new(self.config().password("wrong"))))
    }
}

pub(crate) async fn server() -> Arc<Redis> {
    Arc::new(Redis::start(RedisOptions::default().with_password("secret")).await.unwrap())
}

async fn valkey() -> Arc<Redis> {
    Arc::new(Redis::start(RedisOptions::default().valkey().with_password("secret")).await.unwrap())
}

async fn passes_the_suite<F: Future<Output = Arc<Redis>>>(stream: &'static str, start: impl Fn() -> F) {
    let redis = OnceCell::new();
    exercise::sink(|| async { Harness::new(Arc::clone(redis.get_or_init(&start).await), stream).await }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_for_each_aggregate_is_a_sink() {
    passes_the_suite(PER_AGGREGATE, server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_stream_for_all_is_a_sink() {
    passes_the_suite("all", server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_valkey_for_each_aggregate_is_a_sink() {
    passes_the_suite(PER_AGGREGATE, valkey).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_stream_of_valkey_for_all_is_a_sink() {
    passes_the_suite("all", valkey).await;
}

/// Connections that are there stay; the next one is refused until the file has the password.
#[tokio::test]
async fn a_password_that_was_changed_is_reported_and_nothing_is_skipped() {
    let harness = Harness::new(server().await, PER_AGGREGATE).await;
    let sink = RedisSink::new(harness.config());
    let events = deliveries("a", 1, 3);
    assert_eq!(sink.deliver(events[..1].into()).await, Acceptance::all(&events[..1]));
    let mut operator = harness.connection().await;
    let mut set_password = async |password: &str| {
        let mut change = redis::cmd("CONFIG");
        let () = change.arg("SET").arg("requirepass").arg(password).query_async(&mut operator).await.unwrap();
        let mut hang_up = redis::cmd("CLIENT");
        let _: i64 = hang_up.arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes").query_async(&mut operator).await.unwrap();
    };
    set_password("changed").await;
    let refused = timeout(LIMIT, async {
        loop {
            let answer = sink.deliver(events[1..].into()).await;
            let refusal = answer.refusals().next().expect("nothing is accepted without the password").clone();
            assert!(!refusal.permanent, "{refusal}");
            if refusal.message.contains("correct the user in sink and the password in sink_password_file") {
                break;
            }
        }
    });
    refused.await.expect("it is reported");
    assert_eq!(sink.check().await.unwrap_err().kind(), ErrorKind::Denied);
    set_password("secret").await;
    let rest = timeout(LIMIT, async {
        while sink.deliver(events[1..].into()).await != Acceptance::all(&events[1..]) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    rest.await.expect("it is accepted again");
    let ids: Vec<_> = harness.streams().await.remove(0).1.into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, ["1-0", "2-0", "3-0"]);
}

/// Without Sentinels only an operator can name another primary.
#[tokio::test]
async fn a_server_that_became_a_replica_is_an_outage_that_says_what_to_do() {
    let (redis, other) = (Redis::start(RedisOptions::default()).await.unwrap(), Redis::start(RedisOptions::default()).await.unwrap());
    let sink = RedisSink::new(RedisConfig::from_url(&redis.address(), "/").unwrap());
    let events = deliveries("a", 1, 2);
    assert_eq!(sink.deliver(events[..1].into()).await, Acceptance::all(&events[..1]));
    let (host, port) = (other.socket_addr().ip().to_string(), other.socket_addr().port().to_string());
    redis.command(&["REPLICAOF", &host, &port]).await.unwrap();
    let answer = sink.deliver(events[1..].into()).await;
    let refusal = answer.refusals().next().unwrap();
    assert!(!refusal.permanent && refusal.message.contains("it is a replica; name the primary in sink"), "{answer:?}");
    redis.command(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
    assert_eq!(sink.deliver(events[1..].into()).await, Acceptance::all(&events[1..]));
}

/// What a primary that was cut off accepts would be lost: with this setting it accepts nothing.
#[tokio::test]
async fn a_primary_without_its_replicas_is_an_outage_that_says_what_to_do() {
    let redis = Redis::start(RedisOptions::default().with_setting("min-replicas-to-write", "1")).await.unwrap();
    let sink = RedisSink::new(RedisConfig::from_url(&redis.address(), "/").unwrap());
    let events = deliveries("a", 1, 2);
    let answer = sink.deliver(events.clone().into()).await;
    let refusal = answer.refusals().next().unwrap();
    assert!(!refusal.permanent && refusal.message.contains("min-replicas-to-write"), "{answer:?}");
    redis.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await.unwrap();
    assert_eq!(sink.deliver(events.clone().into()).await, Acceptance::all(&events));
}

#[tokio::test]
async fn an_event_is_a_cloud_event_in_both_modes() {
    let harness = Harness::new(server().await, "{type}").await;
    for mode in [Mode::Binary, Mode::Structured] {
        let sink = RedisSink::new(harness.config_in(mode));
        let event = rich("a.b *");
        assert_eq!(sink.deliver([event.clone()].into()).await, Acceptance::all(&[event]));
    }
    let (name, entries) = harness.streams().await.remove(0);
    assert!(name.ends_with(":OrderChanged"), "{name}");
    for (name, value) in [
        ("specversion", "1.0"),
        ("id", "a.b *-1"),
        ("type", "OrderChanged"),
        ("subject", "order/a.b *"),
        ("sequence", "1"),
        ("shardslot", "7"),
        ("shardepoch", "9"),
        ("tenant", "ü 1"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("outboxheaders", r#"{"X-Odd":[1]}"#),
        ("datacontenttype", "application/json"),
        ("data", r#"{"n":1}"#),
    ] {
        assert_eq!(field(&entries[0], name), value, "{name}");
    }
    let read = parse_line(field(&entries[1], "event").as_bytes()).unwrap();
    assert_eq!((read.id.as_str(), read.sequence, read.epoch), ("a.b *-1", 1, 9));
}

#[tokio::test]
async fn ids_are_places_in_the_aggregate_and_cannot_go_back() {
    let harness = Harness::new(server().await, PER_AGGREGATE).await;
    let sink = RedisSink::new(harness.config());
    let events = deliveries("a", 1, 4);
    assert_eq!(sink.deliver(events[1..3].into()).await, Acceptance::all(&events[1..3]));
    assert_eq!(sink.deliver(events[1..].into()).await, Acceptance::all(&events[1..]), "what is there is not added again");
    let ids: Vec<_> = harness.streams().await.remove(0).1.into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, ["2-0", "3-0", "4-0"]);
    let late = sink.deliver(events[..1].into()).await;
    let refusal = late.refusals().next().unwrap();
    assert!(refusal.permanent && refusal.message.contains("its ids cannot go back"), "{late:?}");
    let other = [Delivery { id: "other".into(), ..events[1].clone() }];
    let other = sink.deliver(other.into()).await;
    let refusal = other.refusals().next().unwrap();
    assert!(refusal.permanent && refusal.message.contains("use another stream"), "{other:?}");
}

#[tokio::test]
async fn an_event_with_thousands_of_headers_is_refused_and_those_before_it_are_not() {
    let harness = Harness::new(server().await, PER_AGGREGATE).await;
    let mut events = deliveries("a", 1, 3);
    events[1].headers = Some(headers(5_000));
    let answer = RedisSink::new(harness.config()).deliver(events.clone().into()).await;
    let (done, refusal) = &answer.apart[&1];
    let refusal = refusal.as_ref().unwrap();
    assert_eq!((*done, refusal.permanent), (1, true), "{answer:?}");
    assert!(refusal.message.contains("fields of an entry, and 1000 are allowed"), "{answer:?}");
    events[1].headers = Some(headers(900));
    assert_eq!(RedisSink::new(harness.config()).deliver(events.clone().into()).await, Acceptance::all(&events));
}

#[tokio::test]
async fn a_stream_for_each_slot_refuses_an_older_epoch() {
    let harness = Harness::new(server().await, "slot-{shardslot}").await;
    let mut config = harness.config();
    config.length_max = Some(100);
    let sink = RedisSink::new(config);
    let of = |epoch: u64, from: u64| deliveries("a", from, 2).into_iter().map(move |event| Delivery { epoch, ..event }).collect::<Vec<_>>();
    for batch in [of(3, 1), of(3, 3), of(4, 5)] {
        assert_eq!(sink.deliver(batch.clone().into()).await, Acceptance::all(&batch));
    }
    let late = sink.deliver(of(3, 7).into()).await;
    let refusal = late.refusals().next().unwrap();
    assert!(!refusal.permanent && refusal.message.contains("newer epoch"), "{late:?}");
    let ids: Vec<_> = harness.streams().await.remove(0).1.into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, ["3-0", "3-1", "3-2", "3-3", "4-0", "4-1"]);
}

#[tokio::test]
async fn a_server_without_memory_is_an_outage_that_says_what_to_do() {
    let options = RedisOptions::default().with_setting("maxmemory", "100kb").with_setting("maxmemory-policy", "noeviction");
    let redis = Redis::start(options).await.unwrap();
    let sink = RedisSink::new(RedisConfig::from_url(&redis.address(), "/").unwrap());
    let answer = sink.deliver(deliveries("a", 1, 2).into()).await;
    let refusal = answer.refusals().next().unwrap();
    assert!(!refusal.permanent && refusal.message.contains("give it more memory"), "{answer:?}");
}

#[tokio::test]
async fn tls_is_checked() {
    let authority = Authority::new().unwrap();
    let redis = Redis::start(RedisOptions::default().with_tls(&authority.server().unwrap())).await.unwrap();
    let trusting = |authority: &Authority| {
        let mut config = RedisConfig::from_url(&redis.address(), "/").unwrap();
        config.tls = TlsFiles { ca: Some(authority.file()), identity: None };
        RedisSink::new(config)
    };
    let sink = trusting(&authority);
    sink.check().await.unwrap();
    let batch = deliveries("a", 1, 2);
    assert_eq!(sink.deliver(batch.clone().into()).await, Acceptance::all(&batch));
    let stranger = Authority::new().unwrap();
    let error = trusting(&stranger).check().await.unwrap_err();
    assert!(!error.is_retryable() && error.to_string().contains("certificate"), "{error}");
}

/// A refused one was retried as a lost connection.
#[tokio::test]
async fn a_client_certificate_is_shown_and_one_that_is_refused_is_named() {
    let (authority, stranger) = (Authority::new().unwrap(), Authority::new().unwrap());
    let redis = Redis::start(RedisOptions::default().with_mutual_tls(&authority.server().unwrap())).await.unwrap();
    let with = |identity: Option<&CertIdentity>| {
        let mut config = RedisConfig::from_url(&redis.address(), "/").unwrap();
        let identity = identity.map(|identity| (identity.certificate(), identity.key()));
        config.tls = TlsFiles { ca: Some(authority.file()), identity };
        RedisSink::new(config)
    };
    with(Some(&authority.client("publisher").unwrap())).check().await.unwrap();
    for refused in [None, Some(stranger.client("publisher").unwrap())] {
        let sink = with(refused.as_ref());
        let permanent = async {
            loop {
                let error = sink.check().await.unwrap_err();
                // A busy machine may be late.
                if !error.is_retryable() {
                    break error;
                }
            }
        };
        let error = timeout(LIMIT, permanent).await.unwrap();
        assert!(error.to_string().contains("sink_cert_file and sink_key_file"), "{error}");
    }
}
