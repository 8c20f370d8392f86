//! Everything that can be set wrong, on real servers: within ten seconds one line that names the setting and the cause.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::{Duration, Instant};

use common::{backend, config, expect_error, group, next_error, open, registration, url, with_user};
use shardwise_backend_etcd::{EtcdBackend, EtcdConfig};
use shardwise_discovery::{Clock, Discovery, Error, ErrorKind};
use shardwise_testkit::{Authority, Etcd, EtcdOptions, KeyAccess};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// The limit.
const SOON: Duration = Duration::from_secs(10);
const MISCONFIGURED: ErrorKind = ErrorKind::Misconfigured;
const DENIED: ErrorKind = ErrorKind::Denied;

/// The error of a first call, which has to come soon; the watch says the same.
async fn error_of(config: &EtcdConfig) -> Error {
    let backend = open(config);
    let started = Instant::now();
    let error = backend.members(&group()).await.unwrap_err();
    assert!(started.elapsed() < SOON, "{error} took {:?}", started.elapsed());
    let watched = next_error(&mut backend.watch(&group(), Duration::from_secs(1))).await;
    assert_eq!((watched.kind(), watched.operation()), (error.kind(), "watch"), "{watched}");
    assert_eq!(watched.to_string().strip_prefix("watch: "), error.to_string().strip_prefix("members: "));
    error
}

async fn expect(config: &EtcdConfig, kind: &ErrorKind, text: &str) {
    expect_error::<()>(Err(error_of(config).await), kind, &format!("members: {text}"));
}

fn refused(config: &EtcdConfig, text: &str) {
    expect_error(EtcdBackend::open(config, Clock::system()).map(drop), &MISCONFIGURED, &format!("open: {text}"));
}

#[test]
fn settings_that_cannot_be_are_refused_at_once() {
    refused(&config(&["etcd-1".into()]), "discovery.etcd.endpoints has \"etcd-1\": it has no port; etcd's is usually 2379");
    refused(
        &EtcdConfig { ca_file: Some("/no/such/ca.pem".into()), ..config(&["etcd-1:2379".into()]) },
        "discovery.etcd.ca_file is \"/no/such/ca.pem\", which cannot be read: No such file or directory (os error 2)",
    );
    refused(
        &EtcdConfig { cert_file: Some("/c.pem".into()), ..config(&["etcd-1:2379".into()]) },
        "discovery.etcd.key_file is missing, but discovery.etcd.cert_file is set; set both or none",
    );
    refused(
        &EtcdConfig { prefix: "x".into(), ..EtcdConfig::default() },
        "discovery.etcd.prefix is \"x\": it begins with a slash, such as \"/shardwise\"",
    );
}

#[test]
fn a_file_without_a_certificate_is_refused_at_once() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let config = EtcdConfig { ca_file: Some(file.path().into()), ..config(&["etcd-1:2379".into()]) };
    refused(
        &config,
        &format!(
            "discovery.etcd.ca_file is {:?}, which cannot be used: it must hold certificates in PEM, with their line breaks",
            file.path()
        ),
    );
}

#[tokio::test]
async fn no_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = url(listener.local_addr().unwrap());
    drop(listener);
    let text =
        format!("cannot reach {address}: Connection refused (os error 111); check discovery.etcd.endpoints, and whether etcd runs there");
    expect(&config(&[address]), &ErrorKind::Unavailable, &text).await;
}

#[tokio::test]
async fn a_name_that_no_user_has() {
    let error = error_of(&config(&["http://etcd.invalid:2379".into()])).await;
    assert!(error.is_retryable(), "names may come with time");
    let text = error.to_string();
    assert!(
        text.starts_with("members: cannot reach http://etcd.invalid:2379: ") && text.contains("check discovery.etcd.endpoints"),
        "{text}"
    );
}

#[tokio::test]
async fn a_server_that_is_silent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = url(listener.local_addr().unwrap());
    let text = format!("{address} gave no answer within 5000 ms; check discovery.etcd.endpoints, the network and its load");
    expect(&config(&[address]), &ErrorKind::TimedOut, &text).await;
}

/// Servers that take connections and never answer.
async fn silent_servers<const N: usize>() -> ([TcpListener; N], Vec<String>) {
    let listeners = futures::future::join_all([(); N].map(|()| TcpListener::bind("127.0.0.1:0"))).await;
    let listeners: Vec<_> = listeners.into_iter().map(Result::unwrap).collect();
    let addresses = listeners.iter().map(|listener| url(listener.local_addr().unwrap())).collect();
    (listeners.try_into().unwrap(), addresses)
}

/// Before a worker that wants to register gives up by itself, which is after seven seconds.
#[tokio::test]
async fn four_servers_that_are_silent() {
    let (_listeners, addresses) = silent_servers::<4>().await;
    let (backend, begun) = (backend(&addresses), Instant::now());
    let error = backend.register(&registration("a", 1)).await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(6), "{error} took {:?}", begun.elapsed());
    let text =
        format!("register: {} gave no answer within 2000 ms; check discovery.etcd.endpoints, the network and its load", addresses[0]);
    expect_error::<()>(Err(error), &ErrorKind::TimedOut, &text);
}

