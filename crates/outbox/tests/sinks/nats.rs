//! NATS `JetStream`.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::stream::{Config, Stream};
use async_trait::async_trait;
use shardwise_outbox::exercise::{self, SinkHarness, SinkServer, deliveries};
use shardwise_outbox::sink::{Acceptance, Mode, NatsConfig, NatsSink, Template, TlsFiles, parse_line};
use shardwise_outbox::{Delivery, ErrorKind, Sink};
use shardwise_testkit::{Authority, Direction, Nats, NatsOperator, NatsOptions, TcpProxy};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::common::{LIMIT, aside, decoded, rich, unique};

/// Larger than the largest event of the suite, smaller than the server's limit.
const PAYLOAD_MAX: usize = 2 << 20;

/// A new stream on a server that the cases share.
pub(crate) struct Harness {
    pub(crate) nats: Arc<Nats>,
    proxy: TcpProxy,
    pub(crate) name: String,
    fence: bool,
}

impl Harness {
    pub(crate) async fn new(nats: Arc<Nats>, fence: bool) -> Self {
        let proxy = TcpProxy::start(nats.socket_addr()).await.unwrap();
        let harness = Self { nats, proxy, name: unique("s"), fence };
        let settings = Config { name: harness.name.clone(), subjects: vec![format!("{}.>", harness.name)], ..Config::default() };
        harness.context().await.create_stream(settings).await.unwrap();
        harness
    }

    /// The client's default timeout is five seconds, and a server with a busy disk answers later.
    pub(crate) async fn context(&self) -> async_nats::jetstream::Context {
        let mut context = async_nats::jetstream::new(self.client().await);
        context.set_timeout(LIMIT);
        context
    }

    pub(crate) async fn client(&self) -> async_nats::Client {
        let options = async_nats::ConnectOptions::with_user_and_password("app".into(), "secret".into());
        options.retry_on_initial_connect().connect(self.nats.address()).await.unwrap()
    }

    async fn stream(&self) -> Stream {
        self.context().await.get_stream(&self.name).await.unwrap()
    }

    pub(crate) fn config_in(&self, mode: Mode) -> NatsConfig {
        let mut config = self.config();
        config.mode = mode;
        config
    }

    pub(crate) fn config(&self) -> NatsConfig {
        let subject = Template::parse(&format!("{}.{{aggregatetype}}.{{aggregateid}}", self.name)).unwrap();
        let config = NatsConfig::from_url(&format!("nats://app@{}", self.proxy.address()), "/outbox/test").unwrap();
        let mut config = config.password("secret");
        (config.stream, config.subject, config.fence) = (self.name.clone(), subject, self.fence);
        config
    }

    pub(crate) async fn messages(&self) -> Vec<async_nats::jetstream::message::StreamMessage> {
        let mut stream = self.stream().await;
        let state = stream.info().await.unwrap().state.clone();
        let mut messages = Vec::new();
        for place in state.first_sequence.max(1)..=state.last_sequence {
            messages.push(stream.get_raw_message(place).await.unwrap());
        }
        messages
    }
}

#[async_trait]
impl SinkHarness for Harness {
    async fn open(&self) -> Arc<dyn Sink> {
        Arc::new(NatsSink::new(self.config()).unwrap())
    }

    async fn arrived(&self) -> Vec<(String, u64, String)> {
        let header =
            |message: &async_nats::jetstream::message::StreamMessage, name: &str| decoded(message.headers.get(name).unwrap().as_str());
        let event = |message| (header(message, "ce-subject"), header(message, "ce-sequence").parse().unwrap(), header(message, "ce-id"));
        self.messages().await.iter().map(event).collect()
    }

    fn server(&self) -> Option<&dyn SinkServer> {
        Some(self)
    }
}

#[async_trait]
impl SinkServer for Harness {
    async fn restart(&self) {
        let nats = Arc::clone(&self.nats);
        aside(move || async move { nats.restart().await.unwrap() }).await;
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
        true
    }

    fn too_large(&self) -> usize {
        PAYLOAD_MAX
    }

    async fn open_as_stranger(&self) -> Option<Arc<dyn Sink>> {
        Some(Arc::new(NatsSink::new(self.config().password("wrong")).unwrap()))
    }
}

pub(crate) async fn server() -> Arc<Nats> {
    let options = NatsOptions::default().with_user("app", "secret").with_setting(format!("max_payload: {PAYLOAD_MAX}"));
    Arc::new(Nats::start(options).await.unwrap())
}

