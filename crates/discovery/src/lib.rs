//! The contract between `shardwise` and the place where workers meet.
//!
//! [`Discovery`] is what a backend implements; its clauses stand numbered in its documentation, and each has cases in the
//! `conformance` suite (feature `conformance`) that a backend's own tests run. [`MemoryBackend`] is the reference: it obeys
//! the same rules as the others and runs in every test. [`Faults`] makes any
//! backend fail from a seed, for tests.
//!
//! Two modules are for authors of backends. [`feeds`]: many watches of a group, one reader. [`silence`]: members that have been silent for
//! a TTL, where the server does not end leases itself.
//!
//! Nothing here decides who owns what; that is `shardwise-core`.

mod call_number;
mod claims;
mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod contract;
mod error;
mod faults;
pub mod feeds;
mod keys;
mod log_throttle;
mod memory;
#[cfg(feature = "nats")]
pub mod nats;
mod notes;
#[cfg(feature = "postgres")]
pub mod postgres;
mod record;
pub mod settings;
mod shared_connection;
pub mod silence;
#[cfg(feature = "tls")]
pub mod tls;
mod used_stores;
#[cfg(feature = "valkey")]
pub mod valkey;

pub use call_number::CallNumber;
pub use claims::{ClaimChange, ClaimTable, Claims, ClaimsEvent, ClaimsStream, decode_claim_store};
pub use clock::Clock;
pub use contract::{Capabilities, Discovery, Grant, RecordId, Registration, ViewSnapshot, WatchEvent, WatchStream};
pub use error::{Error, ErrorKind, Result, at_address, one_line};
pub use faults::{FaultRates, Faults};
pub use keys::percent_encoded;
pub use log_throttle::LogThrottle;
pub use memory::MemoryBackend;
pub use notes::{NOTE_BYTES_MAX, Note, Notes, WriteOutcome, check_note};
pub use record::{FINGERPRINTS_MAX, METADATA_BYTES_MAX, RECORD_SCHEMA, Record, RecordError, RecordWriteError};
pub use shardwise_core::AcquireOutcome;
pub use shared_connection::{AbandonedCall, SharedConnection};
pub use used_stores::UsedStores;

/// A pause that differs between processes, because many lose the same server at the same moment: between half of it and all.
pub fn jittered(pause: std::time::Duration) -> std::time::Duration {
    pause.mul_f64(rand::random_range(0.5..1.0))
}

/// A fresh incarnation, drawn at random.
pub fn random_incarnation() -> shardwise_core::Incarnation {
    shardwise_core::Incarnation::new(rand::random())
}
