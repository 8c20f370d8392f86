//! Suites that every store and every sink passes, and a sink that does as it is told (feature `testing`).
//!
//! A suite panics with the case's name and what was wrong. Hand it a harness:
//!
//! ```
//! use shardwise_outbox::exercise::{self, StoreHarness};
//!
//! async fn passes_the_store_suite<H: StoreHarness>(fresh: impl AsyncFn() -> H) {
//!     exercise::store(|| fresh()).await;
//! }
//! ```
#![expect(clippy::unwrap_used, reason = "a test suite reports by panicking")]

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

use crate::{DeadLetters, Delivery, NewEvent, Sink, Store};

/// A fresh outbox, and what the suite needs beside the trait.
#[async_trait]
pub trait StoreHarness: Send + Sync {
    /// The outbox as a process of its own opens it.
    async fn open(&self) -> Arc<dyn Store>;

    /// The same for an operator.
    async fn open_dead_letters(&self) -> Arc<dyn DeadLetters>;

    /// Inserts events as an application does: the one plain statement, in one transaction.
    async fn insert(&self, events: Vec<NewEvent>);

    /// Moves the clock of the fence on.
    async fn advance(&self, by: Duration);

    /// Whether a payload of text may have a NUL in it; where the database has no such text it must refuse one.
    fn text_may_have_nul(&self) -> bool {
        true
    }
}

/// A fresh destination, and what arrived there.
#[async_trait]
pub trait SinkHarness: Send + Sync {
    /// The sink as a process of its own opens it.
    async fn open(&self) -> Arc<dyn Sink>;

    /// What a consumer sees, in order: key, sequence and id of each event, repetitions included.
    async fn arrived(&self) -> Vec<(String, u64, String)>;

    /// The destination's server, for the cases that are about one; `None` where there is none.
    fn server(&self) -> Option<&dyn SinkServer> {
        None
    }
}

/// The server of a destination, which can fail.
#[async_trait]
pub trait SinkServer: Send + Sync {
    /// Kills it and starts it again with what it had stored; gives back when it is ready.
    async fn restart(&self);

    /// From now on what is sent arrives, and no answer comes back; or answers come again.
    async fn lose_answers(&self, lose: bool);

    /// Whether it drops what it has already.
    fn drops_repeats(&self) -> bool;

    /// A payload of this size is too large for it.
    fn too_large(&self) -> usize;

    /// The same destination with credentials that are wrong; `None` where it asks for none.
    async fn open_as_stranger(&self) -> Option<Arc<dyn Sink>>;
}

/// Runs every case of the store suite, each on a fresh outbox.
pub async fn store<H, F>(fresh: impl Fn() -> F)
where
    H: StoreHarness,
    F: Future<Output = H>,
{
    fence::all(&fresh).await;
    store::all(&fresh).await;
    dead_letters::all(&fresh).await;
}

/// Runs every case of the sink suite, each on a fresh destination.
pub async fn sink<H, F>(fresh: impl Fn() -> F)
where
    H: SinkHarness,
    F: Future<Output = H>,
{
    sink::all(&fresh).await;
}

/// Events of one aggregate, numbered from `from`, ready to be handed to a sink.
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
