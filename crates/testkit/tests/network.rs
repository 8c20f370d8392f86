//! Consul agents that are cut off from each other, while programs still reach them.

#![expect(clippy::panic, reason = "a helper of tests")]

use std::time::Duration;

use serde_json::json;
use shardwise_testkit::{Consul, ConsulOptions};

const PATIENCE: Duration = Duration::from_mins(3);

/// Waits until this agent learns from the server that the node's gossip has that status.
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
async fn an_agent_that_is_cut_off_fails_for_the_server_and_answers_its_own_programs() {
    let near = Consul::start(ConsulOptions::default().with_network()).await.unwrap();
    let far = near.agent("far").await.unwrap();
    let service = json!({ "Name": "workers", "Check": { "CheckID": "alive", "TTL": "10m" } });
    far.api("PUT", "/v1/agent/service/register", Some(&service)).await.unwrap();
    far.api("PUT", "/v1/agent/check/pass/alive", None).await.unwrap();
    far.cut_off().unwrap();
    far.api("PUT", "/v1/agent/check/pass/alive", None).await.unwrap();
    assert!(far.api("GET", "/v1/health/node/far?consistent", None).await.is_err());
    seen(&near, "far", "critical").await;
    assert!(far.api("GET", "/v1/health/node/far?consistent", None).await.is_err());
    seen(&near, near.node(), "passing").await;
    far.heal().await.unwrap();
    seen(&far, "far", "passing").await;
    seen(&near, "far", "passing").await;
}

#[tokio::test]
async fn without_a_network_no_connection_can_be_cut() {
    let consul = Consul::single().await.unwrap();
    assert!(consul.cut_off().unwrap_err().to_string().contains("without a network"));
}
