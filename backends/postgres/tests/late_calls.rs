//! Calls that were given up and arrive all the same, after what their caller has done since.

mod common;

use common::{TTL, backend, database, group};
use shardwise_discovery::Clock;
use shardwise_discovery::conformance::{Scope, late_calls_undo_nothing};
use shardwise_testkit::{Direction, TcpProxy};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_given_up_undoes_nothing_that_came_later() {
    let database = database().await;
    let proxy = TcpProxy::start(database.server().socket_addr()).await.unwrap();
    let (slow, quick) = (backend(&database.url_at(proxy.address())), backend(&database.url()));
    let scope = Scope { backend: slow, peer: quick, group: group(), ttl: TTL, clock: Clock::system(), guard: Box::new(()) };
    late_calls_undo_nothing(&scope, |by| proxy.delay(Direction::ToServer, by)).await;
}
