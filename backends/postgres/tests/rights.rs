//! The rights in docs.md: they are enough, and each that is missing is named with the statement that grants it.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Instant;

use common::{PACE, TTL, assert_message, backend, database, group, lasting, registration, slots};
use futures::StreamExt;
use shardwise_backend_postgres::PostgresBackend;
use shardwise_core::ClaimName;
use shardwise_discovery::{Claims, ClaimsEvent, Discovery, Error, ErrorKind, Notes, Registration, WatchEvent, WriteOutcome};
use shardwise_testkit::Database;

/// The grants of docs.md, each as its rights and its table.
fn documented() -> Vec<(Vec<&'static str>, &'static str)> {
    let docs = include_str!("../docs.md");
    let grant = |line: &'static str| {
        let (rights, rest) = line.strip_prefix("GRANT ")?.split_once(" ON shardwise.")?;
        Some((rights.split(", ").collect(), rest.strip_suffix(" TO worker;")?))
    };
    docs.lines().filter_map(grant).collect()
}

/// A database whose user `worker` has the documented rights and no more.
async fn with_rights() -> Database {
    let database = database().await;
    let user = "DO $$ BEGIN CREATE ROLE worker LOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$";
    database.execute(user).await.unwrap();
    database.execute("GRANT USAGE ON SCHEMA shardwise TO worker").await.unwrap();
    for (rights, table) in documented() {
        database.execute(&format!("GRANT {} ON shardwise.{table} TO worker", rights.join(", "))).await.unwrap();
    }
    database
}

fn as_worker(database: &Database) -> std::sync::Arc<PostgresBackend> {
    backend(&database.url().replace("postgres://postgres@", "postgres://worker@"))
}

/// Everything that a worker does; the first refusal.
async fn everything(backend: &PostgresBackend, incarnation: u64) -> Result<(), Error> {
    // Another note each time, so that one is made.
    let name = ClaimName::new(format!("note {incarnation}")).unwrap();
    let mut watch = backend.watch(&group(), PACE);
    let mut claims_watch = backend.watch_claims(&group(), PACE);
    let a = Registration { claims: true, ..registration("a", incarnation) };
    backend.register(&a).await?;
    backend.renew(&a.record_id(), TTL).await?;
    backend.update(&a).await?;
    let store = backend.claim_store(&group(), 0).await?;
    let granted = common::only_granted(backend.acquire(&a.record_id(), &store, &slots(0..3)).await?);
    backend.acquire(&a.record_id(), &store, &slots(0..4)).await?;
    backend.release(&a.record_id(), &granted).await?;
    assert_eq!(backend.note(&group(), &name).await?, None);
    let written = backend.write_note(&group(), &name, 0, "1").await?;
    if let WriteOutcome::Written(version) = written {
        backend.write_note(&group(), &name, version, "2").await?;
    }
    backend.members(&group()).await?;
    assert!(matches!(watch.next().await.unwrap()?, WatchEvent::View(_)));
    assert!(matches!(claims_watch.next().await.unwrap()?, ClaimsEvent::All { .. }));
    backend.step_away(&a, TTL).await?;
    backend.deregister(&a.record_id()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_rights_are_enough_for_everything() {
    let database = with_rights().await;
    everything(&as_worker(&database), 1).await.unwrap();
    let silent = lasting("silent", 2);
    let worker = as_worker(&database);
    worker.register(&Registration { ttl: TTL / 3, ..silent }).await.unwrap();
    let mut watch = worker.watch(&group(), PACE);
    common::view_of(&mut watch, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_right_that_is_missing_is_named() {
    let (database, mut incarnation) = (with_rights().await, 1);
    assert_eq!(documented().len(), 7, "one line a table");
    for (rights, table) in documented() {
        for right in &rights {
            database.execute(&format!("REVOKE {right} ON shardwise.{table} FROM worker")).await.unwrap();
            incarnation += 1;
            let (begun, ran) = (Instant::now(), everything(&as_worker(&database), incarnation).await);
            if table == "observer" {
                // A worker that may not write there evicts no member, and has everything else.
                ran.unwrap();
            } else {
                let error = ran.expect_err(&format!("{right} on {table} is missing"));
                let grant = format!("GRANT {} ON \"shardwise\".{table} TO \"worker\"", rights.join(", "));
                assert_message(&error, &ErrorKind::Denied, begun, &["PostgreSQL at ", &grant]);
            }
            database.execute(&format!("GRANT {right} ON shardwise.{table} TO worker")).await.unwrap();
            // Whatever was half done, the next life replaces.
            database.execute("DELETE FROM shardwise.member").await.unwrap();
        }
    }
    incarnation += 1;
    everything(&as_worker(&database), incarnation).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_on_schema_and_server_are_named_too() {
    let database = with_rights().await;
    database.execute("REVOKE USAGE ON SCHEMA shardwise FROM worker").await.unwrap();
    let begun = Instant::now();
    let error = as_worker(&database).members(&group()).await.unwrap_err();
    assert_message(&error, &ErrorKind::Denied, begun, &["GRANT USAGE ON SCHEMA \"shardwise\" TO \"worker\""]);
    database.execute("GRANT USAGE ON SCHEMA shardwise TO worker").await.unwrap();

    database.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC").await.unwrap();
    let (worker, begun) = (as_worker(&database), Instant::now());
    let error = worker.claim_store(&group(), 0).await.unwrap_err();
    assert_message(&error, &ErrorKind::Denied, begun, &["GRANT EXECUTE ON FUNCTION pg_control_system() TO \"worker\""]);
    worker.register(&lasting("a", 1)).await.unwrap();

    let begun = Instant::now();
    let settings = shardwise_backend_postgres::PostgresBackendConfig {
        schema: "another".into(),
        ..shardwise_backend_postgres::PostgresBackendConfig::new(database.url().replace("postgres://postgres@", "postgres://worker@"))
    };
    let error = PostgresBackend::init(&settings).await.unwrap_err();
    assert_message(&error, &ErrorKind::Denied, begun, &["GRANT CREATE", "`shardwise backend init`"]);
}
