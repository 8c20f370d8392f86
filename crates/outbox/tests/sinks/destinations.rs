//! Several services behind one address, one of which is down.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use shardwise_outbox::sink::{HttpSink, parse_line};
use shardwise_outbox::{NewEvent, OutboxPublisher, PublisherOptions, Store as _};

use crate::common::LIMIT;
use crate::http::{Server, ok};
use crate::shared::{Outbox, Running, TestSharding, eventually};
const AGGREGATES: u64 = 20;

/// A gateway: invoices go to a separate service.
fn gateway(invoices: SocketAddr, tried: &Arc<AtomicUsize>) -> Server {
    let tried = Arc::clone(tried);
    Server::start(move |request| {
        if request.uri.path() != "/invoice" {
            return StatusCode::NO_CONTENT.into_response();
        }
        tried.fetch_add(1, Ordering::SeqCst);
        let up = TcpStream::connect(invoices).is_ok();
        (if up { StatusCode::NO_CONTENT } else { StatusCode::BAD_GATEWAY }).into_response()
    })
}

fn events(kind: &str, number: u64) -> Vec<NewEvent> {
    let event = |aggregate: u64| NewEvent::new(kind, aggregate.to_string(), "Changed", format!("{{\"n\":{number}}}"));
    (0..AGGREGATES).map(event).collect()
}

fn sequences(server: &Server, kind: &str) -> BTreeMap<String, Vec<u64>> {
    let mut by_key: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for event in server.taken().iter().map(|request| parse_line(&request.body).unwrap()).filter(|event| event.key.starts_with(kind)) {
        by_key.entry(event.key).or_default().push(event.sequence);
    }
    by_key
}

/// With one circuit breaker for the whole sink, invoices would be charged for every accepted order, and soon be blocked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_down_is_an_outage_of_its_own_and_holds_no_other_up() {
    let (outbox, invoices, tried) = (Outbox::new().await, Server::start(ok), Arc::new(AtomicUsize::new(0)));
    let gateway = gateway(invoices.address, &tried);
    invoices.stop();
    let sink = HttpSink::new(gateway.config("/{aggregatetype}")).unwrap();
    let (poll, backoff) = (Duration::from_millis(50), Duration::from_millis(5));
    let options = PublisherOptions { batch: 30, max_attempts: 2, poll, backoff, ..PublisherOptions::default() };
    for number in 1..=3 {
        outbox.insert_plainly(events("invoice", number)).await;
    }
    let publisher = OutboxPublisher::new(Arc::new(outbox.store().await), Arc::new(sink), Arc::new(TestSharding::full("one")))
        .unwrap()
        .options(options)
        .unwrap();
    let running = Running::start(publisher);
    eventually("the invoices are taken to be down", LIMIT, async || running.stats.snapshot().destinations_down > 0).await;
    let (mut written, before) = (0, tried.load(Ordering::SeqCst));
    eventually("invoices are probed, and orders pass all the while", LIMIT, async || {
        written += 1;
        outbox.insert_plainly(events("order", written)).await;
        let orders = || sequences(&gateway, "order").values().map(Vec::len).sum::<usize>() as u64;
        eventually("the orders pass", LIMIT, async || orders() == written * AGGREGATES).await;
        written >= 5 && tried.load(Ordering::SeqCst) >= before + 6
    })
    .await;
    let store = outbox.store().await;
    eventually("all orders are marked", LIMIT, async || store.status().await.unwrap().pending == 3 * AGGREGATES).await;
    let status = store.status().await.unwrap();
    assert_eq!((status.blocked_aggregates, status.parked), (0, 0), "nothing is charged");
    let mut conn = outbox.connection().await;
    let attempts: i64 = sqlx::query_scalar("SELECT sum(attempts) FROM outbox_aggregate").fetch_one(&mut conn).await.unwrap();
    assert_eq!(attempts, 0);
    invoices.restart();
    let all = || sequences(&gateway, "invoice").values().filter(|sequences| **sequences == [1, 2, 3]).count() as u64;
    eventually("every invoice comes in order", LIMIT, async || all() == AGGREGATES).await;
    eventually("and it is up again", LIMIT, async || running.stats.snapshot().destinations_down == 0).await;
    running.stop().await;
}
