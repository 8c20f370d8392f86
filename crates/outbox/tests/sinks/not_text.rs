//! Payloads that are not text, and NUL in JSON, from PostgreSQL into each destination: every byte arrives, in order, and nothing is
//! refused.

use std::sync::Arc;
use std::time::Duration;

use shardwise_outbox::sink::{FileSink, HttpSink, Mode, NatsSink, RabbitMqSink, RedisSink, parse_line};
use shardwise_outbox::{OutboxPublisher, Payload, PostgresConfig, PostgresStore, PublisherOptions, Sink, Store as _};
use shardwise_testkit::Postgres;

use crate::common::{LIMIT, decoded};
use crate::http::{Server, ok};
use crate::rabbitmq::header;
use crate::redis::PER_AGGREGATE;
use crate::shared::{Running, TestSharding, eventually};
use crate::{kafka, nats, rabbitmq, redis};
const MODES: [Mode; 2] = [Mode::Binary, Mode::Structured];

/// Bytes that are not UTF-8, the same labelled as JSON, NUL in JSON and in a header, half of a surrogate pair in JSON, bytes with NUL, and
/// text.
const EVENTS: &str = r#"INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, payload_bytes, headers) VALUES
    ('1', 'order', 'n', 't', NULL, '\x00ff80', NULL),
    ('2', 'order', 'n', 't', NULL, '\x7b22ff223a317d', '{"datacontenttype":"application/json"}'),
    ('3', 'order', 'n', 't', '{"a":"\u0000"}', NULL, '{"tenant":"a\u0000b","traceparent":"00-\u0000"}'),
    ('4', 'order', 'n', 't', '{"a":"\ud800"}', NULL, '{"half":"\ud800"}'),
    ('5', 'order', 'n', 't', NULL, '\x610062', NULL),
    ('6', 'order', 'n', 't', 'ü', NULL, NULL)"#;

fn payloads() -> [Payload; 6] {
    let bytes = |bytes: &[u8]| Payload::Binary(bytes.into());
    [bytes(b"\0\xff\x80"), bytes(b"{\"\xff\":1}"), r#"{"a":"\u0000"}"#.into(), r#"{"a":"\ud800"}"#.into(), bytes(b"a\0b"), "ü".into()]
}

/// Publishes the events to the sink.
async fn publish(sink: impl Sink) {
    let database = Postgres::shared().await.unwrap().database().await.unwrap();
    let store = PostgresStore::init(PostgresConfig::from_url(&database.url()).unwrap()).await.unwrap();
    database.execute(EVENTS).await.unwrap();
    let options = PublisherOptions { poll: Duration::from_millis(50), ..PublisherOptions::default() };
    let publisher = OutboxPublisher::new(Arc::new(store.clone()), Arc::new(sink), Arc::new(TestSharding::full("one")))
        .unwrap()
        .options(options)
        .unwrap();
    let running = Running::start(publisher);
    eventually("all is delivered", LIMIT, async || store.status().await.unwrap().pending == 0).await;
    assert_eq!(running.stats.snapshot().retried, 0);
    running.stop().await;
    let status = store.status().await.unwrap();
    assert_eq!((status.blocked_aggregates, status.parked), (0, 0));
    store.close().await;
}

/// Checks the bodies that arrived.
fn are_whole(bodies: &[Vec<u8>], mode: Mode) {
    let read = |body: &Vec<u8>| match mode {
        Mode::Binary => Payload::Binary(body.clone()),
        Mode::Structured => parse_line(body).unwrap_or_else(|| panic!("no event to a reader: {}", body.escape_ascii())).payload,
    };
    let expected = payloads().map(|payload| match (mode, payload) {
        (Mode::Binary, Payload::Text(text)) => Payload::Binary(text.into()),
        (_, payload) => payload,
    });
    assert_eq!(bodies.iter().map(read).collect::<Vec<_>>(), expected, "{mode:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn into_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    publish(FileSink::new(&path, "/outbox/test")).await;
    let text = std::fs::read(path).unwrap();
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    are_whole(&lines.map(<[u8]>::to_vec).collect::<Vec<_>>(), Mode::Structured);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn into_a_webhook() {
    for mode in MODES {
        let server = Server::start(ok);
        let mut config = server.config("/");
        config.mode = mode;
        publish(HttpSink::new(config).unwrap()).await;
        let taken = server.taken();
        are_whole(&taken.iter().map(|request| request.body.to_vec()).collect::<Vec<_>>(), mode);
        if mode == Mode::Binary {
            let header = |name: &str| taken[2].headers.get(name).map(|value| decoded(value.to_str().unwrap()));
            assert_eq!((header("ce-tenant"), header("traceparent")), (Some("a\0b".into()), None));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn into_jetstream() {
    let server = nats::server().await;
    for mode in MODES {
        let harness = nats::Harness::new(std::sync::Arc::clone(&server), false).await;
        publish(NatsSink::new(harness.config_in(mode)).unwrap()).await;
        let messages = harness.messages().await;
        are_whole(&messages.iter().map(|message| message.payload.to_vec()).collect::<Vec<_>>(), mode);
        if mode == Mode::Binary {
            let header = |name: &str| messages[2].headers.get(name).map(|value| decoded(value.as_str()));
            assert_eq!((header("ce-tenant"), header("traceparent")), (Some("a\0b".into()), None));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn into_redis() {
    let server = redis::server().await;
    for (mode, body) in MODES.into_iter().zip(["data", "event"]) {
        let harness = redis::Harness::new(std::sync::Arc::clone(&server), PER_AGGREGATE).await;
        publish(RedisSink::new(harness.config_in(mode))).await;
        let entries = harness.streams().await.remove(0).1;
        let field =
            |entry: &redis::Entry, name: &str| entry.1.chunks(2).find(|pair| pair[0] == name.as_bytes()).map(|pair| pair[1].clone());
        are_whole(&entries.iter().map(|entry| field(entry, body).unwrap()).collect::<Vec<_>>(), mode);
        if mode == Mode::Binary {
            assert_eq!(field(&entries[2], "tenant").as_deref(), Some(&b"a\0b"[..]));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn into_kafka() {
    for mode in MODES {
        let harness = kafka::Harness::quiet(1);
        publish(harness.sink(|config| config.mode = mode)).await;
        let messages = harness.received().await;
        are_whole(&messages.iter().map(|message| message.value.clone().unwrap()).collect::<Vec<_>>(), mode);
        if mode == Mode::Binary {
            assert_eq!(messages[2].header("ce_tenant"), "a\0b");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn into_rabbitmq() {
    let server = rabbitmq::shared().await;
    for mode in MODES {
        let harness = rabbitmq::Harness::new(std::sync::Arc::clone(&server)).await;
        publish(RabbitMqSink::new(harness.config_in(mode))).await;
        let messages = harness.messages().await;
        are_whole(&messages.iter().map(|message| message.data.clone()).collect::<Vec<_>>(), mode);
        if mode == Mode::Binary {
            assert_eq!(header(&messages[2], "cloudEvents_tenant"), "a\0b");
        }
    }
}
