#![doc = include_str!("../docs.md")]
//!
//! Inside: `config` and `settings` are what can be set, `keys` says where things stand, `dial` and `tls` make a connection, `probe` finds
//! out why there is none, `client`, `lease` and `claim_txns` are what is asked of etcd over one, `pool` chooses among several, `backend`,
//! `claims` and `notes` are the contract, `records` and `claim_records` are etcd's values, `follower` and `mirror` follow groups,
//! `revisions` keeps their numbers rising, `error` says what went wrong.

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
