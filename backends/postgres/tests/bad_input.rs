//! Wrong settings, wrong servers, wrong certificates, wrong tables: one line in time that names the setting and the cause. And making the
//! tables.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::time::Instant;

use common::{
    REPORTED_WITHIN, assert_message, backend, claimant, database, durable, eventually, group, lasting, open, registration, shared, slots,
    store,
};
use futures::future::join_all;
use shardwise_backend_postgres::{MIGRATIONS, PostgresBackend, PostgresBackendConfig};
use shardwise_core::ClaimName;
use shardwise_discovery::{AcquireOutcome, Claims, Discovery, Error, ErrorKind, Notes};
use shardwise_testkit::{Authority, CertIdentity, Database, Port, Postgres, PostgresOptions};

/// Whom a server with TLS admits: a guest by TLS alone, and a worker by a certificate with that name.
const RULES: &str = "hostssl all guest 127.0.0.1/32 trust\nhostssl all worker 127.0.0.1/32 cert";

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
    let rules = "host all guarded 127.0.0.1/32 scram-sha-256";
    let server = Postgres::start(PostgresOptions::default().with_rules(rules)).await.unwrap();
    let database = common::prepared(&server).await;
    server.execute("CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'hush-3f9c'").await.unwrap();
    let url = database.url().replace("postgres://postgres@", "postgres://guarded@");
    let with = |password: &str| PostgresBackendConfig { password: Some(password.into()), ..config(&url) };
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

/// A database of a server whose certificate is for `localhost` and not for `127.0.0.1`, and the authority of servers and clients.
async fn with_tls() -> (Authority, Database) {
    let authority = Authority::new().unwrap();
    let identity = authority.server_named("localhost").unwrap();
    let server = Postgres::start(PostgresOptions::default().with_tls(&identity).with_rules(RULES)).await.unwrap();
    server.execute("CREATE ROLE guest LOGIN SUPERUSER; CREATE ROLE worker LOGIN SUPERUSER").await.unwrap();
    (authority, common::prepared(&server).await)
}

/// That database for a user, by a name of this machine.
fn over_tls(database: &Database, user: &str, host: &str, parameters: &str) -> PostgresBackendConfig {
    config(&format!("{}?{parameters}", database.url().replace("postgres@127.0.0.1", &format!("{user}@{host}"))))
}

/// The parameters that show this certificate.
fn shown(certificate: &CertIdentity, key: &CertIdentity) -> String {
    format!("&sslcert={}&sslkey={}", certificate.certificate().display(), key.key().display())
}

/// Why these settings are refused for good. A server that refuses a client's certificate closes the connection, and on a busy machine that
/// may be seen before the reason.
async fn refusal(config: &PostgresBackendConfig) -> Error {
    eventually("a refusal", async || open(config).members(&group()).await.err().filter(|error| !error.is_retryable())).await
}

#[tokio::test]
async fn each_sslmode_verifies_what_the_documentation_says() {
    let ((authority, database), other) = (with_tls().await, Authority::new().unwrap());
    let [ours, strange] = [&authority, &other].map(|authority| format!("&sslrootcert={}", authority.file().display()));
    let encrypted = "SELECT DISTINCT ssl::text FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'guest'";
    for (host, parameters) in [
        ("localhost", format!("sslmode=verify-full{ours}")),
        ("127.0.0.1", format!("sslmode=verify-ca{ours}")),
        ("127.0.0.1", format!("sslmode=require{strange}")),
        ("127.0.0.1", "sslmode=prefer".into()),
        ("127.0.0.1", String::new()),
    ] {
        let backend = open(&over_tls(&database, "guest", host, &parameters));
        let refused = backend.members(&group()).await.err();
        assert!(refused.is_none(), "{parameters}: {refused:?}");
        assert_eq!(database.execute(encrypted).await.unwrap(), [[Some("true".to_owned())]], "{parameters}");
    }
    let (tls, plain) = (["TLS fails", "sslrootcert", "discovery.postgres.url"], ["no encryption", "pg_hba.conf", "discovery.postgres.url"]);
    for (host, parameters, kind, names) in [
        ("127.0.0.1", format!("sslmode=verify-full{ours}"), ErrorKind::Misconfigured, tls),
        ("localhost", format!("sslmode=verify-full{strange}"), ErrorKind::Misconfigured, tls),
        ("localhost", format!("sslmode=verify-ca{strange}"), ErrorKind::Misconfigured, tls),
        // No authority of this machine.
        ("localhost", "sslmode=verify-full".into(), ErrorKind::Misconfigured, tls),
        ("localhost", "sslmode=disable".into(), ErrorKind::Denied, plain),
        ("localhost", "sslmode=allow".into(), ErrorKind::Denied, plain),
    ] {
        let begun = Instant::now();
        assert_message(&refusal(&over_tls(&database, "guest", host, &parameters)).await, &kind, begun, &names);
    }
}

