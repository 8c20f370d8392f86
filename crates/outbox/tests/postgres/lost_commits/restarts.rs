//! A restart that loses nothing stops no publisher, whatever has been deleted before; and a sequence object that fell back is reported.

use std::sync::Arc;

use shardwise_outbox::exercise::StoreHarness as _;
use shardwise_outbox::store::{EventRun, PublisherRegistration, TouchReply};
use shardwise_outbox::{ErrorKind, PostgresConfig, PostgresStore, Store as _};
use shardwise_testkit::{Postgres, PostgresOptions, TcpProxy};

use super::{LIMIT, RETENTION, marked, owner, recorded_without_an_answer, request, touched};
use crate::common::Outbox;
use crate::publishing::delivered;
use crate::shared::{events, eventually};

/// A server behind a proxy, with an outbox.
struct Server {
    postgres: Arc<Postgres>,
    clients: TcpProxy,
    outbox: Outbox,
}

impl Server {
    async fn new() -> Self {
        let postgres = Postgres::start(PostgresOptions::default()).await.unwrap();
        let outbox = Outbox::on(&postgres).await;
        let clients = TcpProxy::start(postgres.socket_addr()).await.unwrap();
        Self { postgres, clients, outbox }
    }

    async fn open(&self) -> PostgresStore {
        let url = self.outbox.database.url_at(self.clients.address());
        PostgresStore::open(PostgresConfig::from_url(&url).unwrap()).await.unwrap()
    }

    /// Another publisher forgets every aggregate without events.
    async fn forgets_all(&self) {
        let other = self.outbox.store().await;
        eventually("the aggregates are forgotten", LIMIT, async || {
            other.clean(RETENTION, 100).await.unwrap();
            self.outbox.execute("SELECT 1 FROM outbox_aggregate").await.is_empty()
        })
        .await;
        other.close().await;
    }

    async fn restarts(&self) {
        self.postgres.restart().await.unwrap();
        self.clients.reset();
        self.clients.heal().await.unwrap();
    }
}

async fn fetched(store: &PostgresStore, me: &PublisherRegistration) -> Vec<EventRun> {
    let runs = store.fetch(me, &request()).await.unwrap().runs;
    assert_eq!(runs.iter().map(|run| run.events.len()).sum::<usize>(), 1, "{runs:?}");
    runs
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aggregate_that_is_forgotten_behind_a_mark_without_an_answer_stops_no_publisher() {
    let server = Server::new().await;
    server.outbox.insert(events("a", 1..=1)).await;
    let store = server.open().await;
    let (me, _) = owner(&store, 1).await;
    let runs = fetched(&store, &me).await;
    recorded_without_an_answer(&server.outbox, &server.clients, &store, &me, &runs, true).await;
    server.forgets_all().await;
    server.restarts().await;
    let answer = touched(&store, &me).await;
    assert!(matches!(answer, Ok(TouchReply::Seen(_))), "{answer:?}");
    server.outbox.insert(events("a", 2..=2)).await;
    store.place_new(10).await.unwrap();
    fetched(&store, &me).await;
}

/// Its new row has nothing to do with what was delivered before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_forgotten_and_written_again_stops_no_publisher() {
    let server = Server::new().await;
    server.outbox.insert(events("a", 1..=1)).await;
    let store = server.open().await;
    let (me, _) = owner(&store, 1).await;
    let runs = fetched(&store, &me).await;
    recorded_without_an_answer(&server.outbox, &server.clients, &store, &me, &runs, true).await;
    server.forgets_all().await;
    server.outbox.insert(events("a", 2..=2)).await;
    server.restarts().await;
    let answer = touched(&store, &me).await;
    assert!(matches!(answer, Ok(TouchReply::Seen(_))), "{answer:?}");
    fetched(&store, &me).await;
}

