//! Calls that were given up and arrive all the same, after what their caller has done since.

mod common;

use common::{TTL, backend, group, valkey};
use shardwise_discovery::Clock;
use shardwise_discovery::conformance::{Scope, late_calls_undo_nothing};
use shardwise_testkit::{Direction, TcpProxy};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_given_up_undoes_nothing_that_came_later() {
    let server = valkey().await;
    let proxy = TcpProxy::start(server.socket_addr()).await.unwrap();
    let (slow, quick) = (backend(&format!("redis://{}", proxy.address())), backend(&server.address()));
    let scope = Scope { backend: slow, peer: quick, group: group(), ttl: TTL, clock: Clock::system(), guard: Box::new(()) };
    late_calls_undo_nothing(&scope, |by| proxy.delay(Direction::ToServer, by)).await;
}
