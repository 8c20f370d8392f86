//! A transactional outbox: the application inserts events into a table in its own transaction, and publishers that share the work by
//! consistent hashing send them on, in order within each aggregate, losing nothing.
//!
//! The parts: a [`Store`] where events wait (features `sqlite` and `postgres`), a [`Sink`] they go to, and an [`OutboxPublisher`] that asks a
//! `shardwise::Sharding` which slots are its own and takes them under the store's fence. `decide` makes every decision and does nothing
//! else; `publisher` carries them out.
//!
#![doc = include_str!("../operations.md")]

mod decide;
mod error;
mod event;
#[cfg(feature = "testing")]
pub mod exercise;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod inbox;
pub mod metrics;
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

pub use error::{Error, ErrorKind, Result};
pub use event::{AGGREGATE_ID_BYTES_MAX, AggregateId, Delivery, HEADERS_BYTES_MAX, NAME_BYTES_MAX, NewEvent, PAYLOAD_BYTES_MAX, Payload};
pub use options::{BATCH_MAX, Poison, PublisherOptions, RETRY_DELAY_MAX};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresConfig, PostgresStore};
pub use publisher::{Nudge, OutboxPublisher, OutboxPublisherBuilder, PublisherSnapshot, PublisherStats, Trouble, report_backlog};
pub use shardwise::core::one_line;
pub use sink::{FileSink, Sink, StdoutSink};
#[cfg(feature = "sqlite")]
pub use sqlite::{SlotHolder, SqliteConfig, SqliteStore};
pub use store::{DeadLetters, Status, Store, serves};
