//! Calls that were given up and arrive all the same, after what their caller has done since.

mod common;

use std::time::Duration;

use common::{backend, group, lasting, valkey};
use shardwise_core::Member;
use shardwise_discovery::{Discovery, Registration};
use shardwise_testkit::{Direction, TcpProxy};
use tokio::time::timeout;

/// After how long the caller gives up: before its connection counts as silent. And how long the slow way takes.
const LIMIT: Duration = Duration::from_millis(200);
const SLOWNESS: Duration = Duration::from_millis(700);

fn saying(version: &str) -> Registration {
    let a = lasting("a", 1);
    Registration { member: Member { version: Some(version.into()), ..a.member.clone() }, ..a }
}

/// One way to the server is slow, so a call is on its way when its caller gives up, and the next one overtakes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_given_up_undoes_nothing_that_came_later() {
    let server = valkey().await;
    let proxy = TcpProxy::start(server.socket_addr()).await.unwrap();
    let (slow, quick) = (backend(&format!("redis://{}", proxy.address())), backend(&server.address()));
    let seen = async || {
        let view = quick.members(&group()).await.unwrap().view;
        view.members().first().and_then(|member| member.version.clone())
    };
    for round in 0..3 {
        slow.members(&group()).await.unwrap();
        proxy.delay(Direction::ToServer, SLOWNESS);
        timeout(LIMIT, slow.register(&saying("old"))).await.unwrap_err();
        quick.deregister(&saying("old").record_id()).await.unwrap();
        tokio::time::sleep(SLOWNESS * 2).await;
        assert_eq!(seen().await, None, "round {round}: nobody comes after a farewell, also where no record was there yet");

        proxy.delay(Direction::ToServer, Duration::ZERO);
        slow.register(&saying("registered")).await.unwrap();
        proxy.delay(Direction::ToServer, SLOWNESS);
        timeout(LIMIT, slow.update(&saying("old"))).await.unwrap_err();
        quick.update(&saying("new")).await.unwrap();
        tokio::time::sleep(SLOWNESS * 2).await;
        assert_eq!(seen().await.as_deref(), Some("new"), "round {round}");

        proxy.delay(Direction::ToServer, Duration::ZERO);
        slow.renew(&saying("new").record_id(), saying("new").ttl).await.unwrap();
        proxy.delay(Direction::ToServer, SLOWNESS);
        timeout(LIMIT, slow.register(&saying("old"))).await.unwrap_err();
        quick.deregister(&saying("new").record_id()).await.unwrap();
        tokio::time::sleep(SLOWNESS * 2).await;
        assert_eq!(seen().await, None, "round {round}: it does not come back");

        proxy.delay(Direction::ToServer, Duration::ZERO);
        slow.register(&saying("registered")).await.unwrap();
        proxy.delay(Direction::ToServer, SLOWNESS);
        timeout(LIMIT, slow.deregister(&saying("old").record_id())).await.unwrap_err();
        quick.register(&saying("again")).await.unwrap();
        tokio::time::sleep(SLOWNESS * 2).await;
        assert_eq!(seen().await.as_deref(), Some("again"), "round {round}: an old farewell ends no new life");
        proxy.delay(Direction::ToServer, Duration::ZERO);
        quick.deregister(&saying("again").record_id()).await.unwrap();
    }
}
