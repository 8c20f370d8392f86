//! A transactional outbox: the application inserts events into a table in its own transaction. Publishers share the work by consistent
//! hashing and deliver every event, in order within each aggregate.
//!
//! The parts: a [`Store`] that holds the events (features `sqlite` and `postgres`), a [`Sink`] that receives them, and an
//! [`OutboxPublisher`] that asks a `shardwise::Sharding` for its slots and takes them under the store's fence. `decide` makes every
//! decision and does no I/O; `publisher` carries the decisions out.
//!
#![doc = include_str!("../operations.md")]

mod decide;
mod error;
mod event;
#[cfg(feature = "testing")]
pub mod exercise;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod inbox;
mod metrics;
mod options;
#[cfg(feature = "postgres")]
pub mod postgres;
mod private_file;
mod publisher;
#[cfg(any(feature = "postgres", feature = "tls"))]
mod secret;
pub mod settings;
pub mod sink;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod store;

pub use decide::{PublisherSnapshot, Trouble};
pub use error::{Error, ErrorKind, Result};
pub use event::{AGGREGATE_ID_BYTES_MAX, AggregateId, Delivery, HEADERS_BYTES_MAX, NAME_BYTES_MAX, NewEvent, PAYLOAD_BYTES_MAX, Payload};
pub use options::{BATCH_MAX, Poison, PublisherOptions, RETRY_DELAY_MAX};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresConfig, PostgresStore};
pub use publisher::{Nudge, OutboxPublisher, PublisherStats, report_backlog};
pub use shardwise::core::one_line;
pub use sink::{FileSink, Sink, StdoutSink};
#[cfg(feature = "sqlite")]
pub use sqlite::{SlotHolder, SqliteConfig, SqliteStore};
pub use store::{DeadLetters, Status, Store, serves};
