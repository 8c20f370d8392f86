//! Calls that were given up and arrive all the same, after what their caller has done since.

mod common;

use std::time::Duration;

use common::{backend, eventually, group, registration, url};
use shardwise_core::Member;
use shardwise_discovery::{Discovery, Registration};
use shardwise_testkit::{Direction, Etcd, TcpProxy};
use tokio::time::timeout;

/// What the driver gives each update.
const LIMIT: Duration = Duration::from_secs(1);
const SLOWNESS: Duration = Duration::from_millis(700);

fn saying(version: &str) -> Registration {
    let a = registration("a", 1);
    let member = Member { version: Some(version.into()), ..a.member };
    Registration { member, ttl: Duration::from_mins(1), ..a }
}

/// The way to the first server is slow, so the write of the first update is on its way when its caller gives up. The second update says
/// something new, or what the record says already.
#[tokio::test]
async fn an_update_that_was_given_up_does_not_undo_the_next_one() {
    let etcd = Etcd::single().await.unwrap();
    for next in ["new", "registered"] {
        let proxy = TcpProxy::start(etcd.socket_addr()).await.unwrap();
        let (worker, outside) = (backend(&[url(proxy.address()), etcd.address()]), backend(&[etcd.address()]));
        worker.register(&saying("registered")).await.unwrap();
        proxy.delay(Direction::ToServer, SLOWNESS);
        timeout(LIMIT, worker.update(&saying("old"))).await.unwrap_err();
        timeout(LIMIT, worker.update(&saying(next))).await.unwrap().unwrap();
        // What goes the same way afterwards is there after the first update.
        eventually("the slow way works", async || backend(&[url(proxy.address())]).members(&group()).await.ok()).await;
        tokio::time::sleep(SLOWNESS * 2).await;
        let view = outside.members(&group()).await.unwrap().view;
        assert_eq!(view.members()[0].version.as_deref(), Some(next));
        worker.deregister(&saying(next).record_id()).await.unwrap();
    }
}