#[tokio::test]
async fn one_server_behind_four_that_are_silent_is_found() {
    let server = Etcd::single().await.unwrap();
    let (_listeners, mut addresses) = silent_servers::<4>().await;
    addresses.push(server.address());
    let (backend, begun) = (backend(&addresses), Instant::now());
    while let Err(error) = backend.register(&registration("a", 1)).await {
        assert!(error.is_retryable() && begun.elapsed() < Duration::from_secs(15), "{error} after {:?}", begun.elapsed());
    }
    let begun = Instant::now();
    backend.members(&group()).await.unwrap();
    // A silent one costs two seconds.
    assert!(begun.elapsed() < Duration::from_secs(2), "and stays the one that is asked");
}

#[tokio::test]
async fn a_server_that_is_something_else() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = url(listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let mut request = [0; 1_024];
            let _ = connection.read(&mut request).await;
            let _ = connection.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
        }
    });
    let text = format!("{address} answers, but not as etcd v3 does (it speaks HTTP/1); check discovery.etcd.endpoints");
    expect(&config(&[address]), &MISCONFIGURED, &text).await;
    serving.abort();
}

#[tokio::test]
async fn the_wrong_scheme() {
    let authority = Authority::new().unwrap();
    let tls = Etcd::start(EtcdOptions::default().with_tls(&authority.server().unwrap())).await.unwrap();
    let plain = url(tls.socket_addr());
    let text = format!("{plain} speaks TLS only; write it with https:// in discovery.etcd.endpoints");
    expect(&config(&[plain]), &MISCONFIGURED, &text).await;

    let server = Etcd::single().await.unwrap();
    let secure = format!("https://{}", server.socket_addr());
    let text = format!("{secure} does not speak TLS; write it with http:// in discovery.etcd.endpoints, or turn TLS on in etcd");
    expect(&EtcdConfig { ca_file: Some(authority.file()), ..config(&[secure]) }, &MISCONFIGURED, &text).await;
}

#[tokio::test]
async fn a_certificate_that_is_not_accepted() {
    let (authority, other) = (Authority::new().unwrap(), Authority::new().unwrap());
    let cases = [
        (authority.expired().unwrap(), &authority, "has expired; renew it, or check this machine's clock"),
        (
            authority.server_named("etcd.example").unwrap(),
            &authority,
            "is for another name; write a name that it has, or have it made for this one",
        ),
        (
            authority.server().unwrap(),
            &other,
            "is signed by an issuer that is not trusted here; set discovery.etcd.ca_file to the certificate of its issuer",
        ),
    ];
    for (identity, trusted, why) in cases {
        let server = Etcd::start(EtcdOptions::default().with_tls(&identity)).await.unwrap();
        let config = EtcdConfig { ca_file: Some(trusted.file()), ..config(&[server.address()]) };
        expect(&config, &MISCONFIGURED, &format!("the certificate of {} (discovery.etcd.endpoints) {why}", server.address())).await;
    }
}

#[tokio::test]
async fn a_client_certificate_that_is_missing_or_expired() {
    let authority = Authority::new().unwrap();
    let options = EtcdOptions::default().with_tls(&authority.server().unwrap()).with_client_certificates();
    let server = Etcd::start(options).await.unwrap();
    let without = EtcdConfig { ca_file: Some(authority.file()), ..config(&[server.address()]) };
    let with = |identity: &shardwise_testkit::CertIdentity| EtcdConfig {
        cert_file: Some(identity.certificate()),
        key_file: Some(identity.key()),
        ..without.clone()
    };
    let (good, expired) = (authority.client("worker").unwrap(), authority.expired().unwrap());
    open(&with(&good)).members(&group()).await.unwrap();
    assert!(rustls::crypto::CryptoProvider::get_default().is_none(), "TLS needs no provider of the process, and leaves none behind");
    for config in [without.clone(), with(&expired)] {
        let error = error_of(&config).await;
        assert_eq!(*error.kind(), DENIED, "{error}");
        let text = error.to_string();
        let begin = format!("members: {} does not accept this client's certificate (", server.address());
        assert!(text.starts_with(&begin) && text.ends_with("; check discovery.etcd.cert_file and discovery.etcd.key_file"), "{text}");
    }
}

#[tokio::test]
async fn the_wrong_user_or_password_or_none() {
    let server = Etcd::start(EtcdOptions::default().with_auth()).await.unwrap();
    let addresses = [server.address()];
    server.add_user("worker", "right", &[(KeyAccess::ReadWrite, "/shardwise/")]).await.unwrap();
    open(&with_user(&addresses, "worker", "right")).members(&group()).await.unwrap();
    let text =
        |user| format!("etcd does not accept user {user:?} with this password; check discovery.etcd.username and discovery.etcd.password");
    expect(&with_user(&addresses, "worker", "wrong"), &DENIED, &text("worker")).await;
    expect(&with_user(&addresses, "nobody", "right"), &DENIED, &text("nobody")).await;
    expect(&config(&addresses), &DENIED, "etcd demands a user; set discovery.etcd.username and discovery.etcd.password").await;
}

