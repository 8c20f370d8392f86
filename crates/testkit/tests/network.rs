//! A Consul agent that is cut off from the others, while programs still reach it.

#![expect(clippy::panic, reason = "a helper of tests")]

use std::time::{Duration, Instant};

use serde_json::json;
use shardwise_testkit::{Consul, ConsulCluster, ConsulOptions};

const PATIENCE: Duration = Duration::from_mins(3);

/// Waits until this agent learns from the servers that the node's gossip has that status.
async fn seen(from: &Consul, node: &str, status: &str) {
    let path = format!("/v1/health/node/{node}?consistent&filter=CheckID==serfHealth");
    let wait = async {
        loop {
            if from.api("GET", &path, None).await.is_ok_and(|checks| checks[0]["Status"] == status) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{} never saw {node} {status}", from.node()));
}

#[tokio::test]
async fn an_agent_that_is_cut_off_fails_for_the_others_and_answers_its_own_programs() {
    let cluster = ConsulCluster::start(3, ConsulOptions::default().with_network()).await.unwrap();
    let (near, far) = (cluster.agent("near").await.unwrap(), cluster.agent("far").await.unwrap());
    let service = json!({ "Name": "workers", "Check": { "CheckID": "alive", "TTL": "10m" } });
    far.api("PUT", "/v1/agent/service/register", Some(&service)).await.unwrap();
    far.api("PUT", "/v1/agent/check/pass/alive", None).await.unwrap();
    far.cut_off().unwrap();
    far.api("PUT", "/v1/agent/check/pass/alive", None).await.unwrap();
    assert!(far.api("GET", "/v1/health/node/far?consistent", None).await.is_err());
    seen(&near, "far", "critical").await;
    assert!(far.api("GET", "/v1/health/node/far?consistent", None).await.is_err());
    cluster.leader().await.unwrap();
    for node in ["near", "server-1", "server-2", "server-3"] {
        seen(&near, node, "passing").await;
    }
    far.heal().await.unwrap();
    seen(&far, "far", "passing").await;
    seen(&near, "far", "passing").await;
}

#[tokio::test]
async fn a_leader_that_is_cut_off_is_replaced() {
    let cluster = ConsulCluster::start(3, ConsulOptions::default().with_network()).await.unwrap();
    let old = cluster.leader().await.unwrap();
    cluster.servers()[old].cut_off().unwrap();
    let other = &cluster.servers()[(old + 1) % 3];
    seen(other, &format!("server-{}", old + 1), "critical").await;
    assert!(cluster.servers()[old].api("PUT", "/v1/kv/a", Some(&json!(1))).await.is_err());
    let begun = Instant::now();
    while let Err(error) = other.api("PUT", "/v1/kv/a", Some(&json!(1))).await {
        assert!(begun.elapsed() < PATIENCE, "{error}");
    }
    cluster.servers()[old].heal().await.unwrap();
    seen(&cluster.servers()[old], &format!("server-{}", old + 1), "passing").await;
}

#[tokio::test]
async fn without_a_network_no_connection_can_be_cut() {
    let consul = Consul::single().await.unwrap();
    assert!(consul.cut_off().unwrap_err().to_string().contains("without a network"));
}
