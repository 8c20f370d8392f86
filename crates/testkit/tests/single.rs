//! Servers alone: started, killed, restarted, paused.

use std::time::Duration;

use serde_json::json;
use shardwise_testkit::{Consul, ConsulOptions, Etcd};

#[tokio::test]
async fn consul_keeps_its_data_over_a_restart_unless_it_is_to_lose_them() {
    let consul = Consul::single().await.unwrap();
    consul.api("PUT", "/v1/kv/a", Some(&json!(1))).await.unwrap();
    consul.kill().unwrap();
    assert!(consul.api("GET", "/v1/kv/a?raw", None).await.is_err());
    consul.restart(true).await.unwrap();
    assert_eq!(consul.api("GET", "/v1/kv/a?raw", None).await.unwrap(), 1);
    consul.restart(false).await.unwrap();
    assert!(consul.api("GET", "/v1/kv/a?raw", None).await.unwrap_err().to_string().contains("404"));
    assert!(consul.unix_socket().exists());
}

#[tokio::test]
async fn consul_gives_rights_by_token() {
    let consul = Consul::start(ConsulOptions::default().with_acl()).await.unwrap();
    let token = consul.token(r#"key_prefix "mine/" { policy = "write" }"#).await.unwrap();
    // A token in the query comes before the one in the header, which is that for everything.
    let path = |key: &str| format!("/v1/kv/{key}?token={}", token.secret);
    let value = json!(1);
    consul.api("PUT", &path("mine/a"), Some(&value)).await.unwrap();
    assert!(consul.api("PUT", &path("yours/a"), Some(&value)).await.unwrap_err().to_string().contains("403"));
    consul.revoke_token(&token).await.unwrap();
    let other = consul.token(r#"key_prefix "yours/" { policy = "write" }"#).await.unwrap();
    assert_ne!(other.secret, token.secret);
    let path = |key: &str| format!("/v1/kv/{key}?token={}", other.secret);
    consul.api("PUT", &path("yours/a"), Some(&value)).await.unwrap();
    assert!(consul.api("PUT", &path("mine/a"), Some(&value)).await.is_err());
}

#[tokio::test]
async fn etcd_keeps_its_data_over_a_restart_unless_it_is_to_lose_them() {
    let etcd = Etcd::single().await.unwrap();
    etcd.api("/v3/kv/put", &json!({ "key": "YQ==", "value": "MQ==" })).await.unwrap();
    etcd.kill().unwrap();
    assert!(etcd.api("/v3/kv/range", &json!({ "key": "YQ==" })).await.is_err());
    etcd.restart(true).await.unwrap();
    assert_eq!(etcd.api("/v3/kv/range", &json!({ "key": "YQ==" })).await.unwrap()["count"], "1");
    etcd.restart(false).await.unwrap();
    assert!(etcd.api("/v3/kv/range", &json!({ "key": "YQ==" })).await.unwrap()["count"].is_null());
}

#[tokio::test]
async fn a_paused_server_is_silent_and_then_goes_on() {
    let etcd = Etcd::single().await.unwrap();
    etcd.pause().unwrap();
    let body = json!({ "key": "YQ==" });
    assert!(tokio::time::timeout(Duration::from_millis(300), etcd.api("/v3/kv/range", &body)).await.is_err());
    etcd.resume().unwrap();
    etcd.api("/v3/kv/range", &body).await.unwrap();
}
