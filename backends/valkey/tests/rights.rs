//! The rights in docs.md: they are enough, and each that is missing is answered with the command that grants it.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;
use std::time::Instant;

use common::{PACE, TTL, assert_message, group, open, registration, valkey, view_of};
use futures::StreamExt;
use shardwise_backend_valkey::{ValkeyBackend, ValkeyConfig};
use shardwise_core::ClaimName;
use shardwise_discovery::{Discovery, Error, ErrorKind, Notes, WatchEvent, WriteOutcome};
use shardwise_testkit::{Redis, RedisOptions};

/// The rules of docs.md.
fn documented() -> Vec<&'static str> {
    let docs = include_str!("../docs.md");
    let rule = docs.lines().find_map(|line| line.strip_prefix("ACL SETUSER worker on >password ")).unwrap();
    rule.split(' ').collect()
}

async fn set_user(server: &Redis, rules: &[&str]) {
    let words = ["ACL", "SETUSER", "worker", "reset", "on", ">password"];
    server.command(&[&words[..], rules].concat()).await.unwrap();
}

fn as_worker(server: &Redis) -> Arc<ValkeyBackend> {
    open(&ValkeyConfig { username: Some("worker".into()), password: Some("password".into()), ..ValkeyConfig::new(server.address()) })
}

/// Everything that a worker does; the first refusal.
async fn everything(backend: &ValkeyBackend, incarnation: u64) -> Result<(), Error> {
    let name = ClaimName::new(format!("note {incarnation}")).unwrap();
    let mut watch = backend.watch(&group(), PACE);
    let a = registration("a", incarnation);
    backend.register(&a).await?;
    backend.renew(&a.record_id(), TTL).await?;
    backend.update(&a).await?;
    assert_eq!(backend.note(&group(), &name).await?, None);
    if let WriteOutcome::Written(version) = backend.write_note(&group(), &name, 0, "1").await? {
        backend.write_note(&group(), &name, version, "2").await?;
    }
    backend.members(&group()).await?;
    assert!(matches!(watch.next().await.unwrap()?, WatchEvent::View(_)));
    // Its id is taken for another one.
    let other = backend.register(&registration("a", incarnation + 1_000)).await.unwrap_err();
    if !matches!(other.kind(), ErrorKind::InUse { .. }) {
        return Err(other);
    }
    backend.step_away(&a, TTL).await?;
    backend.deregister(&a.record_id()).await?;
    // A member that comes back is found by its farewell.
    let again = registration("a", incarnation + 2_000);
    backend.register(&again).await?;
    backend.deregister(&again.record_id()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_rights_are_enough_for_everything() {
    for server in [valkey().await, Redis::start(RedisOptions::default()).await.unwrap()] {
        set_user(&server, &documented()).await;
        let worker = as_worker(&server);
        everything(&worker, 1).await.unwrap();
        let silent = registration("silent", 2);
        worker.register(&shardwise_discovery::Registration { ttl: TTL / 3, ..silent }).await.unwrap();
        let mut watch = worker.watch(&group(), PACE);
        view_of(&mut watch, &[]).await;
        // A restart changes the history: the right to look at it is among them too.
        let other = open(&ValkeyConfig { prefix: "shardwise".into(), ..ValkeyConfig::new(server.address()) });
        other.members(&group()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_right_that_is_missing_is_answered_with_the_command_that_grants_it() {
    for server in [valkey().await, Redis::start(RedisOptions::default()).await.unwrap()] {
        let rules = documented();
        for (number, missing) in (1..).zip(&rules) {
            // Without it channels are left when the connection ends.
            if *missing == "+unsubscribe" {
                continue;
            }
            let others: Vec<&str> = rules.iter().copied().filter(|rule| rule != missing).collect();
            set_user(&server, &others).await;
            server.command(&["FLUSHALL"]).await.unwrap();
            // So that they have to be sent whole once.
            server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
            let begun = Instant::now();
            let error = everything(&as_worker(&server), number * 10).await.expect_err(missing);
            let grant = format!("ACL SETUSER worker {}", rules.join(" "));
            assert_message(&error, &ErrorKind::Denied, begun, &["user \"worker\"", &grant]);
        }
        set_user(&server, &rules).await;
        everything(&as_worker(&server), 999).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_database_needs_a_right_more() {
    for server in [valkey().await, Redis::start(RedisOptions::default()).await.unwrap()] {
        set_user(&server, &documented()).await;
        let config = ValkeyConfig {
            username: Some("worker".into()),
            password: Some("password".into()),
            database: 3,
            ..ValkeyConfig::new(server.address())
        };
        let (begun, worker) = (Instant::now(), open(&config));
        let error = worker.members(&group()).await.unwrap_err();
        let names = ["user \"worker\"", "the database 3", "ACL SETUSER worker +select", "discovery.valkey.database"];
        assert_message(&error, &ErrorKind::Denied, begun, &names);
        server.command(&["ACL", "SETUSER", "worker", "+select"]).await.unwrap();
        everything(&worker, 1).await.unwrap();
    }
}
