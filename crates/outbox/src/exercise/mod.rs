//! Test suites that every store and every sink must pass, and a scripted sink (feature `testing`).
//!
//! A suite panics with the case's name and what was wrong.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test suite reports by panicking")]

mod dead_letters;
mod fence;
mod scripted;
mod sink;
mod store;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

pub use scripted::{ScriptedReply, ScriptedSink};
pub use sink::sink;

use crate::{DeadLetters, Delivery, NewEvent, Sink, Store};

/// A fresh outbox, and what the suite needs besides the trait.
#[async_trait]
pub trait StoreHarness: Send + Sync {
    /// Opens the outbox as a separate process does.
    async fn open(&self) -> Arc<dyn Store>;

    /// Opens it for an operator.
    async fn open_dead_letters(&self) -> Arc<dyn DeadLetters>;

    /// Inserts events as an application does: with one plain statement, in one transaction.
    async fn insert(&self, events: Vec<NewEvent>);

    /// Advances the clock of the fence.
    async fn advance(&self, by: Duration);

    /// Whether a text payload may contain a NUL; a database that has no such text must refuse it.
    fn text_may_have_nul(&self) -> bool {
        true
    }
}

/// A fresh destination, and what arrived there.
#[async_trait]
pub trait SinkHarness: Send + Sync {
    /// Opens the sink as a separate process does.
    async fn open(&self) -> Arc<dyn Sink>;

    /// What a consumer sees, in order: key, sequence and id of each event, repetitions included.
    async fn arrived(&self) -> Vec<(String, u64, String)>;

    /// The destination's server, for the cases that need one; `None` if there is none.
    fn server(&self) -> Option<&dyn SinkServer> {
        None
    }
}

/// The server of a destination, which can be made to fail.
#[async_trait]
pub trait SinkServer: Send + Sync {
    /// Kills the server and restarts it with its stored data; returns when it is ready.
    async fn restart(&self);

    /// Whether answers are lost from now on: with `true`, messages arrive and no answer comes back.
    async fn lose_answers(&self, lose: bool);

    /// Whether the destination drops repetitions.
    fn drops_repeats(&self) -> bool;

    /// A payload size, in bytes, that the destination refuses as too large.
    fn too_large(&self) -> usize;

    /// Opens the same destination with wrong credentials; `None` if it requires none.
    async fn open_as_stranger(&self) -> Option<Arc<dyn Sink>>;
}

/// Runs every case of the store suite, each on a fresh outbox.
pub async fn store<H: StoreHarness, F: Future<Output = H>>(fresh: impl Fn() -> F) {
    fence::all(&fresh).await;
    store::all(&fresh).await;
    dead_letters::all(&fresh).await;
}

/// Events of one aggregate, numbered from `from`, ready for a sink.
pub fn deliveries(aggregate_id: &str, from: u64, events: u64) -> Vec<Delivery> {
    let delivery = |sequence| Delivery {
        id: format!("{aggregate_id}-{sequence}"),
        aggregate_type: "order".into(),
        aggregate_id: aggregate_id.into(),
        event_type: "OrderChanged".into(),
        payload: format!("{{\"n\":{sequence}}}").into(),
        headers: None,
        created_at_unix_ms: 1_700_000_000_000,
        sequence,
        replayed: None,
        slot: 0,
        epoch: 1,
        aggregate: 1,
    };
    (from..from + events).map(delivery).collect()
}
