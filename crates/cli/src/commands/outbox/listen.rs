//! `--listen`: `/livez`, `/readyz` and `/metrics` of a publisher, for monitoring.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use shardwise::{ServiceState, Sharding as _, ShardingService};
use shardwise_outbox::{PublisherStats, Trouble};
use shardwise_sidecar::{Reading, Render, serve_readings};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::exit::{CliFailure, Result};
use crate::recorder;

/// A publisher whose loop has not run for this many TTLs, and at least for the time below, hangs.
const TTLS_MAX: u32 = 10;
const TURN_MIN: Duration = Duration::from_secs(30);
/// The upper bounds of the histograms' buckets, in seconds.
const BUCKETS: [f64; 14] = [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0];

/// The state that the answers report.
pub(super) struct ListenState {
    pub(super) stats: PublisherStats,
    pub(super) sharding: ShardingService,
}

/// Listens, and records metrics from now on: this must precede the publisher's request for its counters.
pub(super) async fn bind(address: SocketAddr) -> Result<(TcpListener, Option<Render>)> {
    let listener = TcpListener::bind(address).await.map_err(|error| CliFailure::listen(address, &error))?;
    Ok((listener, recorder::install(&BUCKETS)?))
}

/// Answers until the handle is dropped, also under the names in `hosts`. Without `render` there is no `/metrics`.
pub(super) fn serve(listener: TcpListener, hosts: Vec<String>, publisher: ListenState, render: Option<Render>) -> AbortOnDropHandle<()> {
    let publisher = Arc::new(publisher);
    let reading = |read: fn(&ListenState) -> Reading| {
        let publisher = Arc::clone(&publisher);
        Box::new(move || read(&publisher)) as Box<dyn Fn() -> Reading + Send + Sync>
    };
    let mut readings = vec![("/livez", reading(alive)), ("/readyz", reading(ready))];
    if let Some(render) = render {
        let metrics = move || Reading { status: 200, content_type: "text/plain; version=0.0.4; charset=utf-8", text: render() };
        readings.push(("/metrics", Box::new(metrics)));
    }
    AbortOnDropHandle::new(tokio::spawn(serve_readings(listener, hosts, readings)))
}

/// Checks that the publisher's loop runs; before its first turn it counts as running.
///
/// # Errors
///
/// The time for which it has not run.
pub(super) fn turns(stats: &PublisherStats, sharding: &ShardingService) -> std::result::Result<(), Duration> {
    let longest = TURN_MIN.max(sharding.timing().ttl * TTLS_MAX);
    stats.turned_ago().filter(|ago| *ago > longest).map_or(Ok(()), Err)
}

fn alive(publisher: &ListenState) -> Reading {
    let (status, text) = match turns(&publisher.stats, &publisher.sharding) {
        Ok(()) => (200, "alive\n".into()),
        Err(ago) => (503, format!("the publisher has done nothing for {ago:.0?}\n")),
    };
    Reading { status, content_type: "text/plain; charset=utf-8", text }
}

/// Ready means: a member that takes its share and holds part of it. The answer mentions a sink that is down, but the publisher stays
/// ready, because another publisher could not do better. Only `outbox status`, which needs the store's password, shows the sink's message.
fn ready(publisher: &ListenState) -> Reading {
    let (now, state) = (publisher.stats.snapshot(), publisher.sharding.state());
    let takes_part = matches!(state, ServiceState::Active | ServiceState::Stale | ServiceState::Unsharded);
    let ready = takes_part && (now.held_slots > 0 || now.wanted_slots == 0);
    let body = json!({
        "ready": ready, "state": state.as_str(), "held_slots": now.held_slots, "wanted_slots": now.wanted_slots,
        "destination_down": now.destinations_down > 0, "destination_slow": now.destinations_slow > 0,
        "trouble": now.trouble.map(Trouble::as_str),
    });
    Reading { status: if ready { 200 } else { 503 }, content_type: "application/json", text: format!("{body}\n") }
}
