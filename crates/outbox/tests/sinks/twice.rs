//! Acknowledgements that are repeated, or belong to another event: an event that was not accepted does not count as accepted, and nothing
//! is lost.
//!
//! A relay sits between the sink and the real server. It repeats each acknowledgement immediately. While it is `deaf` it forwards nothing
//! to the server and answers everything with the last acknowledgement.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use shardwise_outbox::exercise::{SinkHarness as _, deliveries};
use shardwise_outbox::sink::{Acceptance, HttpConfig, HttpSink, NatsConfig, NatsSink, RabbitMqConfig, RabbitMqSink, Template, parse_line};
use shardwise_outbox::{OutboxPublisher, PublisherOptions, Sink, Store as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::common::LIMIT;
use crate::http::Server;
use crate::shared::{Outbox, Running, TestSharding, events, eventually};
use crate::{nats, rabbitmq};

const AGGREGATES: u64 = 20;
const EACH: u64 = 5;

/// Splits a server's bytes: returns the length of the first frame, and its repetition if it is an acknowledgement.
type Split = fn(&[u8]) -> Option<(usize, Option<Vec<u8>>)>;

struct Relay {
    address: SocketAddr,
    deaf: Arc<AtomicBool>,
    /// The number of repeated acknowledgements.
    repeated: Arc<AtomicUsize>,
}

impl Relay {
    async fn start(target: SocketAddr, split: Split) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let relay = Self { address: listener.local_addr().unwrap(), deaf: Arc::default(), repeated: Arc::default() };
        let (deaf, repeated) = (Arc::clone(&relay.deaf), Arc::clone(&relay.repeated));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (deaf, repeated) = (Arc::clone(&deaf), Arc::clone(&repeated));
                tokio::spawn(async move {
                    let server = TcpStream::connect(target).await?;
                    pass(client, server, split, &deaf, &repeated).await
                });
            }
        });
        relay
    }

    fn repeated(&self) -> usize {
        self.repeated.load(Ordering::SeqCst)
    }
}

/// Relays until either side ends the connection.
async fn pass(client: TcpStream, server: TcpStream, split: Split, deaf: &AtomicBool, repeated: &AtomicUsize) -> std::io::Result<()> {
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) = (client.into_split(), server.into_split());
    let (mut asked, mut answered, mut rest, mut last) = (vec![0; 1 << 16], vec![0; 1 << 16], Vec::new(), Vec::new());
    loop {
        tokio::select! {
            read = from_client.read(&mut asked) => match read? {
                0 => return Ok(()),
                _ if deaf.load(Ordering::SeqCst) => to_client.write_all(&last).await?,
                read => to_server.write_all(&asked[..read]).await?,
            },
            read = from_server.read(&mut answered) => {
                let read = read?;
                if read == 0 {
                    return Ok(());
                }
                rest.extend_from_slice(&answered[..read]);
                let mut answers = Vec::new();
                while let Some((length, again)) = split(&rest) {
                    answers.extend(rest.drain(..length));
                    if let Some(again) = again {
                        answers.extend_from_slice(&again);
                        last = again;
                        repeated.fetch_add(1, Ordering::SeqCst);
                    }
                }
                to_client.write_all(&answers).await?;
            }
        }
    }
}

fn line_end(bytes: &[u8], end: &[u8]) -> Option<usize> {
    bytes.windows(end.len()).position(|window| window == end).map(|at| at + end.len())
}

/// NATS: a line, followed by the body if it is a message.
fn nats_frames(bytes: &[u8]) -> Option<(usize, Option<Vec<u8>>)> {
    let end = line_end(bytes, b"\r\n")?;
    let line = std::str::from_utf8(&bytes[..end]).unwrap().trim_end();
    if !line.starts_with("MSG ") && !line.starts_with("HMSG ") {
        return Some((end, None));
    }
    let length = end + line.rsplit(' ').next().unwrap().parse::<usize>().unwrap() + 2;
    let frame = bytes.get(..length)?;
    let acknowledges = frame[end..].starts_with(b"{\"stream\":");
    Some((length, acknowledges.then(|| frame.to_vec())))
}

/// AMQP: `basic.ack`, repeated with `multiple`.
fn amqp_frames(bytes: &[u8]) -> Option<(usize, Option<Vec<u8>>)> {
    let size = u32::from_be_bytes(bytes.get(3..7)?.try_into().unwrap());
    let length = usize::try_from(size).unwrap() + 8;
    let frame = bytes.get(..length)?;
    let acknowledges = frame[0] == 1 && frame[7..].starts_with(&[0, 60, 0, 80]);
    Some((length, acknowledges.then(|| [&frame[..19], &[1], &frame[20..]].concat())))
}

/// HTTP: every answer is an acknowledgement, and none of these has a body.
fn http_frames(bytes: &[u8]) -> Option<(usize, Option<Vec<u8>>)> {
    let length = line_end(bytes, b"\r\n\r\n")?;
    Some((length, Some(bytes[..length].to_vec())))
}

