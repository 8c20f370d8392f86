//! Wrong settings, wrong servers, wrong tables: one line in time that names the setting and the cause. And making the tables.

mod common;

use std::time::Instant;

use common::{REPORTED_WITHIN, assert_message, backend, database, durable, eventually, group, lasting, open, registration, shared};
use futures::future::join_all;
use shardwise_backend_postgres::{MIGRATIONS, PostgresBackend, PostgresBackendConfig};
use shardwise_core::ClaimName;
use shardwise_discovery::{Claims, Discovery, ErrorKind, Notes};
use shardwise_testkit::{Port, Postgres, PostgresOptions};

fn config(url: &str) -> PostgresBackendConfig {
    PostgresBackendConfig::new(url)
}

#[tokio::test]
async fn what_cannot_be_reached_is_worth_another_try() {
    let port = Port::reserve().unwrap();
    let begun = Instant::now();
    let error = backend(&format!("postgres://me@{}/app", port.address())).members(&group()).await.unwrap_err();
    let said = error.to_string();
    assert!(begun.elapsed() < REPORTED_WITHIN && error.is_retryable() && *error.kind() == ErrorKind::Unavailable, "{said}");
    assert!(said.contains("cannot be reached") && said.contains("discovery.postgres.url") && !said.contains('\n'), "{said}");
}

#[tokio::test]
async fn what_is_wrong_with_the_database_is_said_with_what_to_do() {
    let database = database().await;
    let url = database.url();
    let missing = format!("{url}_not_there");
    let elsewhere = PostgresBackendConfig { schema: "elsewhere".into(), ..config(&url) };
    let tls = format!("{url}?sslmode=require");
    for (config, names) in [
        (config(&missing), &["does not exist", "create the database", "discovery.postgres.url"][..]),
        (elsewhere, &["\"elsewhere\" has no tables", "`shardwise backend init`", "discovery.postgres.schema"]),
        (config(&tls), &["TLS fails", "sslmode", "discovery.postgres.url"]),
    ] {
        let (begun, backend) = (Instant::now(), open(&config));
        let error = backend.register(&registration("a", 1)).await.unwrap_err();
        assert_message(&error, &ErrorKind::Misconfigured, begun, names);
        let mut watch = backend.watch(&group(), common::PACE);
        assert_eq!(common::next_error(&mut watch).await.kind(), error.kind(), "a watch says so too");
    }
    database.execute("UPDATE shardwise.store SET schema_version = 99").await.unwrap();
    let begun = Instant::now();
    let error = backend(&url).members(&group()).await.unwrap_err();
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["version 99", "upgrade it"]);
    let error = PostgresBackend::init(&config(&url)).await.unwrap_err();
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["version 99", "upgrade it"]);
}

#[tokio::test]
async fn a_wrong_password_is_refused_by_name_and_never_shown() {
    let server = Postgres::start(PostgresOptions::default()).await.unwrap();
    let database = common::prepared(&server).await;
    let rules = server.execute("SHOW hba_file").await.unwrap()[0][0].clone().unwrap();
    let guard = format!(
        "CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'hush-3f9c';
        COPY (VALUES ('host all postgres 127.0.0.1/32 trust'), ('host all guarded 127.0.0.1/32 scram-sha-256')) TO '{rules}';
        SELECT pg_reload_conf()"
    );
    server.execute(&guard).await.unwrap();
    let url = database.url().replace("postgres://postgres@", "postgres://guarded@");
    let with = |password: &str| PostgresBackendConfig { password: Some(password.into()), ..config(&url) };
    // The server reads its rules a moment later.
    eventually("the rules are in force", async || open(&with("wrong-77aa")).members(&group()).await.err()).await;
    let (begun, backend) = (Instant::now(), open(&with("wrong-77aa")));
    let error = backend.register(&registration("a", 1)).await.unwrap_err();
    assert_message(&error, &ErrorKind::Denied, begun, &["refuses this user", "discovery.postgres.password", "pg_hba.conf"]);
    let in_watch = common::next_error(&mut backend.watch(&group(), common::PACE)).await;
    assert_eq!(in_watch.kind(), error.kind(), "a watch says so too");
    for said in [error.to_string(), in_watch.to_string(), format!("{error:?} {backend:?}")] {
        assert!(!said.contains("wrong-77aa") && !said.contains("hush"), "{said}");
    }
    open(&with("hush-3f9c")).register(&lasting("a", 1)).await.unwrap();
}

