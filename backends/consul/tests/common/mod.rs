//! What the tests share: backends of real servers, and waiting.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod fake;

use std::future::Future;
use std::time::{Duration, Instant};

use serde_json::json;
use shardwise_backend_consul::{ConsulBackend, ConsulConfig};
use shardwise_core::{GroupName, Incarnation, InstanceId, Member};
use shardwise_discovery::{Clock, Discovery as _, Registration};
use shardwise_testkit::Consul;
use tokio::runtime::Handle;

pub(crate) fn open(address: &str) -> ConsulBackend {
    backend(&ConsulConfig { address: address.to_owned(), ..ConsulConfig::default() })
}

pub(crate) fn backend(config: &ConsulConfig) -> ConsulBackend {
    ConsulBackend::open(config, Clock::system()).unwrap()
}

/// With this token.
pub(crate) fn with_token(consul: &Consul, token: &str) -> ConsulBackend {
    backend(&ConsulConfig { address: consul.address(), token: Some(token.into()), ..ConsulConfig::default() })
}

pub(crate) fn group(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

pub(crate) fn registration(group_name: &str, id: &str, incarnation: u64, ttl: Duration) -> Registration {
    let member = Member { incarnation: Incarnation::new(incarnation), ..Member::named(InstanceId::new(id).unwrap()) };
    Registration { group: group(group_name), member, ttl, claims: false }
}

/// One that claims.
pub(crate) fn claimant(group_name: &str, id: &str, incarnation: u64, ttl: Duration) -> Registration {
    Registration { claims: true, ..registration(group_name, id, incarnation, ttl) }
}

/// Asks again and again until there is an answer.
pub(crate) async fn until<T>(what: &str, within: Duration, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(started.elapsed() < within, "{what}: not within {within:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Renews as a worker does: who gets no answer in time asks again.
pub(crate) async fn renew(backend: &ConsulBackend, one: &Registration) {
    until("it is renewed", one.ttl, async || match backend.renew(&one.record_id(), one.ttl).await {
        Err(error) if error.is_retryable() => None,
        answer => Some(answer.unwrap()),
    })
    .await;
}

/// Waits until the agent reports a failed check to its servers at once and unprompted. After a start this takes a few seconds
/// (docs.md, "Timing").
pub(crate) async fn settle(agent: &Consul) {
    let service = format!("probe-{}", agent.node());
    let path = format!("/v1/health/checks/{service}?consistent");
    let begun = Instant::now();
    let mut at_once = 0;
    while at_once < 2 {
        assert!(begun.elapsed() < Duration::from_mins(1), "the agent does not pass on that checks fail");
        let check = json!({ "CheckID": service, "TTL": "50ms", "Status": "passing" });
        agent.api("PUT", "/v1/agent/service/register", Some(&json!({ "Name": service, "Check": check }))).await.unwrap();
        let registered = Instant::now();
        until("the agent passes on that a check failed", Duration::from_mins(1), async || {
            (agent.api("GET", &path, None).await.unwrap()[0]["Status"] == "critical").then_some(())
        })
        .await;
        at_once = if registered.elapsed() < Duration::from_millis(120) { at_once + 1 } else { 0 };
        agent.api("PUT", &format!("/v1/agent/service/deregister/{service}"), None).await.unwrap();
    }
}

/// Runs a future of the testkit to its end in place, where a test has to be able to move between threads and it cannot.
pub(crate) fn here<T>(future: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| Handle::current().block_on(future))
}
