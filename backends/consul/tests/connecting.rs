//! How one gets to Consul: addresses, schemes, certificates, sockets, datacenters; and what is said when one does not.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{backend, group, open, registration, until};
use shardwise_backend_consul::{BACKEND, ConsulConfig};
use shardwise_discovery::settings::{BackendSettings, BackendValue};
use shardwise_discovery::{Clock, Discovery, Error, ErrorKind};
use shardwise_testkit::{Authority, Consul, ConsulOptions};
use tokio::net::TcpListener;

const TTL: Duration = Duration::from_secs(3);
/// From fault to message, as the issue has it.
const REPORTED_WITHIN: Duration = Duration::from_secs(10);

/// That an error is one line that names all this, and came in time.
fn assert_message(error: &Error, kind: &ErrorKind, begun: Instant, names: &[&str]) {
    let said = error.to_string();
    assert!(begun.elapsed() < REPORTED_WITHIN, "{said} after {:?}", begun.elapsed());
    assert!(!said.contains('\n') && names.iter().all(|name| said.contains(name)), "{said:?} names not all of {names:?}");
    assert_eq!(error.kind(), kind, "{said}");
}

async fn works(backend: &dyn Discovery) {
    let registration = registration("workers", "w 1", 1, TTL);
    backend.register(&registration).await.unwrap();
    backend.renew(&registration.record_id(), TTL).await.unwrap();
    assert_eq!(backend.members(&group("workers")).await.unwrap().view.members().len(), 1);
    backend.deregister(&registration.record_id()).await.unwrap();
}

/// What registering with this configuration fails with, and since when it was tried.
async fn refusal(config: &ConsulConfig) -> (Error, Instant) {
    let begun = Instant::now();
    (backend(config).register(&registration("workers", "w 1", 1, TTL)).await.unwrap_err(), begun)
}

fn at(address: impl Into<String>) -> ConsulConfig {
    ConsulConfig { address: address.into(), ..ConsulConfig::default() }
}

#[tokio::test]
async fn a_unix_socket_works() {
    let consul = Consul::single().await.unwrap();
    works(&open(&format!("unix://{}", consul.unix_socket().display()))).await;
}

#[tokio::test]
async fn tls_with_a_ca_of_ones_own_and_a_client_certificate_works() {
    let authority = Authority::new().unwrap();
    let server = authority.server().unwrap();
    let consul = Consul::start(ConsulOptions::default().with_tls(&server).with_client_certificates()).await.unwrap();
    let client = authority.client("worker").unwrap();
    let config = ConsulConfig {
        ca_file: Some(authority.file()),
        cert_file: Some(client.certificate()),
        key_file: Some(client.key()),
        ..at(consul.address())
    };
    works(&backend(&config)).await;

    let without = ConsulConfig { cert_file: None, key_file: None, ..config.clone() };
    let (error, begun) = refusal(&without).await;
    assert_message(&error, &ErrorKind::Denied, begun, &["discovery.consul.cert_file"]);

    let stranger = Authority::new().unwrap().client("stranger").unwrap();
    let (error, begun) = refusal(&ConsulConfig { cert_file: Some(stranger.certificate()), key_file: Some(stranger.key()), ..config }).await;
    assert_message(&error, &ErrorKind::Denied, begun, &["discovery.consul.cert_file"]);
}

#[tokio::test]
async fn the_settings_reach_the_backend() {
    let authority = Authority::new().unwrap();
    let consul = Consul::start(ConsulOptions::default().with_acl().with_tls(&authority.server().unwrap())).await.unwrap();
    let settings = BackendSettings::new()
        .with("address", BackendValue::Text(consul.socket_addr().to_string()))
        .with("tls", BackendValue::Flag(true))
        .with("token", BackendValue::Secret(consul.management_token().into()))
        .with("datacenter", BackendValue::Text("dc1".into()))
        .with("ca_file", BackendValue::Path(authority.file()));
    works(&*(BACKEND.open)(&settings, &Clock::system()).unwrap()).await;
    let keys: Vec<_> = BACKEND.keys.iter().map(|key| key.name).collect();
    assert_eq!(keys, ["address", "token", "datacenter", "ca_file", "cert_file", "key_file", "tls", "verify"]);
}

#[test]
fn that_certificates_are_not_checked_cannot_be_set() {
    let open = |verify| (BACKEND.open)(&BackendSettings::new().with("verify", BackendValue::Flag(verify)), &Clock::system()).map(drop);
    open(true).unwrap();
    let (error, begun) = (open(false).unwrap_err(), Instant::now());
    assert_message(
        &error,
        &ErrorKind::Misconfigured,
        begun,
        &["discovery.consul.verify", "CONSUL_HTTP_SSL_VERIFY", "discovery.consul.ca_file"],
    );
}

