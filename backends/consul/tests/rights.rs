//! Tokens: the least that is needed, one missing right at a time, wrong ones; and that no secret is ever logged.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{backend, claimant, group, open, registration, until, with_token};
use futures::StreamExt;
use shardwise_backend_consul::{ConsulBackend, ConsulConfig};
use shardwise_core::Resource;
use shardwise_discovery::{AcquireOutcome, Claims, ClaimsEvent, Discovery, Error, ErrorKind, WatchEvent};
use shardwise_testkit::{Consul, ConsulOptions};
use tracing_subscriber::fmt::MakeWriter;

const TTL: Duration = Duration::from_secs(3);
/// From fault to message, as the issue has it.
const REPORTED_WITHIN: Duration = Duration::from_secs(10);
const SERVICE: &str = "service \"workers\" { policy = \"write\" }";
const NODE: &str = "node_prefix \"\" { policy = \"read\" }";
const KEY: &str = "key_prefix \"shardwise/\" { policy = \"write\" }";

/// The policies in docs.md, word for word.
fn documented(nth: usize) -> &'static str {
    let docs = include_str!("../docs.md");
    docs.split("```hcl\n").nth(nth).and_then(|rest| rest.split("```").next()).unwrap()
}

fn documented_policy() -> &'static str {
    documented(1)
}

/// Of members that claim.
fn documented_policy_of_claims() -> String {
    format!("{} {}", documented(1), documented(2))
}

async fn with_acl() -> Consul {
    Consul::start(ConsulOptions::default().with_acl()).await.unwrap()
}

async fn holding(consul: &Consul, rules: &str) -> ConsulBackend {
    with_token(consul, &consul.token(rules).await.unwrap().secret)
}

/// That a call failed for good, in time, in one line that names all this.
fn assert_message(error: &Error, kind: &ErrorKind, begun: Instant, names: &[&str]) {
    let said = error.to_string();
    assert!(begun.elapsed() < REPORTED_WITHIN, "{said} after {:?}", begun.elapsed());
    assert!(!said.contains('\n') && names.iter().all(|name| said.contains(name)), "{said:?} names not all of {names:?}");
    assert_eq!((error.kind(), error.is_retryable()), (kind, false), "{said}");
}

#[tokio::test]
async fn the_documented_policy_is_enough_for_everything() {
    let consul = with_acl().await;
    let backend = holding(&consul, documented_policy()).await;
    let mut watch = backend.watch(&group("workers"), TTL / 3);
    assert!(matches!(watch.next().await, Some(Ok(WatchEvent::View(_)))), "an empty group is a view");
    let registration = registration("workers", "w1", 1, TTL);
    backend.register(&registration).await.unwrap();
    backend.renew(&registration.record_id(), TTL).await.unwrap();
    backend.update(&registration).await.unwrap();
    assert_eq!(backend.members(&group("workers")).await.unwrap().view.members().len(), 1);
    backend.deregister(&registration.record_id()).await.unwrap();
    assert!(backend.members(&group("workers")).await.unwrap().view.members().is_empty());
}

#[tokio::test]
async fn each_missing_right_is_named_when_registering() {
    let consul = with_acl().await;
    for (rules, missing) in [
        (format!("{NODE} {KEY}"), "service:write for \"workers\""),
        (format!("{NODE} {KEY} service \"workers\" {{ policy = \"read\" }}"), "service:write for \"workers\""),
        (format!("{SERVICE} {KEY}"), "node:read"),
        (format!("{SERVICE} {NODE}"), "key:write (key_prefix \"shardwise/\")"),
        (format!("{SERVICE} {NODE} key_prefix \"shardwise/\" {{ policy = \"read\" }}"), "key:write"),
    ] {
        let (backend, begun) = (holding(&consul, &rules).await, Instant::now());
        let error = backend.register(&registration("workers", "w1", 1, TTL)).await.unwrap_err();
        assert_message(&error, &ErrorKind::Denied, begun, &["discovery.consul.token", missing]);
    }
    let services = consul.api("GET", "/v1/agent/services", None).await.unwrap();
    assert_eq!(services, serde_json::json!({}), "nothing half done stays");
}