#[tokio::test]
async fn a_replica_is_refused_at_once() {
    let primary = durable().await;
    let database = common::prepared(&primary).await;
    let standby = primary.standby(primary.socket_addr()).await.unwrap();
    let (begun, replica) = (Instant::now(), backend(&database.on(&standby).url()));
    for error in [
        replica.register(&registration("a", 1)).await.unwrap_err(),
        replica.members(&group()).await.unwrap_err(),
        replica.claim_store(&group(), 0).await.unwrap_err(),
    ] {
        assert_message(&error, &ErrorKind::Misconfigured, begun, &["replica", "discovery.postgres.url"]);
    }
    let error = PostgresBackend::init(&config(&database.on(&standby).url())).await.unwrap_err();
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["replica"]);
}

#[tokio::test]
async fn without_flushes_there_is_no_exclusive_ownership() {
    let server = Postgres::start(PostgresOptions::default()).await.unwrap();
    let (database, begun) = (common::prepared(&server).await, Instant::now());
    let backend = backend(&database.url());
    backend.register(&lasting("a", 1)).await.unwrap();
    let error = backend.claim_store(&group(), 0).await.unwrap_err();
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["fsync", "eventual"]);
}

/// A server that confirms before it flushes is made to flush for what members rely on.
#[tokio::test]
async fn a_weaker_commit_is_made_a_strong_one() {
    for (set, used) in [("off", "on"), ("local", "on"), ("remote_write", "remote_write"), ("remote_apply", "remote_apply")] {
        let server = Postgres::start(PostgresOptions::default().durable().with_setting("synchronous_commit", set)).await.unwrap();
        let database = common::prepared(&server).await;
        let spy = "CREATE TABLE seen (setting text);
            CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS
                'BEGIN INSERT INTO public.seen SELECT current_setting(''synchronous_commit''); RETURN NULL; END';
            CREATE TRIGGER spy AFTER INSERT OR UPDATE ON shardwise.member EXECUTE FUNCTION spy();
            CREATE TRIGGER spy AFTER INSERT OR UPDATE ON shardwise.claim EXECUTE FUNCTION spy();
            CREATE TRIGGER spy AFTER INSERT OR UPDATE ON shardwise.note EXECUTE FUNCTION spy();
            CREATE TRIGGER spy AFTER INSERT OR UPDATE ON shardwise.observer EXECUTE FUNCTION spy()";
        database.execute(spy).await.unwrap();
        let (backend, a) = (backend(&database.url()), common::claimant(&backend(&database.url()), "a", 1).await);
        backend.renew(&a, common::TTL).await.unwrap();
        common::granted(&backend, &a, &common::slots(0..1)).await;
        backend.write_note(&group(), &ClaimName::new("n").unwrap(), 0, "1").await.unwrap();
        let seen = database.execute("SELECT DISTINCT setting FROM seen").await.unwrap();
        assert_eq!(seen, [[Some(used.to_owned())]], "the server's is {set}");
    }
}

#[tokio::test]
async fn tables_are_made_once_however_many_make_them() {
    let database = shared().await.database().await.unwrap();
    let config = config(&database.url());
    let done = join_all((0..5).map(|_| PostgresBackend::init(&config))).await;
    let made = done.into_iter().filter(|done| done.as_ref().unwrap().starts_with("made the tables in the schema shardwise of ")).count();
    assert!(made >= 1, "some process made them");
    let again = PostgresBackend::init(&config).await.unwrap();
    assert!(again.contains("up to date (version 1)"), "{again}");
    backend(&database.url()).register(&lasting("a", 1)).await.unwrap();

    let down = format!("SET search_path = shardwise; {}", MIGRATIONS[0].down);
    database.execute(&down).await.unwrap();
    let left = "SELECT count(*) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = 'shardwise'";
    assert_eq!(database.execute(left).await.unwrap()[0][0].as_deref(), Some("0"), "the way back leaves nothing");
}

#[tokio::test]
async fn a_database_in_another_encoding_is_refused() {
    let (server, begun) = (shared().await, Instant::now());
    server.execute("CREATE DATABASE odd ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0").await.unwrap();
    let url = format!("postgres://postgres@{}/odd", server.socket_addr());
    let error = PostgresBackend::init(&config(&url)).await.unwrap_err();
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["encoding SQL_ASCII", "UTF8"]);
}
