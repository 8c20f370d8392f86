#![doc = include_str!("../docs.md")]
//!
//! Inside: `config` and `settings` are the settings, `keys` the layout of keys; `dial` and `tls` make a connection, `probe` finds the
//! cause if that fails; `client`, `lease` and `claim_txns` are the calls over one connection, `pool` chooses among several; `backend`,
//! `claims` and `notes` are the contract; `records` and `claim_records` are etcd's values; `follower` and `mirror` follow groups;
//! `revisions` keeps revisions rising; `error` has all failures.

mod backend;
mod claim_records;
mod claim_txns;
mod claims;
mod client;
mod config;
mod dial;
mod error;
mod follower;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod keys;
mod lease;
mod mirror;
mod notes;
mod pool;
mod probe;
mod records;
mod revisions;
mod settings;
mod tls;

pub use backend::{EtcdBackend, TTL_LEAST};
pub use config::{ENDPOINT_DEFAULT, ENDPOINTS_MAX, EtcdConfig, PREFIX_DEFAULT};
pub use follower::{GROUPS_MAX, WATCHERS_MAX};
pub use records::RECORD_BYTES_MAX;
pub use settings::BACKEND;
