//! Changes of records that go astray: they arrive after what their caller has done since, or their agent never passes them on.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::{group, open, registration, renew, until};
use serde_json::Value;
use shardwise_discovery::{Discovery, ErrorKind};
use shardwise_testkit::{Consul, Direction, TcpProxy};
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(30);

async fn passing(consul: &Consul) -> Value {
    consul.api("GET", "/v1/health/service/g?passing&consistent", None).await.unwrap()
}

/// The guard and the read before the change take one slow way each, and then the change itself is given up on its way.
#[tokio::test]
async fn an_update_that_arrives_after_the_member_has_left_brings_no_member_back() {
    let consul = Consul::single().await.unwrap();
    let proxy = TcpProxy::start(consul.socket_addr()).await.unwrap();
    let backend = open(&format!("http://{}", proxy.address()));
    let mut a = registration("g", "a", 1, TTL);
    backend.register(&a).await.unwrap();
    let slowness = Duration::from_millis(1_200);
    proxy.delay(Direction::ToServer, slowness);
    a.member.zone = Some("changed".into());
    let (updated, ()) = tokio::join!(backend.update(&a), async {
        // The read is on its way, and what comes after it takes longer than anybody waits.
        sleep(slowness * 3 / 2).await;
        proxy.delay(Direction::ToServer, slowness * 4);
        // What is on its way stays slow; all that is sent from now on is quick.
        sleep(slowness * 4 / 3).await;
        proxy.delay(Direction::ToServer, Duration::from_millis(1));
    });
    updated.unwrap_err();
    backend.deregister(&a.record_id()).await.unwrap();
    until("the update arrives all the same", TTL / 2, async || {
        let there = consul.api("GET", "/v1/agent/services", None).await.unwrap();
        there["a"]["Meta"]["shardwise_record_0"].as_str().filter(|record| record.contains("changed")).map(drop)
    })
    .await;
    for _ in 0..20 {
        assert_eq!(passing(&consul).await, Value::Array(vec![]), "a member that left is there again");
        sleep(Duration::from_millis(50)).await;
    }
    let checks = consul.api("GET", "/v1/agent/checks", None).await.unwrap();
    let checks: Vec<_> = checks.as_object().unwrap().values().map(|check| check["Status"].as_str()).collect();
    assert_eq!(checks, [Some("critical")], "what is there fails, so Consul deletes it");
    backend.register(&registration("g", "a", 2, TTL)).await.unwrap();
    assert_eq!(backend.members(&group("g")).await.unwrap().view.members().len(), 1, "and it is in nobody's way");
}

/// A registration survives a restart of its agent, also where its record has been changed before its first renewal.
#[tokio::test]
async fn a_changed_record_survives_a_restart_of_its_agent() {
    let server = Consul::single().await.unwrap();
    let agent = server.agent("far").await.unwrap();
    let (near, far) = (open(&server.address()), open(&agent.address()));
    let mut a = registration("g", "a", 1, TTL);
    far.register(&a).await.unwrap();
    far.renew(&a.record_id(), TTL).await.unwrap();
    a.member.zone = Some("changed".into());
    far.update(&a).await.unwrap();
    agent.restart(true).await.unwrap();
    renew(&far, &a).await;
    assert_eq!(near.members(&group("g")).await.unwrap().view.members()[0].zone.as_deref(), Some("changed"));
}

/// Such an agent has a new node id, and its servers take nothing from it under the name that they know.
#[tokio::test]
async fn an_agent_without_its_data_is_reported_until_it_leaves() {
    let server = Consul::single().await.unwrap();
    let agent = server.agent("far").await.unwrap();
    let (near, far) = (open(&server.address()), open(&agent.address()));
    let mut a = registration("g", "a", 1, TTL);
    far.register(&a).await.unwrap();
    agent.restart(false).await.unwrap();
    a.member.zone = Some("changed".into());
    let error = far.update(&a).await.unwrap_err();
    assert!(*error.kind() == ErrorKind::Unavailable && error.to_string().contains("lost its data"), "{error}");
    assert_eq!(near.members(&group("g")).await.unwrap().view.members()[0].zone, None, "the servers never got it");
    let error = far.register(&registration("g", "b", 2, TTL)).await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("consul leave"), "{error}");

    agent.api("PUT", "/v1/agent/leave", None).await.unwrap();
    until("the servers forget what the old node had", TTL, async || (passing(&server).await == Value::Array(vec![])).then_some(())).await;
    agent.restart(false).await.unwrap();
    let b = registration("g", "b", 3, TTL);
    until("one can register there", TTL, async || far.register(&b).await.ok()).await;
    assert_eq!(near.members(&group("g")).await.unwrap().view.members().len(), 1);
}
