//! Wrong settings, wrong servers, wrong buckets: one line in time that names the setting and the cause.

mod common;

use std::time::Instant;

use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};
use common::{
    PACE, REPORTED_WITHIN, assert_message, backend, bucket, config, group, lasting, open, refused_for_good, registration, shared,
};
use shardwise_backend_nats::{NatsBackend, NatsBackendConfig, SyncInterval};
use shardwise_discovery::{Claims, Clock, Discovery, ErrorKind};
use shardwise_testkit::{Authority, CertIdentity, Nats, NatsCluster, NatsOptions, Port};

type Change = fn(Config) -> Config;

#[tokio::test]
async fn what_cannot_be_reached_is_worth_another_try() {
    let port = Port::reserve().unwrap();
    let begun = Instant::now();
    let error = backend(&format!("nats://{}", port.address()), "b").members(&group()).await.unwrap_err();
    let said = error.to_string();
    assert!(begun.elapsed() < REPORTED_WITHIN && error.is_retryable() && *error.kind() == ErrorKind::Unavailable, "{said}");
    assert!(said.contains("can be reached") && said.contains("discovery.nats.urls") && !said.contains('\n'), "{said}");
}

#[tokio::test]
async fn wrong_credentials_are_refused_by_name_and_never_shown() {
    let server = Nats::start(NatsOptions::default().newest().with_user("app", "secret")).await.unwrap();
    let base = config(&[server.address()], "b");
    let as_user = |password: &str| NatsBackendConfig { username: Some("app".into()), password: Some(password.into()), ..base.clone() };
    open(&as_user("secret")).register(&lasting("a", 1)).await.unwrap();
    let token = NatsBackendConfig { token: Some("hush".into()), ..base.clone() };
    for wrong in [as_user("hush"), token, base.clone()] {
        let (begun, backend) = (Instant::now(), open(&wrong));
        let error = backend.register(&registration("a", 1)).await.unwrap_err();
        assert_message(&error, &ErrorKind::Denied, begun, &["refuses the credentials", "discovery.nats.password"]);
        assert!(!format!("{error} {error:?} {backend:?} {wrong:?}").contains("hush"));
        let mut watch = backend.watch(&group(), PACE);
        assert_eq!(common::next_error(&mut watch).await.kind(), error.kind(), "a watch says so too");
    }
}

#[tokio::test]
async fn certificates_are_checked() {
    let (authority, other) = (Authority::new().unwrap(), Authority::new().unwrap());
    let server = Nats::start(NatsOptions::default().newest().with_tls(&authority.server().unwrap())).await.unwrap();
    let with = |ca: &Authority| NatsBackendConfig { ca_file: Some(ca.file()), ..config(&[server.address()], "b") };
    open(&with(&authority)).register(&lasting("a", 1)).await.unwrap();
    let begun = Instant::now();
    let error = open(&with(&other)).members(&group()).await.unwrap_err();
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["TLS fails", "discovery.nats.ca_file"]);
    let missing = NatsBackendConfig { ca_file: Some("not there.pem".into()), ..config(&[server.address()], "b") };
    let error = open(&missing).members(&group()).await.unwrap_err();
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["discovery.nats.ca_file", "not there.pem"]);
}

/// A refused one was reported as a failure of the server's certificate.
#[tokio::test]
async fn a_client_certificate_is_shown_and_the_message_names_one_that_is_refused() {
    let (authority, other) = (Authority::new().unwrap(), Authority::new().unwrap());
    for options in [NatsOptions::default(), NatsOptions::default().newest()] {
        let server = Nats::start(options.with_mutual_tls(&authority.server().unwrap())).await.unwrap();
        let with = |identity: Option<&CertIdentity>| NatsBackendConfig {
            ca_file: Some(authority.file()),
            cert_file: identity.map(CertIdentity::certificate),
            key_file: identity.map(CertIdentity::key),
            ..config(&[server.address()], "b")
        };
        let worker = open(&with(Some(&authority.client("worker").unwrap())));
        worker.register(&lasting("a", 1)).await.unwrap();
        common::view_of(&mut worker.watch(&group(), PACE), &["a"]).await;
        for refused in [None, Some(other.client("worker").unwrap()), Some(authority.expired().unwrap())] {
            let (begun, error) = refused_for_good(&with(refused.as_ref())).await;
            let names = ["a client certificate that it accepts", "discovery.nats.cert_file", "discovery.nats.key_file"];
            assert_message(&error, &ErrorKind::Denied, begun, &names);
            assert!(!error.to_string().contains("ca_file") && !error.to_string().contains("urls"), "{error}");
        }
        // One whose own authority the worker does not know is not the client's fault.
        let astray = NatsBackendConfig { ca_file: Some(other.file()), ..with(Some(&authority.client("worker").unwrap())) };
        let (begun, error) = refused_for_good(&astray).await;
        assert_message(&error, &ErrorKind::Misconfigured, begun, &["TLS fails", "discovery.nats.ca_file"]);
        assert!(!error.to_string().contains("cert_file"), "{error}");
    }
}