/// A touch after the reading proves that nothing is lost, even if the row was deleted since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_were_read_and_deleted_by_hand_stop_no_publisher() {
    for by_hand in ["DELETE FROM outbox", "DELETE FROM outbox; DELETE FROM outbox_head; DELETE FROM outbox_aggregate"] {
        let server = Server::new().await;
        server.outbox.insert(events("a", 1..=1)).await;
        let store = server.open().await;
        let (me, _) = owner(&store, 1).await;
        fetched(&store, &me).await;
        server.outbox.execute(by_hand).await;
        store.touch(&me).await.unwrap();
        server.restarts().await;
        let answer = touched(&store, &me).await;
        assert!(matches!(answer, Ok(TouchReply::Seen(_))), "{by_hand}: {answer:?}");
    }
}

/// Their rows are not expected any more, although delivered events are kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivered_events_whose_retention_is_over_stop_no_publisher() {
    let server = Server::new().await;
    server.outbox.insert(events("a", 1..=1)).await;
    server.outbox.execute("UPDATE outbox SET created_at = created_at - interval '2 hours'").await;
    let store = server.open().await;
    let (me, _) = owner(&store, 1).await;
    store.sweep(RETENTION, 0, 100).await.unwrap();
    let runs = fetched(&store, &me).await;
    assert_eq!(store.record(&me, &marked(&runs), false).await.unwrap(), []);
    assert_eq!(store.sweep(RETENTION, 0, 100).await.unwrap().deleted, 1);
    server.forgets_all().await;
    server.restarts().await;
    let answer = touched(&store, &me).await;
    assert!(matches!(answer, Ok(TouchReply::Seen(_))), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_learns_what_to_do_when_the_numbers_fell_back() {
    let outbox = Outbox::new().await;
    let store = outbox.store().await;
    store.enqueue_all(events("a", 1..=3)).await.unwrap();
    outbox.execute("ALTER SEQUENCE outbox_order RESTART").await;
    let error = store.enqueue_all(events("a", 4..=4)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    for words in ["order/a has come to 1", "`shardwise outbox restored` with --epoch-above 0 and, for --sequence-above, the highest"] {
        assert!(error.to_string().contains(words), "{words:?} is not in: {error}");
    }
    store.restored(0, 3).await.unwrap();
    store.enqueue_all(events("a", 4..=4)).await.unwrap();
    let arrived = delivered(&outbox).await;
    assert!(arrived.len() == 4 && arrived[3].sequence > 3, "{arrived:?}");
}

/// A forgotten aggregate's row no longer shows a writer that its number is too low.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_notices_that_the_numbers_fell_back_and_every_event_is_refused() {
    let outbox = Outbox::new().await;
    let store = outbox.store().await;
    store.enqueue_all(events("a", 1..=3)).await.unwrap();
    let (me, _) = owner(&store, 1).await;
    let runs = store.fetch(&me, &request()).await.unwrap().runs;
    store.record(&me, &marked(&runs), false).await.unwrap();
    assert!(matches!(store.touch(&me).await.unwrap(), TouchReply::Seen(_)));
    outbox.execute("ALTER SEQUENCE outbox_order RESTART").await;
    store.enqueue_all(events("a", 4..=4)).await.unwrap();
    let said = "or a number was too low (outbox_floor is not set)";
    for _ in 0..2 {
        let error = store.touch(&me).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Schema && error.to_string().contains(said), "{error}");
        let error = store.register(&me).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Schema && error.to_string().contains(said), "{error}");
        let error = store.enqueue_all(events("b", 1..=1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    }
    assert!(store.status().await.unwrap().needs_restored);
    let restored = store.restored(0, 3).await.unwrap();
    assert_eq!(restored.waiting, 1, "what was written since keeps its number");
    store.enqueue_all(events("a", 5..=5)).await.unwrap();
    let arrived = delivered(&outbox).await;
    assert!(arrived.len() == 2 && arrived[1].sequence > 3, "{arrived:?}");
}
