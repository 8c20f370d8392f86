//! What is left once the last watch has ended. Alone in its file: it counts the threads of the process.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::time::Duration;

use common::{Follower, Scratch, eventually, group, make, view_of};
use shardwise_discovery::Discovery;

const TTL: Duration = Duration::from_secs(20);

/// Each connection has one thread.
fn connections() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks.filter(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == "shardwise-local")).count()
}

#[tokio::test]
async fn dropping_the_last_watch_ends_its_work_and_dropping_the_backend_ends_all() {
    let scratch = Scratch::new();
    let backend = scratch.backend();
    assert_eq!(connections(), 0, "opening starts nothing");
    make(&backend).await;
    backend.members(&group()).await.unwrap();
    let before = connections();
    let mut watches = [backend.watch(&group(), TTL), backend.watch(&group(), TTL)];
    for watch in &mut watches {
        view_of(watch, &[]).await;
    }
    let mut claims = Follower::of(&backend, TTL);
    claims.until(0..0).await;
    assert_eq!(connections(), before + 1, "one poller for all");
    drop(watches);
    drop(claims);
    eventually("the poller ends", async || (connections() == before).then_some(())).await;
    let mut again = backend.watch(&group(), TTL);
    view_of(&mut again, &[]).await;
    drop(backend);
    assert!(connections() > 0, "a watch keeps what it needs");
    drop(again);
    eventually("all connections end", async || (connections() == 0).then_some(())).await;
}