#[tokio::test]
async fn the_documented_policies_are_enough_for_claims() {
    let consul = with_acl().await;
    let backend = holding(&consul, &documented_policy_of_claims()).await;
    let claimant = claimant("workers", "w1", 1, TTL);
    let mut watch = backend.watch_claims(&group("workers"), TTL / 3);
    assert!(matches!(watch.next().await, Some(Ok(ClaimsEvent::All { claims, .. })) if claims.is_empty()), "an empty table is reported");
    backend.register(&claimant).await.unwrap();
    backend.renew(&claimant.record_id(), TTL).await.unwrap();
    let store = backend.claim_store(&group("workers"), 0).await.unwrap();
    let answers = backend.acquire(&claimant.record_id(), &store, &[Resource::Slot(1)]).await.unwrap();
    let [(resource, AcquireOutcome::Granted(epoch))] = &*answers else { unreachable!("nobody else is there: {answers:?}") };
    backend.release(&claimant.record_id(), &[(resource.clone(), *epoch)]).await.unwrap();
    backend.deregister(&claimant.record_id()).await.unwrap();
}

#[tokio::test]
async fn each_missing_right_is_named_when_claiming() {
    let consul = with_acl().await;
    let full = holding(&consul, &documented_policy_of_claims()).await;
    let store = full.claim_store(&group("workers"), 0).await.unwrap();
    let begun = Instant::now();
    let reported = |error: Error, missing| assert_message(&error, &ErrorKind::Denied, begun, &["discovery.consul.token", missing]);
    let unsessioned = holding(&consul, documented_policy()).await;
    reported(unsessioned.register(&claimant("workers", "w1", 1, TTL)).await.unwrap_err(), "session:write (session_prefix \"\")");
    let services = consul.api("GET", "/v1/agent/services", None).await.unwrap();
    assert_eq!(services, serde_json::json!({}), "nothing half done stays");

    let guards = "key_prefix \"shardwise/guard/\" { policy = \"write\" }";
    let session = documented(2);
    let reading = format!("{SERVICE} {NODE} {session} {guards} key_prefix \"shardwise/\" {{ policy = \"read\" }}");
    let (reader, w2) = (holding(&consul, &reading).await, claimant("workers", "w2", 2, TTL));
    reader.register(&w2).await.unwrap();
    assert_eq!(reader.claim_store(&group("workers"), 0).await.unwrap(), store, "it is there already");
    reported(reader.claim_store(&group("workers"), 5).await.unwrap_err(), "key:write (key_prefix \"shardwise/\")");
    reported(reader.acquire(&w2.record_id(), &store, &[Resource::Slot(1)]).await.unwrap_err(), "key:write (key_prefix \"shardwise/\")");

    let blind = holding(&consul, &format!("{SERVICE} {NODE} {session} {guards}")).await;
    reported(blind.claim_store(&group("workers"), 0).await.unwrap_err(), "key:read (key_prefix \"shardwise/\")");
    reported(blind.watch_claims(&group("workers"), TTL / 3).next().await.unwrap().unwrap_err(), "key:read (key_prefix \"shardwise/\")");
}

/// The agent knows that the check has expired, and cannot say so to the servers, because the token is gone. For a moment it is so each time
/// that a check expires; then a worker that had just been killed kept its successor out.
#[tokio::test]
async fn a_record_that_has_expired_on_its_agent_is_no_living_rival() {
    let consul = with_acl().await;
    let token = consul.token(documented_policy()).await.unwrap();
    with_token(&consul, &token.secret).register(&registration("workers", "w1", 1, TTL)).await.unwrap();
    consul.revoke_token(&token).await.unwrap();
    let successor = holding(&consul, documented_policy()).await;
    let mut stamps = BTreeSet::new();
    let error = until("it has expired on the agent", TTL * 3, async || {
        let error = successor.register(&registration("workers", "w1", 2, TTL)).await.unwrap_err();
        match error.kind() {
            ErrorKind::InUse { stamp, .. } => {
                stamps.insert(*stamp);
                None
            }
            _ => Some(error),
        }
    })
    .await;
    assert_eq!((error.kind(), error.is_retryable(), stamps.len()), (&ErrorKind::Unavailable, true, 1), "{error}; {stamps:?}");
}

/// Each would see only itself, and Consul would report no error.
#[tokio::test]
async fn a_token_that_sees_some_nodes_only_registers_no_member() {
    let server = with_acl().await;
    let agent = server.agent("other").await.unwrap();
    for (consul, nodes) in [(&server, format!("node \"{}\"", server.node())), (&agent, "node_prefix \"oth\"".to_owned())] {
        let token = server.token(&format!("{SERVICE} {KEY} {nodes} {{ policy = \"read\" }}")).await.unwrap().secret;
        let (backend, begun) = (with_token(consul, &token), Instant::now());
        let error = backend.register(&registration("workers", consul.node(), 1, TTL)).await.unwrap_err();
        assert_message(&error, &ErrorKind::Denied, begun, &["discovery.consul.token", "node:read (node_prefix \"\")"]);
        let error = backend.members(&group("workers")).await.unwrap_err();
        assert_message(&error, &ErrorKind::Denied, begun, &["node:read"]);
    }
}

