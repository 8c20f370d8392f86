#![doc = include_str!("../docs.md")]

mod backend;
mod claim_records;
mod claim_txns;
mod claims;
mod client;
mod config;
mod context;
mod dial;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod inner;
mod keys;
mod kind;
mod lease;
mod lease_streams;
mod mirror;
mod notes;
mod pool;
mod records;
mod revisions;

pub use backend::{EtcdBackend, TTL_MIN};
pub use config::{ENDPOINT_DEFAULT, ENDPOINTS_MAX, EtcdConfig, PREFIX_DEFAULT};
pub use kind::BACKEND;
pub use mirror::{GROUPS_MAX, WATCHERS_MAX};
pub use records::RECORD_BYTES_MAX;