#[tokio::test]
async fn a_certificate_is_shown_by_every_connection_and_any_other_is_refused_by_name() {
    let (authority, database) = with_tls().await;
    let root = format!("sslmode=verify-full&sslrootcert={}", authority.file().display());
    let [worker, other, damaged] = ["worker", "other", "damaged"].map(|name| authority.client(name).unwrap());
    let with = |identity: String| over_tls(&database, "worker", "localhost", &format!("{root}{identity}"));
    let [here, there] = [(); 2].map(|()| open(&with(shown(&worker, &worker))));
    let mut watch = there.watch(&group(), common::PACE);
    here.register(&lasting("a", 1)).await.unwrap();
    common::view_of(&mut watch, &["a"]).await;
    let listening = "SELECT 1 FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE query LIKE 'LISTEN %' AND client_dn LIKE '%worker%'";
    eventually("one of them listens", async || (!database.execute(listening).await.unwrap().is_empty()).then_some(())).await;

    let key = std::fs::read_to_string(damaged.key()).unwrap();
    std::fs::write(damaged.key(), key.replace('\n', " ")).unwrap();
    let strange = Authority::new().unwrap().client("worker").unwrap();
    let expired = authority.expired().unwrap();
    let alone = format!("&sslcert={}", worker.certificate().display());
    for (identity, kind, names) in [
        (String::new(), ErrorKind::Denied, &["requires a valid client certificate", "discovery.postgres.url"][..]),
        (shown(&other, &other), ErrorKind::Denied, &["certificate authentication failed", "discovery.postgres.url"]),
        (shown(&strange, &strange), ErrorKind::Misconfigured, &["TLS fails", "sslcert", "discovery.postgres.url"]),
        (shown(&expired, &expired), ErrorKind::Misconfigured, &["TLS fails", "sslcert", "discovery.postgres.url"]),
        (shown(&worker, &other), ErrorKind::Misconfigured, &["TLS fails", "sslcert", "discovery.postgres.url"]),
        (shown(&damaged, &damaged), ErrorKind::Misconfigured, &["discovery.postgres.url", "must be PEM files"]),
        (alone, ErrorKind::Misconfigured, &["discovery.postgres.url", "sslcert and sslkey belong together"]),
    ] {
        let (begun, error) = (Instant::now(), refusal(&with(identity)).await);
        assert_message(&error, &kind, begun, names);
        let secret = &key.lines().nth(1).unwrap()[..40];
        assert!(!format!("{error} {error:?}").contains(secret), "the private key is in the error: {error}");
    }
}

/// The address of a server that says that it has this version, and says no more to a few clients.
fn of_version(version: &str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let status = format!("server_version\0{version}\0");
    let length = u32::try_from(status.len() + 4).unwrap().to_be_bytes();
    // Admitted, the version, ready for statements.
    let greeting = [&b"R\0\0\0\x08\0\0\0\0S"[..], &length, status.as_bytes(), b"Z\0\0\0\x05I"].concat();
    std::thread::spawn(move || {
        for client in listener.incoming().take(8) {
            let mut client = client.unwrap();
            let mut length = [0; 4];
            client.read_exact(&mut length).unwrap();
            let mut startup = vec![0; usize::try_from(u32::from_be_bytes(length)).unwrap() - length.len()];
            client.read_exact(&mut startup).unwrap();
            client.write_all(&greeting).unwrap();
        }
    });
    address
}

/// The oldest one that is supported runs the conformance suites.
#[tokio::test]
async fn an_old_server_is_refused_with_its_version() {
    for (version, major) in [("12.22 (Debian 12.22-1)", "version 12;"), ("9.6.24", "version 9;")] {
        let (config, begun) = (config(&format!("postgres://me@{}/app?sslmode=disable", of_version(version))), Instant::now());
        let names = [major, "PostgreSQL 13 or newer", "upgrade it", "discovery.postgres.url"];
        for error in [open(&config).members(&group()).await.unwrap_err(), PostgresBackend::init(&config).await.unwrap_err()] {
            assert_message(&error, &ErrorKind::Misconfigured, begun, &names);
        }
    }
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

/// The setting takes effect by a reload, while members hold claims.
#[tokio::test]
async fn a_server_that_stops_flushing_grants_nothing_more() {
    let server = durable().await;
    let database = common::prepared(&server).await;
    let backend = backend(&database.url());
    let a = claimant(&backend, "a", 1).await;
    let known = store(&backend).await;
    let set = async |value: &str| {
        server.execute(&format!("ALTER SYSTEM SET fsync = {value}")).await.unwrap();
        server.execute("SELECT pg_reload_conf()").await.unwrap();
    };
    set("off").await;
    let begun = Instant::now();
    let error = eventually("it is noticed", async || backend.acquire(&a, &known, &slots(0..1)).await.err()).await;
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["fsync", "eventual"]);
    set("on").await;
    let granted = eventually("it flushes again", async || backend.acquire(&a, &known, &slots(1..2)).await.ok()).await;
    assert!(matches!(granted[..], [(_, AcquireOutcome::Granted(_))]), "{granted:?}");
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
