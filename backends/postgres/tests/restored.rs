//! Failovers and tables that were made anew: revisions never fall, and no epoch is granted again before an operator has raised the floor.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{PACE, assert_message, backend, claimant, durable, eventually, granted, group, ids, lasting, prepared, slots, store, view_of};
use futures::StreamExt;
use shardwise_backend_postgres::{MIGRATIONS, PostgresBackend, PostgresBackendConfig};
use shardwise_core::ClaimStore;
use shardwise_discovery::{Claims, Discovery, ErrorKind, RecordId, WatchEvent};
use shardwise_testkit::{Database, Postgres, TcpProxy};

/// A server with a standby that follows it, behind a proxy for clients.
struct Pair {
    primary: Arc<Postgres>,
    standby: Arc<Postgres>,
    clients: TcpProxy,
    database: Database,
}

impl Pair {
    async fn new() -> Self {
        let primary = durable().await;
        let database = prepared(&primary).await;
        let standby = primary.standby(primary.socket_addr()).await.unwrap();
        let clients = TcpProxy::start(primary.socket_addr()).await.unwrap();
        Self { primary, standby, clients, database }
    }

    fn url(&self) -> String {
        self.database.url_at(self.clients.address())
    }

    /// Waits until the standby has everything, stops the primary, and leads the clients to the standby.
    async fn fails_over(&self) {
        let written = self.primary.execute("SELECT pg_current_wal_insert_lsn()").await.unwrap();
        let there = format!("SELECT 1 WHERE pg_last_wal_replay_lsn() >= '{}'", written[0][0].as_ref().unwrap());
        eventually("the standby has everything", async || {
            (!self.standby.execute(&there).await.unwrap_or_default().is_empty()).then_some(())
        })
        .await;
        self.primary.kill().unwrap();
        self.clients.lead_to(self.standby.socket_addr());
        self.clients.reset();
        self.standby.execute("SELECT pg_promote()").await.unwrap();
    }
}

/// Asks until the server answers.
async fn acquired(backend: &PostgresBackend, record_id: &RecordId, store: &ClaimStore) -> ErrorKind {
    eventually("an answer", async || match backend.acquire(record_id, store, &slots(0..1)).await {
        Err(error) if error.is_retryable() || *error.kind() == ErrorKind::Misconfigured => None,
        Err(error) => Some(error.kind().clone()),
        Ok(_) => unreachable!("nothing may be granted"),
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failover_nothing_is_granted_before_the_floor_is_raised() {
    let pair = Pair::new().await;
    let (worker, mut watch) = (backend(&pair.url()), backend(&pair.url()).watch(&group(), PACE));
    let a = claimant(&worker, "a", 1).await;
    let before = store(&worker).await;
    let held = granted(&worker, &a, &slots(0..3)).await;
    let highest = held.iter().map(|(_, epoch)| epoch.get()).max().unwrap();
    let mut revision = view_of(&mut watch, &["a"]).await.revision();
    pair.fails_over().await;

    assert_eq!(acquired(&worker, &a, &before).await, ErrorKind::OtherStore);
    // For a member that knows the store it is another one, and a process that comes now hears what to do.
    let found = store(&worker).await;
    assert!(found.id != before.id && found.floor == before.floor, "{before:?}, then {found:?}");
    let (newcomer, begun) = (backend(&pair.url()), Instant::now());
    let error = newcomer.claim_store(&group(), 0).await.unwrap_err();
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["epoch_floor", "system identifier and timeline"]);

    // Members stay, and revisions go on above.
    newcomer.register(&lasting("b", 2)).await.unwrap();
    let expected = ["a", "b"];
    let limit = tokio::time::Instant::now() + common::PATIENCE;
    loop {
        let event = tokio::time::timeout_at(limit, watch.next()).await.unwrap().unwrap();
        let Ok(WatchEvent::View(snapshot)) = event else { continue };
        assert!(snapshot.view.revision() >= revision, "{} after {revision}", snapshot.view.revision());
        revision = snapshot.view.revision();
        if ids(&snapshot.view) == expected {
            break;
        }
    }

    let raised = newcomer.claim_store(&group(), highest + 100).await.unwrap();
    assert_eq!(raised.floor, highest + 100);
    assert_eq!(store(&worker).await, raised, "all see it");
    let again = granted(&worker, &a, &slots(0..3)).await;
    assert_eq!(again.len(), 3, "its record was not lost, nor its claims");
    let fresh = granted(&worker, &a, &slots(5..6)).await;
    assert!(fresh.iter().all(|(_, epoch)| epoch.get() > raised.floor), "{fresh:?}");
}

/// The tables are dropped and made again while workers run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_were_made_anew_are_another_store_and_views_do_not_go_back() {
    let database = prepared(&durable().await).await;
    let (worker, outside) = (backend(&database.url()), backend(&database.url()));
    let a = claimant(&worker, "a", 1).await;
    let before = store(&worker).await;
    granted(&worker, &a, &slots(0..3)).await;
    let mut watch = outside.watch(&group(), PACE);
    let revision = view_of(&mut watch, &["a"]).await.revision();
    database.execute(&format!("SET search_path = shardwise; {}", MIGRATIONS[0].down)).await.unwrap();
    PostgresBackend::init(&PostgresBackendConfig::new(database.url())).await.unwrap();
    let error = worker.renew(&a, Duration::from_secs(9)).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Lost);
    worker.register(&lasting("b", 2)).await.unwrap();
    let view = view_of(&mut watch, &["b"]).await;
    assert!(view.revision() > revision, "{} after {revision}", view.revision());
    assert_ne!(store(&worker).await.id, before.id);
}
