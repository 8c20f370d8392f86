//! Clusters: a leader, another after its death, members that come back, learners and client agents.

use std::time::{Duration, Instant};

use serde_json::json;
use shardwise_testkit::{Consul, ConsulCluster, ConsulOptions, Etcd, EtcdCluster, EtcdOptions};

#[tokio::test]
async fn etcd_has_another_leader_after_the_first_is_killed() {
    let cluster = EtcdCluster::start(3, EtcdOptions::default()).await.unwrap();
    assert_eq!(cluster.addresses().len(), 3);
    let first = cluster.leader().await.unwrap();
    let old = &cluster.members()[first];
    old.kill().unwrap();
    let second = cluster.leader().await.unwrap();
    assert_ne!(second, first);
    old.restart(true).await.unwrap();
    assert_ne!(cluster.leader().await.unwrap(), first);
    assert!(old.restart(false).await.unwrap_err().to_string().contains("without its data"));
    cluster.members()[second].api("/v3/kv/put", &json!({ "key": "YQ==" })).await.unwrap();
    cluster.restart(false).await.unwrap();
    assert!(old.api("/v3/kv/range", &json!({ "key": "YQ==" })).await.unwrap()["count"].is_null());
}

#[tokio::test]
async fn an_etcd_learner_answers_no_consistent_read() {
    let etcd = Etcd::single().await.unwrap();
    let learner = etcd.add_learner().await.unwrap();
    let error = learner.api("/v3/kv/range", &json!({ "key": "YQ==" })).await.unwrap_err().to_string();
    assert!(error.contains("learner"), "{error}");
    learner.api("/v3/kv/range", &json!({ "key": "YQ==", "serializable": true })).await.unwrap();
}

#[tokio::test]
async fn consul_has_another_leader_after_the_first_is_paused() {
    let cluster = ConsulCluster::start(3, ConsulOptions::default()).await.unwrap();
    let first = cluster.leader().await.unwrap();
    let old = &cluster.servers()[first];
    old.pause().unwrap();
    // On a busy machine the others may still name the one that is paused, until they have missed its signs.
    let (begun, mut second) = (Instant::now(), first);
    while second == first {
        assert!(begun.elapsed() < Duration::from_secs(30), "no other leader within 30 s");
        second = cluster.leader().await.unwrap();
    }
    old.resume().unwrap();
    cluster.servers()[second].api("PUT", "/v1/kv/a", Some(&json!(1))).await.unwrap();
    cluster.restart(true).await.unwrap();
    assert_eq!(old.api("GET", "/v1/kv/a?raw&consistent", None).await.unwrap(), 1);
    cluster.restart(false).await.unwrap();
    assert!(old.api("GET", "/v1/kv/a?raw&consistent", None).await.is_err());
}

#[tokio::test]
async fn a_consul_agent_without_servers_accepts_a_registration_and_answers_no_read() {
    let cluster = ConsulCluster::start(3, ConsulOptions::default()).await.unwrap();
    let agent = cluster.agent("client-1").await.unwrap();
    agent.restart(true).await.unwrap();
    cluster.servers().iter().for_each(|server| server.kill().unwrap());
    agent.api("PUT", "/v1/agent/service/register", Some(&json!({ "Name": "workers" }))).await.unwrap();
    let error = agent.api("GET", "/v1/health/service/workers?consistent", None).await.unwrap_err().to_string();
    assert!(error.contains("500"), "{error}");
}

#[tokio::test]
async fn a_consul_agent_may_come_back_without_its_data() {
    let server = Consul::single().await.unwrap();
    let agent = server.agent("client-1").await.unwrap();
    assert_eq!((server.node(), agent.node()), ("server-1", "client-1"));
    agent.restart(false).await.unwrap();
}