async fn passes_the_suite(fence: bool) {
    let nats = OnceCell::new();
    exercise::sink(|| async { Harness::new(Arc::clone(nats.get_or_init(server).await), fence).await }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jetstream_is_a_sink() {
    passes_the_suite(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jetstream_with_its_fence_is_a_sink() {
    passes_the_suite(true).await;
}

#[tokio::test]
async fn an_event_is_a_cloud_event_in_both_modes() {
    let harness = Harness::new(server().await, false).await;
    let event = rich("a.b *");
    for mode in [Mode::Binary, Mode::Structured] {
        let sink = NatsSink::new(harness.config_in(mode)).unwrap();
        // With the same id, the second event would be dropped as a duplicate of the first.
        let event = Delivery { id: format!("{mode:?}"), ..event.clone() };
        assert_eq!(sink.deliver([event.clone()].into()).await, Acceptance::all(&[event]));
    }
    let messages = harness.messages().await;
    assert_eq!(messages[0].subject.as_str(), format!("{}.order.a%2Eb%20%2A", harness.name));
    let headers: std::collections::BTreeMap<_, _> =
        messages[0].headers.iter().map(|(name, values)| (name.to_string(), decoded(values[0].as_str()))).collect();
    for (name, value) in [
        ("Nats-Msg-Id", "Binary"),
        ("ce-specversion", "1.0"),
        ("ce-id", "Binary"),
        ("ce-source", "/outbox/test"),
        ("ce-type", "OrderChanged"),
        ("ce-subject", "order/a.b *"),
        ("ce-sequence", "1"),
        ("ce-shardslot", "7"),
        ("ce-shardepoch", "9"),
        ("ce-tenant", "ü 1"),
        ("ce-outboxheaders", r#"{"X-Odd":[1]}"#),
        ("ce-traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", "a=1"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(headers.get(name).map(String::as_str), Some(value), "{name} of {headers:?}");
    }
    assert_eq!(&messages[0].payload[..], br#"{"n":1}"#);
    assert_eq!(messages[1].headers.get("content-type").unwrap().as_str(), "application/cloudevents+json; charset=utf-8");
    let read = parse_line(&messages[1].payload).unwrap();
    assert_eq!((read.id.as_str(), read.sequence, read.slot, read.epoch), ("Structured", 1, 7, 9));
}

/// A paused publisher's sends arrive after another publisher took its slot: the stream refuses older messages, even if it no longer
/// remembers their ids.
#[tokio::test]
async fn the_fence_refuses_the_past() {
    let harness = Harness::new(server().await, true).await;
    let (one, two) = (NatsSink::new(harness.config()).unwrap(), NatsSink::new(harness.config()).unwrap());
    let events = deliveries("a", 1, 4);
    assert_eq!(one.deliver(events[..2].into()).await, Acceptance::all(&events[..2]));
    let later: Vec<_> = events[..3].iter().map(|event| Delivery { epoch: 2, ..event.clone() }).collect();
    assert_eq!(two.deliver(later.clone().into()).await, Acceptance::all(&later), "what is there already counts as accepted");
    // The first sink does not know the newer message. The id is new, so that only the fence can refuse it.
    let late = Delivery { id: "late".into(), ..events[2].clone() };
    for late in [[late], [events[3].clone()]] {
        let late = one.deliver(late.into()).await;
        let refusal = late.refusals().next().unwrap();
        assert!(!refusal.permanent && refusal.message.contains("newer epoch"), "{late:?}");
    }
    let sequences: Vec<_> = harness.arrived().await.into_iter().map(|(_, sequence, _)| sequence).collect();
    assert_eq!(sequences, [1, 2, 3]);
}

/// Taking another program's event for this one would lose this one silently.
#[tokio::test]
async fn the_fence_takes_no_other_event_for_this_one() {
    let harness = Harness::new(server().await, true).await;
    let sink = || NatsSink::new(harness.config()).unwrap();
    let events = deliveries("a", 1, 9);
    let known = sink();
    assert_eq!(known.deliver(events.clone().into()).await, Acceptance::all(&events));
    // A recreated outbox begins at 1 again.
    let anew: Vec<_> = events.iter().map(|event| Delivery { id: format!("{}-anew", event.id), ..event.clone() }).collect();
    for at in [0, 3, 8] {
        for (sink, knows) in [(&known, true), (&sink(), false)] {
            let answer = sink.deliver(anew[at..=at].into()).await;
            let refusal = answer.refusals().next().unwrap_or_else(|| panic!("{at} {knows}: {answer:?}"));
            assert!(refusal.permanent && refusal.message.contains("has another event at this place"), "{at} {knows}: {answer:?}");
        }
        let answer = sink().deliver(events[at..=at].into()).await;
        assert_eq!(answer, Acceptance::all(&events[at..=at]), "this one is there");
    }
    // Another program's message with a much higher sequence.
    let mut headers = async_nats::HeaderMap::new();
    for (name, value) in [("ce-sequence", "999"), ("ce-source", "/elsewhere"), ("ce-id", "b-1")] {
        headers.insert(name, value);
    }
    let context = harness.context().await;
    let subject = format!("{}.order.b", harness.name);
    context.publish_with_headers(subject, headers, "".into()).await.unwrap().await.unwrap();
    let answer = sink().deliver(deliveries("b", 1, 2).into()).await;
    let refusal = answer.refusals().next().unwrap();
    assert!(refusal.permanent && refusal.message.contains("use another subject"), "{answer:?}");
    // The existence of a removed message can no longer be proven.
    let stream = harness.stream().await;
    stream.delete_message(5).await.unwrap();
    let answer = sink().deliver(events[4..5].into()).await;
    let refusal = answer.refusals().next().unwrap();
    assert!(refusal.permanent && refusal.message.contains("has later events but not this one"), "{answer:?}");
    assert_eq!(harness.stream().await.info().await.unwrap().state.messages, 9, "nothing was added");
}

#[tokio::test]
async fn a_stream_that_is_missing_is_made_only_on_request() {
    let harness = Harness::new(server().await, false).await;
    let config = |create| {
        let mut config = harness.config();
        (config.stream, config.create, config.subject) = ("other".into(), create, Template::parse("other.{type}").unwrap());
        config
    };
    let error = NatsSink::new(config(false)).unwrap().check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Missing);
    assert!(error.to_string().ends_with("has no stream other: make it, with the subjects other.*"), "{error}");
    let sink = NatsSink::new(config(true)).unwrap();
    sink.check().await.unwrap();
    let batch = deliveries("a", 1, 3);
    assert_eq!(sink.deliver(batch.clone().into()).await, Acceptance::all(&batch));
    // The stream has other subjects.
    let mut elsewhere = harness.config();
    elsewhere.subject = Template::parse("elsewhere.{type}").unwrap();
    let answer = NatsSink::new(elsewhere).unwrap().deliver(batch.into()).await;
    assert!(answer.refusals().next().unwrap().message.contains("give the stream the subjects elsewhere.*"), "{answer:?}");
}

#[tokio::test]
async fn tls_is_checked_and_demanded() {
    let authority = Authority::new().unwrap();
    let nats = Nats::start(NatsOptions::default().with_tls(&authority.server().unwrap())).await.unwrap();
    let trusting = |authority: &Authority| {
        let mut config = NatsConfig::from_url(&nats.address(), "/").unwrap();
        (config.create, config.tls) = (true, TlsFiles { ca: Some(authority.file()), identity: None });
        NatsSink::new(config).unwrap()
    };
    trusting(&authority).check().await.unwrap();
    let stranger = Authority::new().unwrap();
    let error = trusting(&stranger).check().await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    let plain = Nats::start(NatsOptions::default()).await.unwrap();
    let demanding = NatsConfig::from_url(&format!("tls://{}", plain.socket_addr()), "/").unwrap();
    assert!(NatsSink::new(demanding).unwrap().check().await.is_err(), "nothing is sent without TLS");
}

/// A server that knows its users by JWTs, which expire while the publisher is connected.
#[tokio::test]
async fn credentials_that_expire_are_reported_and_nothing_is_skipped() {
    let operator = NatsOperator::new();
    let nats = Nats::start(operator.server(NatsOptions::default().newest()).unwrap()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("publisher.creds");
    let mut config = NatsConfig::from_url(&nats.address(), "/outbox/test").unwrap();
    (config.creds_file, config.create) = (Some(file.clone()), true);
    let sink = NatsSink::new(config).unwrap();

    let error = sink.check().await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::Settings && error.to_string().contains("publisher.creds of the NATS sink cannot be read"),
        "{error}"
    );
    let lasting = operator.user(None).unwrap();
    lasting.write_with_key_of(&operator.user(None).unwrap(), &file).unwrap();
    let error = sink.check().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("correct the credentials in sink_creds_file"), "{error}");

    // The file is read for each connection.
    operator.user(Some(Duration::from_secs(15))).unwrap().write(&file).unwrap();
    let events = deliveries("a", 1, 4);
    assert_eq!(sink.deliver(events[..2].into()).await, Acceptance::all(&events[..2]));
    let denied = timeout(LIMIT, async {
        loop {
            // The server ends the connection, and the next one is refused.
            match sink.check().await {
                Err(error) if !error.is_retryable() => break error,
                _ => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    });
    let error = denied.await.expect("the credentials expire");
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("whose JWT expired") && error.to_string().contains("sink_creds_file"), "{error}");
    let answer = sink.deliver(events[2..].into()).await;
    let refusal = answer.refusals().next().unwrap();
    assert!(!refusal.permanent && refusal.message.contains("sink_creds_file"), "{answer:?}");

    lasting.write(&file).unwrap();
    assert_eq!(sink.deliver(events[2..].into()).await, Acceptance::all(&events[2..]));
    let options = async_nats::ConnectOptions::with_credentials_file(&file).await.unwrap();
    let context = async_nats::jetstream::new(options.connect(nats.address()).await.unwrap());
    let stream = context.get_stream("outbox").await.unwrap();
    for (place, sequence) in [(1, "1"), (2, "2"), (3, "3"), (4, "4")] {
        let message = stream.get_raw_message(place).await.unwrap();
        assert_eq!(message.headers.get("ce-sequence").unwrap().as_str(), sequence);
    }
}