#[tokio::test]
async fn a_bucket_that_would_lose_members_is_refused_with_what_to_do() {
    let server = shared().await;
    let context = async_nats::jetstream::new(async_nats::connect(server.address()).await.unwrap());
    let good = |name: &str| Config {
        name: format!("KV_{name}"),
        subjects: vec![format!("$KV.{name}.>")],
        max_messages_per_subject: 1,
        discard: DiscardPolicy::New,
        ..Config::default()
    };
    let wrong: [(Change, &str); 5] = [
        (|good| Config { storage: StorageType::Memory, ..good }, "memory"),
        (|good| Config { max_age: std::time::Duration::from_hours(1), ..good }, "max_age"),
        (|good| Config { max_messages_per_subject: 5, ..good }, "history"),
        (|good| Config { discard: DiscardPolicy::Old, max_bytes: 1 << 20, ..good }, "discard"),
        (|good| Config { deny_purge: true, ..good }, "denies purges"),
    ];
    for (change, expected) in wrong {
        let (name, begun) = (bucket(), Instant::now());
        context.create_stream(change(good(&name))).await.unwrap();
        let error = backend(&server.address(), &name).register(&registration("a", 1)).await.unwrap_err();
        assert_message(&error, &ErrorKind::Misconfigured, begun, &[&name, expected]);
        let error = NatsBackend::init(&config(&[server.address()], &name)).await.unwrap_err();
        assert_message(&error, &ErrorKind::Misconfigured, begun, &[&name, expected]);
    }
    let name = bucket();
    context.create_stream(good(&name)).await.unwrap();
    backend(&server.address(), &name).register(&registration("a", 1)).await.unwrap();
}

#[tokio::test]
async fn too_few_replicas_in_a_cluster_are_refused() {
    let cluster = NatsCluster::start(3, NatsOptions::default().newest().durable()).await.unwrap();
    let begun = Instant::now();
    let one = NatsBackendConfig { replicas: Some(1), ..config(&cluster.addresses(), "one") };
    let error = open(&one).register(&registration("a", 1)).await.unwrap_err();
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["one replica in a cluster", "--replicas=3"]);
    let begun = Instant::now();
    let five = NatsBackendConfig { replicas: Some(5), ..config(&cluster.addresses(), "five") };
    let error = open(&five).register(&registration("a", 1)).await.unwrap_err();
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["5 replicas", "discovery.nats.replicas"]);
    open(&config(&cluster.addresses(), "three")).register(&registration("a", 1)).await.unwrap();
}

#[tokio::test]
async fn exclusive_ownership_needs_the_operators_word() {
    let server = shared().await;
    let unsaid = NatsBackendConfig { sync_interval: SyncInterval::Unknown, ..config(&[server.address()], &bucket()) };
    let (begun, backend) = (Instant::now(), NatsBackend::open(&unsaid, Clock::system()).unwrap());
    backend.register(&lasting("a", 1)).await.unwrap();
    let error = backend.claim_store(&group(), 0).await.unwrap_err();
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["sync_interval: always", "discovery.nats.sync_interval", "eventual"]);
}

#[tokio::test]
async fn a_bucket_is_made_once_however_many_make_it() {
    let server = shared().await;
    let config = config(&[server.address()], &bucket());
    let done = futures::future::join_all((0..5).map(|_| NatsBackend::init(&config))).await;
    assert!(done.iter().any(|done| done.as_ref().unwrap().starts_with("made the bucket test-")), "{done:?}");
    let again = NatsBackend::init(&config).await.unwrap();
    assert!(again.contains("exists and has the required configuration"), "{again}");
}

#[tokio::test]
async fn a_server_without_jetstream_is_refused() {
    // The last line of a configuration that sets a key holds.
    let server = Nats::start(NatsOptions::default().newest().with_setting("jetstream: false")).await.unwrap();
    let begun = Instant::now();
    let error = backend(&server.address(), "b").members(&group()).await.unwrap_err();
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["no JetStream for this user"]);
}