#[tokio::test]
async fn who_may_not_see_the_group_gets_an_error_and_no_empty_view() {
    let consul = with_acl().await;
    let everything = holding(&consul, documented_policy()).await;
    everything.register(&registration("workers", "w1", 1, TTL)).await.unwrap();
    for (rules, missing) in [(NODE.to_owned(), "service:read"), (SERVICE.to_owned(), "node:read")] {
        let (blind, begun) = (holding(&consul, &rules).await, Instant::now());
        let error = blind.members(&group("workers")).await.unwrap_err();
        assert_message(&error, &ErrorKind::Denied, begun, &["discovery.consul.token", missing]);
        let reported = blind.watch(&group("workers"), TTL / 3).next().await.unwrap().unwrap_err();
        assert_message(&reported, &ErrorKind::Denied, begun, &["discovery.consul.token", missing]);
    }
}

#[tokio::test]
async fn no_token_and_a_wrong_one_are_distinguished() {
    let consul = with_acl().await;
    let begun = Instant::now();
    let error = open(&consul.address()).register(&registration("workers", "w1", 1, TTL)).await.unwrap_err();
    assert_message(&error, &ErrorKind::Denied, begun, &["discovery.consul.token is not set", "key:write"]);
    let wrong = with_token(&consul, "00000000-dead-beef-0000-000000000000");
    let error = wrong.register(&registration("workers", "w1", 1, TTL)).await.unwrap_err();
    assert_message(&error, &ErrorKind::Denied, begun, &["does not know the token", "discovery.consul.token"]);
    assert!(!error.to_string().contains("dead-beef"));
    let error = wrong.watch(&group("workers"), TTL / 3).next().await.unwrap().unwrap_err();
    assert_message(&error, &ErrorKind::Denied, begun, &["does not know the token"]);
}

#[tokio::test]
async fn a_token_that_is_revoked_ends_renewals() {
    let consul = with_acl().await;
    let token = consul.token(documented_policy()).await.unwrap();
    let backend = with_token(&consul, &token.secret);
    let registration = registration("workers", "w1", 1, TTL);
    backend.register(&registration).await.unwrap();
    consul.revoke_token(&token).await.unwrap();
    let error = until("renewing fails", Duration::from_secs(40), async || backend.renew(&registration.record_id(), TTL).await.err()).await;
    assert_eq!(*error.kind(), ErrorKind::Denied, "{error}");
}

/// Everything that is logged, at all levels, by all crates.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[test]
fn no_token_is_in_any_log_nor_in_any_debug_or_error() {
    let log = Log::default();
    // With what libraries say through the older `log`.
    tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(log.clone()).try_init().unwrap();
    let mut said = Vec::new();
    let mut secrets = vec!["00000000-dead-beef-0000-000000000000".to_owned()];
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
        let consul = with_acl().await;
        let token = consul.token(documented_policy()).await.unwrap();
        secrets.push(token.secret.clone());
        for secret in &secrets {
            let config = ConsulConfig { address: consul.address(), token: Some(secret.clone().into()), ..ConsulConfig::default() };
            let backend = backend(&config);
            said.push(format!("{config:?} {backend:?}"));
            let registration = registration("workers", "w1", 1, TTL);
            let answers = [
                backend.register(&registration).await.map(drop),
                backend.renew(&registration.record_id(), TTL).await.map(drop),
                backend.members(&group("workers")).await.map(drop),
                backend.watch(&group("workers"), TTL / 3).next().await.unwrap().map(drop),
                backend.deregister(&registration.record_id()).await,
            ];
            said.push(format!("{answers:?}"));
            for error in answers.into_iter().filter_map(Result::err) {
                said.push(format!("{error} {error:?}"));
            }
        }
    });
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("TRACE") && log.contains("reqwest"), "the libraries' logs are in it");
    for secret in secrets {
        assert!(!log.contains(&secret), "a token is in the log");
        assert!(!said.iter().any(|text| text.contains(&secret)), "a token is in a Debug or an error");
    }
}
