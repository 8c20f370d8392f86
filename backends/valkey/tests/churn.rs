//! A thousand joins, leaves, kills and broken connections. `cargo xtask soak churn` runs it again and again.

mod common;

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use common::{TTL, backend, group, valkey};
use shardwise_discovery::conformance::{Scope, a_thousand_changes};
use shardwise_discovery::{Clock, Discovery};
use shardwise_testkit::{Lag, TcpProxy};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_member_is_lost_and_none_is_made_up_in_a_thousand_changes() {
    let seed = std::env::var("SHARDWISE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random::<u64>);
    println!("repeat with SHARDWISE_SEED={seed}");
    let server = valkey().await;
    let at = server.socket_addr();
    let proxies = [TcpProxy::start(at).await.unwrap(), TcpProxy::start(at).await.unwrap()];
    let [one, other] = proxies.each_ref().map(|proxy| backend(&format!("redis://{}", proxy.address())));
    let outside: Arc<dyn Discovery> = backend(&server.address());
    let scope = Scope { backend: one, peer: other, group: group(), ttl: TTL, clock: Clock::system(), guard: Box::new(()) };
    let lag = OnceCell::new();
    let within = || TTL * 4 + Duration::from_secs(2) + lag.get_or_init(Lag::begin).allowance();
    a_thousand_changes(&scope, &outside, seed, |which| proxies[which].reset(), within).await;
}