#[tokio::test]
async fn a_certificate_that_is_not_accepted_is_explained() {
    let authority = Authority::new().unwrap();
    for (identity, ca_file, names) in [
        (authority.expired().unwrap(), Some(authority.file()), ["has expired", "discovery.consul.address"]),
        (authority.server_named("elsewhere.example").unwrap(), Some(authority.file()), ["another name", "discovery.consul.address"]),
        (
            authority.server().unwrap(),
            Some(Authority::new().unwrap().server().unwrap().authority()),
            ["not accepted", "discovery.consul.ca_file"],
        ),
        (authority.server().unwrap(), None, ["issuer is not known", "discovery.consul.ca_file"]),
    ] {
        let consul = Consul::start(ConsulOptions::default().with_tls(&identity)).await.unwrap();
        let (error, begun) = refusal(&ConsulConfig { ca_file, ..at(consul.address()) }).await;
        assert_message(&error, &ErrorKind::Misconfigured, begun, &names);
    }
}

#[tokio::test]
async fn a_wrong_scheme_is_reported_both_ways() {
    let authority = Authority::new().unwrap();
    let consul = Consul::start(ConsulOptions::default().with_tls(&authority.server().unwrap())).await.unwrap();
    let (error, begun) = refusal(&at(consul.address().replace("https", "http"))).await;
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["speaks HTTPS only", "discovery.consul.address", "https://"]);

    let plain = Consul::single().await.unwrap();
    let config = ConsulConfig { ca_file: Some(authority.file()), ..at(plain.address().replace("http", "https")) };
    let (error, begun) = refusal(&config).await;
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["plain HTTP", "discovery.consul.address", "http://"]);
}

#[tokio::test]
async fn a_wrong_address_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let free = listener.local_addr().unwrap();
    drop(listener);
    let (error, begun) = refusal(&at(format!("http://{free}"))).await;
    assert_message(&error, &ErrorKind::Unavailable, begun, &["discovery.consul.address", &free.to_string()]);

    let (error, begun) = refusal(&at("http://no-such-host.invalid:8500")).await;
    assert_message(&error, &ErrorKind::Unavailable, begun, &["discovery.consul.address", "no-such-host.invalid"]);

    let (error, begun) = refusal(&at("unix:///nowhere/consul.sock")).await;
    assert_message(&error, &ErrorKind::Unavailable, begun, &["discovery.consul.address", "/nowhere/consul.sock"]);
}

#[tokio::test]
async fn who_accepts_and_says_nothing_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (error, begun) = refusal(&at(format!("http://{}", silent.local_addr().unwrap()))).await;
    assert_message(
        &error,
        &ErrorKind::TimedOut,
        begun,
        &["no answer", "discovery.consul.address", &silent.local_addr().unwrap().to_string()],
    );
}

#[tokio::test]
async fn an_unknown_datacenter_is_named() {
    let consul = Consul::single().await.unwrap();
    let config = ConsulConfig { datacenter: Some("dc9".into()), ..at(consul.address()) };
    let (error, begun) = refusal(&config).await;
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["discovery.consul.datacenter", "dc9"]);
}

#[tokio::test]
async fn an_agent_without_servers_says_so_and_nothing_is_registered() {
    let consul = Consul::single().await.unwrap();
    let agent = consul.agent("lonely").await.unwrap();
    consul.kill().unwrap();
    // By gossip, some seconds later.
    let (error, begun) = until("the agent has noticed it", Duration::from_mins(1), async || {
        let (error, begun) = refusal(&at(agent.address())).await;
        error.to_string().contains("no servers").then_some((error, begun))
    })
    .await;
    assert_message(&error, &ErrorKind::Unavailable, begun, &["discovery.consul.address", &agent.address()]);
    assert_eq!(agent.api("GET", "/v1/agent/services", None).await.unwrap(), serde_json::json!({}));
}

#[test]
fn files_that_cannot_be_used_are_named_before_anything_is_contacted() {
    let authority = Authority::new().unwrap();
    let client = authority.client("worker").unwrap();
    let (cert, key) = (Some(client.certificate()), Some(client.key()));
    let missing = Some(PathBuf::from("/nowhere/ca.pem"));
    for (config, names) in [
        (ConsulConfig { ca_file: missing, ..at("https://x") }, ["discovery.consul.ca_file", "/nowhere/ca.pem"]),
        (ConsulConfig { ca_file: key.clone(), ..at("https://x") }, ["discovery.consul.ca_file", "certificates in PEM"]),
        (ConsulConfig { cert_file: cert.clone(), ..at("https://x") }, ["discovery.consul.cert_file", "discovery.consul.key_file"]),
        (ConsulConfig { key_file: key.clone(), ..at("https://x") }, ["discovery.consul.key_file", "discovery.consul.cert_file"]),
        (
            ConsulConfig { cert_file: cert.clone(), key_file: cert.clone(), ..at("https://x") },
            ["discovery.consul.key_file", "private key in PEM"],
        ),
        (
            ConsulConfig { cert_file: cert, key_file: Some(Authority::new().unwrap().client("x").unwrap().key()), ..at("https://x") },
            ["discovery.consul.cert_file", "pair"],
        ),
    ] {
        let error = shardwise_backend_consul::ConsulBackend::open(&config, Clock::system()).unwrap_err();
        assert_message(&error, &ErrorKind::Misconfigured, Instant::now(), &names);
        assert!(!error.is_retryable());
    }
}

#[tokio::test]
async fn the_process_wide_tls_provider_stays_unset() {
    let consul = Consul::single().await.unwrap();
    works(&open(&consul.address())).await;
    assert!(rustls::crypto::CryptoProvider::get_default().is_none());
}
