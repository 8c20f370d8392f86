//! Workers of another fleet, which keeps a key for each of them until it expires, are foreign instances of a group.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::time::Instant;

use common::{PACE, PATIENCE, assert_message, group, ids, lasting, open, valkey};
use shardwise_backend_valkey::ValkeyConfig;
use shardwise_core::InstanceId;
use shardwise_discovery::{Discovery, ErrorKind, WatchStream, conformance};
use shardwise_testkit::{Redis, RedisOptions};

const BEGINNING: &str = "fleet:member:";

fn config(server: &Redis) -> ValkeyConfig {
    ValkeyConfig { member_keys: Some(BEGINNING.into()), ..ValkeyConfig::new(server.address()) }
}

async fn set(server: &Redis, id: &str, lasts_ms: &str) {
    server.command(&["SET", &format!("{BEGINNING}{id}"), "{}", "PX", lasts_ms]).await.unwrap();
}

/// Waits for a view with these members and these foreign instances.
async fn shows(watch: &mut WatchStream, members: &[&str], foreign: &[&str]) {
    let what = format!("{members:?} beside {foreign:?}");
    conformance::view_where(watch, PATIENCE, &what, |view| {
        ids(view) == members && view.foreign().iter().map(InstanceId::as_str).eq(foreign.iter().copied())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_of_the_other_fleet_come_and_go_with_their_keys() {
    for server in [valkey().await, Redis::start(RedisOptions::default()).await.unwrap()] {
        set(&server, "b", "600000").await;
        server.command(&["SET", "fleet:leader", "b"]).await.unwrap();
        let ours = open(&config(&server));
        let registration = lasting("ours", 1);
        ours.register(&registration).await.unwrap();
        let mut watch = ours.watch(&group(), PACE);
        shows(&mut watch, &["ours"], &["b"]).await;
        // Long enough for several scans on a busy machine.
        set(&server, "a", "8000").await;
        shows(&mut watch, &["ours"], &["a", "b"]).await;
        shows(&mut watch, &["ours"], &["b"]).await;
        set(&server, "ours", "600000").await;
        server.command(&["DEL", &format!("{BEGINNING}b")]).await.unwrap();
        shows(&mut watch, &["ours"], &[]).await;
        let read = ours.members(&group()).await.unwrap().view;
        assert!(ids(&read) == ["ours"] && read.foreign().is_empty(), "one that is ours counts once");
        ours.deregister(&registration.record_id()).await.unwrap();
        shows(&mut watch, &[], &["ours"]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_right_to_look_for_keys_is_named() {
    let server = valkey().await;
    server.command(&["ACL", "SETUSER", "worker", "on", ">hush", "~*", "&*", "+@all", "-scan"]).await.unwrap();
    let settings = ValkeyConfig { username: Some("worker".into()), password: Some("hush".into()), ..config(&server) };
    let begun = Instant::now();
    let error = open(&settings).members(&group()).await.unwrap_err();
    assert_message(&error, &ErrorKind::Denied, begun, &["user \"worker\"", "ACL SETUSER worker +scan"]);
}