#[tokio::test]
async fn a_user_where_there_are_none() {
    let server = Etcd::single().await.unwrap();
    let text = "etcd has no authentication turned on; remove discovery.etcd.username and discovery.etcd.password, or turn it on with `etcdctl auth enable`";
    expect(&with_user(&[server.address()], "worker", "right"), &MISCONFIGURED, text).await;
}

/// The role of docs.md is enough for everything, and with any part of it taken away the error says what to grant.
#[tokio::test]
async fn each_right_is_needed_and_no_other() {
    let server = Etcd::start(EtcdOptions::default().with_auth()).await.unwrap();
    let config = EtcdConfig { prefix: "/fleet/a".into(), ..with_user(&[server.address()], "worker", "right") };
    server.add_user("worker", "right", &[(KeyAccess::ReadWrite, "/fleet/a/")]).await.unwrap();
    let (backend, a, rival) = (open(&config), registration("a", 1), registration("a", 2));
    let mut watch = backend.watch(&group(), Duration::from_secs(1));
    backend.register(&a).await.unwrap();
    common::view_of(&mut watch, &["a"]).await;
    let error = backend.register(&rival).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InUse { .. }), "knocking is within the rights too: {error}");
    backend.renew(&a.record_id(), a.ttl).await.unwrap();
    let mut draining = a.clone();
    draining.member.zone = Some("z".into());
    backend.update(&draining).await.unwrap();
    common::next_proof(&mut watch).await;
    backend.deregister(&a.record_id()).await.unwrap();

    let text = "user \"worker\" may not read and write below \"/fleet/a\" in etcd; grant it: `etcdctl role grant-permission ROLE --prefix=true \
                readwrite /fleet/a/`, or check discovery.etcd.username and discovery.etcd.prefix";
    let cases: [&[(KeyAccess, &str)]; 4] =
        [&[(KeyAccess::Read, "/fleet/a/")], &[(KeyAccess::Write, "/fleet/a/")], &[(KeyAccess::ReadWrite, "/fleet/b/")], &[]];
    for rights in cases {
        server.change_user("worker", rights).await.unwrap();
        let backend = open(&config);
        expect_error(backend.register(&a).await, &DENIED, &format!("register: {text}"));
        if rights.iter().all(|(access, prefix)| *access == KeyAccess::Write || *prefix == "/fleet/b/") {
            expect_error(backend.members(&group()).await, &DENIED, &format!("members: {text}"));
            expect_error(Err::<(), _>(next_error(&mut backend.watch(&group(), a.ttl)).await), &DENIED, &format!("watch: {text}"));
        }
    }
}

#[tokio::test]
async fn only_a_learner() {
    let server = Etcd::single().await.unwrap();
    let learner = server.add_learner().await.unwrap();
    let text = format!("{} is a learner, which serves no clients; name the voting members in discovery.etcd.endpoints", learner.address());
    expect(&config(&[learner.address()]), &MISCONFIGURED, &text).await;
    // With a voting member beside it, nothing is wrong.
    let both = backend(&[learner.address(), server.address()]);
    both.register(&registration("a", 1)).await.unwrap();
    let mut watch = both.watch(&group(), Duration::from_secs(1));
    common::view_of(&mut watch, &["a"]).await;
}

#[tokio::test]
async fn a_record_of_another_is_an_error_and_no_gap() {
    use base64::Engine as _;
    let server = Etcd::single().await.unwrap();
    let backend = backend(&[server.address()]);
    backend.register(&registration("a", 1)).await.unwrap();
    let put = |key: &str, value: &str| {
        let encode = |text: &str| base64::prelude::BASE64_STANDARD.encode(text);
        serde_json::json!({ "key": encode(key), "value": encode(value) })
    };
    server.api("/v3/kv/put", &put("/shardwise/v1/members/workers/b", "hello")).await.unwrap();
    let error = backend.members(&group()).await.unwrap_err();
    assert_eq!(*error.kind(), MISCONFIGURED);
    assert!(error.to_string().starts_with("members: cannot read the record of \"b\": not a member record: "), "{error}");
    let error = next_error(&mut backend.watch(&group(), Duration::from_secs(1))).await;
    assert!(error.to_string().starts_with("watch: cannot read the record of \"b\""), "{error}");
}

#[tokio::test]
async fn a_record_that_is_too_large() {
    let mut big = registration("a", 1);
    big.member.metadata.insert("k".into(), "v".repeat(4_096));
    let error = backend(&[url("127.0.0.1:1".parse().unwrap())]).register(&big).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::TooLarge);
    assert_eq!(error.to_string(), "register: the metadata of \"a\" has 4097 bytes, at most 4096 are allowed; make it smaller");
}
