//! Two webhooks behind one gateway, one of which answers late.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use shardwise_outbox::sink::{HttpConfig, HttpSink, parse_line};
use shardwise_outbox::{NewEvent, OutboxPublisher, PublisherOptions, Store as _};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::common::LIMIT;
use crate::shared::{Outbox, Running, TestSharding, eventually};

const LATE: &str = "invoice";
/// Many more aggregates than requests at a time, and than the publisher keeps in memory.
const LATE_AGGREGATES: u64 = 200;
const LATE_EVENTS: u64 = 2;
const PROMPT: &str = "order";
const PROMPT_AGGREGATES: u64 = 20;
const ROUNDS: u64 = 5;
/// Higher than any number of events here.
const ALL: usize = 1 << 16;

/// An event that was answered: its id, its key and its sequence.
type Answered = (String, String, u64);

/// The invoices' service answers as many requests as it has permits; the other one answers at once.
#[derive(Clone)]
struct LateGateway {
    permits: Arc<Semaphore>,
    /// In the order of the answers.
    answered: Arc<Mutex<Vec<Answered>>>,
}

async fn answer(State(gateway): State<LateGateway>, uri: Uri, body: Bytes) -> StatusCode {
    if uri.path().ends_with(LATE) {
        // A client that gives up ends this wait, and takes no permit.
        gateway.permits.acquire().await.unwrap().forget();
    }
    let event = parse_line(&body).unwrap();
    gateway.answered.lock().unwrap().push((event.id, event.key, event.sequence));
    StatusCode::NO_CONTENT
}

impl LateGateway {
    async fn start() -> (Self, SocketAddr) {
        let gateway = Self { permits: Arc::new(Semaphore::new(0)), answered: Arc::default() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(answer).with_state(gateway.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        (gateway, address)
    }

    /// The different events of a kind, in the order of their first answers.
    fn of(&self, kind: &str) -> Vec<Answered> {
        let mut seen = HashSet::new();
        let answered = self.answered.lock().unwrap();
        let of_kind = |(id, key, _): &&Answered| key.starts_with(kind) && seen.insert(id.clone());
        answered.iter().filter(of_kind).cloned().collect()
    }

    /// Repetitions included: as many as permits were taken.
    fn late_answers(&self) -> u64 {
        self.answered.lock().unwrap().iter().filter(|(_, key, _)| key.starts_with(LATE)).count() as u64
    }

    fn sequences(&self, kind: &str) -> BTreeMap<String, Vec<u64>> {
        let mut by_key: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (_, key, sequence) in self.of(kind) {
            by_key.entry(key).or_default().push(sequence);
        }
        by_key
    }
}

fn events(kind: &str, aggregates: u64, number: u64) -> Vec<NewEvent> {
    let event = |aggregate: u64| NewEvent::new(kind, aggregate.to_string(), "Changed", format!("{{\"n\":{number}}}"));
    (0..aggregates).map(event).collect()
}

/// Each round of orders must be answered before the next invoice is, so the order of the answers shows that orders wait for none. The
/// invoices alone would fill the memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_that_answers_late_holds_up_no_event_of_another_and_gets_all_of_its_own() {
    let (outbox, (gateway, address)) = (Outbox::new().await, LateGateway::start().await);
    for number in 1..=LATE_EVENTS {
        outbox.insert_plainly(events(LATE, LATE_AGGREGATES, number)).await;
    }
    let mut config = HttpConfig::from_url(&format!("http://{address}/{{aggregatetype}}"), "/outbox/test").unwrap();
    (config.allow_private, config.timeout) = (true, Duration::from_secs(20));
    // A request that waits longer than that on a busy machine is tried again, and must not be given up.
    let (poll, backoff) = (Duration::from_millis(50), Duration::from_millis(5));
    let options = PublisherOptions { batch: 30, max_attempts: 1_000, poll, backoff, ..PublisherOptions::default() };
    let (store, sink) = (outbox.store().await, HttpSink::new(config).unwrap());
    let publisher = OutboxPublisher::new(Arc::new(store), Arc::new(sink), Arc::new(TestSharding::full("one"))).unwrap();
    let running = Running::start(publisher.options(options).unwrap());
    eventually("the invoices' service is found to be slow", LIMIT, async || running.stats.snapshot().destinations_slow > 0).await;
    for round in 1..=ROUNDS {
        outbox.insert_plainly(events(PROMPT, PROMPT_AGGREGATES, round)).await;
        let expected = round * PROMPT_AGGREGATES;
        eventually("the orders are answered", LIMIT, async || gateway.of(PROMPT).len() as u64 == expected).await;
        assert_eq!(gateway.late_answers(), round - 1, "no invoice was answered before the orders of round {round}");
        gateway.permits.add_permits(1);
        eventually("one invoice is answered", LIMIT, async || gateway.late_answers() == round).await;
    }
    let store = outbox.store().await;
    gateway.permits.add_permits(ALL);
    eventually("nothing is pending", LIMIT, async || store.status().await.unwrap().pending == 0).await;
    running.stop().await;
    let status = store.status().await.unwrap();
    assert_eq!((status.blocked_aggregates, status.parked), (0, 0));
    for (kind, aggregates, numbers) in [(LATE, LATE_AGGREGATES, LATE_EVENTS), (PROMPT, PROMPT_AGGREGATES, ROUNDS)] {
        let sequences = gateway.sequences(kind);
        assert_eq!(sequences.len() as u64, aggregates, "{kind}");
        for (key, sequences) in sequences {
            assert_eq!(sequences, (1..=numbers).collect::<Vec<_>>(), "{key}");
        }
    }
}