/// Publishes five events of each of twenty aggregates.
async fn publish(sink: impl Sink) {
    let outbox = Outbox::new().await;
    outbox.insert_plainly((0..AGGREGATES).flat_map(|n| events(&n.to_string(), 1..=EACH)).collect()).await;
    let store = outbox.store().await;
    let (poll, backoff) = (Duration::from_millis(50), Duration::from_millis(5));
    let options = PublisherOptions { poll, backoff, ..PublisherOptions::default() };
    let publisher = OutboxPublisher::new(Arc::new(store.clone()), Arc::new(sink), Arc::new(TestSharding::full("one")))
        .unwrap()
        .options(options)
        .unwrap();
    let running = Running::start(publisher);
    eventually("all is marked", LIMIT, async || store.status().await.unwrap().pending == 0).await;
    running.stop().await;
    let status = store.status().await.unwrap();
    assert_eq!((status.blocked_aggregates, status.parked), (0, 0));
}

/// Checks that every marked event is there, the first time in its aggregate's order. Returns how many were repeated.
fn all_are_there(arrived: Vec<(String, u64, String)>) -> usize {
    let (all, mut seen, mut last) = (arrived.len(), HashSet::new(), BTreeMap::new());
    for (key, sequence, id) in arrived {
        if seen.insert(id) {
            assert_eq!(last.insert(key.clone(), sequence).unwrap_or(0) + 1, sequence, "{key}");
        }
    }
    assert_eq!(seen.len() as u64, AGGREGATES * EACH);
    all - seen.len()
}

/// The first event is accepted through the relay; the second reaches only the deaf relay, which acknowledges the first again.
async fn an_old_acknowledgement_belongs_to_no_other_event(sink: &dyn Sink, relay: &Relay) {
    let first = deliveries("a", 1, 1);
    assert_eq!(sink.deliver(first.clone().into()).await, Acceptance::all(&first));
    relay.deaf.store(true, Ordering::SeqCst);
    let answer = sink.deliver(deliveries("a", 2, 1).into()).await;
    let refusal = answer.refusals().next().unwrap_or_else(|| panic!("accepted without the server: {answer:?}"));
    assert!(!refusal.permanent, "{answer:?}");
    relay.deaf.store(false, Ordering::SeqCst);
    eventually("it goes on", LIMIT, async || sink.deliver(deliveries("a", 2, 1).into()).await.refusals().next().is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jetstream_acknowledges_twice() {
    let harness = nats::Harness::new(nats::server().await, false).await;
    let relay = Relay::start(harness.nats.socket_addr(), nats_frames).await;
    let sink = || {
        let subject = Template::parse(&format!("{}.{{aggregatetype}}.{{aggregateid}}", harness.name)).unwrap();
        let config = NatsConfig::from_url(&format!("nats://app@{}", relay.address), "/outbox/test").unwrap();
        let mut config = config.password("secret");
        (config.stream, config.subject) = (harness.name.clone(), subject);
        NatsSink::new(config).unwrap()
    };
    publish(sink()).await;
    assert_eq!((relay.repeated() as u64, all_are_there(harness.arrived().await)), (AGGREGATES * EACH, 0));
    an_old_acknowledgement_belongs_to_no_other_event(&sink(), &relay).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rabbitmq_confirms_twice() {
    let harness = rabbitmq::Harness::new(rabbitmq::shared().await).await;
    let relay = Relay::start(harness.rabbit.socket_addr(), amqp_frames).await;
    let sink = || {
        let config = RabbitMqConfig::from_url(&format!("amqp://guest@{}", relay.address), "/outbox/test").unwrap();
        RabbitMqSink::new(config.password("guest").exchange(&harness.name).unwrap())
    };
    publish(sink()).await;
    let again = all_are_there(harness.arrived().await);
    assert!(relay.repeated() as u64 >= AGGREGATES * EACH);
    eprintln!("{again} events came again, after {} second confirmations", relay.repeated());
    an_old_acknowledgement_belongs_to_no_other_event(&sink(), &relay).await;
}

/// Events of every third aggregate are refused at first, so that taking a repeated answer for another event's would show.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_answers_twice() {
    let tried = std::sync::Mutex::new(HashSet::new());
    let server = Server::start(move |request| {
        let id = request.headers["webhook-id"].to_str().unwrap().to_owned();
        let is_third = id.split_once('-').unwrap().0.parse::<u64>().unwrap().is_multiple_of(3);
        (if is_third && tried.lock().unwrap().insert(id) { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::NO_CONTENT })
            .into_response()
    });
    let relay = Relay::start(server.address, http_frames).await;
    let mut config = HttpConfig::from_url(&format!("http://{}/", relay.address), "/outbox/test").unwrap();
    config.allow_private = true;
    publish(HttpSink::new(config).unwrap()).await;
    let arrived = server.taken().into_iter().map(|request| {
        let event = parse_line(&request.body).unwrap();
        (event.key, event.sequence, event.id)
    });
    all_are_there(arrived.collect());
    assert!(relay.repeated() as u64 > AGGREGATES * EACH);
}
