//! Users of etcd: what they may do, and what not.

use serde_json::json;
use shardwise_testkit::{Etcd, EtcdOptions, KeyAccess};

const USER: (&str, &str) = ("worker", "secret");

#[tokio::test]
async fn a_user_has_the_rights_given_and_no_other() {
    let etcd = Etcd::start(EtcdOptions::default().with_auth()).await.unwrap();
    etcd.add_user(USER.0, USER.1, &[(KeyAccess::ReadWrite, "a/"), (KeyAccess::Read, "b/")]).await.unwrap();
    // a/1, b/1
    let (mine, shared) = (json!({ "key": "YS8x" }), json!({ "key": "Yi8x" }));
    etcd.api_as(USER, "/v3/kv/put", &mine).await.unwrap();
    etcd.api_as(USER, "/v3/kv/range", &shared).await.unwrap();
    let error = etcd.api_as(USER, "/v3/kv/put", &shared).await.unwrap_err().to_string();
    assert!(error.contains("permission denied"), "{error}");
    etcd.api("/v3/kv/put", &shared).await.unwrap();

    etcd.change_user(USER.0, &[(KeyAccess::Write, "")]).await.unwrap();
    etcd.api_as(USER, "/v3/kv/put", &shared).await.unwrap();
    assert!(etcd.api_as(USER, "/v3/kv/range", &mine).await.is_err());
    assert!(etcd.api_as((USER.0, "wrong"), "/v3/kv/put", &mine).await.is_err());
    assert!(etcd.api_as(etcd.root(), "/v3/kv/range", &mine).await.is_ok());
}

#[tokio::test]
async fn users_survive_a_restart_with_data_and_root_one_without() {
    let etcd = Etcd::start(EtcdOptions::default().with_auth()).await.unwrap();
    etcd.add_user(USER.0, USER.1, &[(KeyAccess::ReadWrite, "")]).await.unwrap();
    let key = json!({ "key": "YQ==" });
    etcd.restart(true).await.unwrap();
    etcd.api_as(USER, "/v3/kv/put", &key).await.unwrap();
    etcd.restart(false).await.unwrap();
    assert!(etcd.api_as(USER, "/v3/kv/put", &key).await.is_err());
    assert!(etcd.api("/v3/kv/range", &key).await.unwrap()["count"].is_null());
}
