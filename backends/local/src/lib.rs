#![doc = include_str!("../docs.md")]
//!
//! Inside: `config` is the setting, `store_file` checks the file before SQLite opens it, `client` opens it and keeps it open;
//! `statements` holds all SQL of members, `claim_statements` that of claims; `backend` is the
//! contract, `claims` its second part, `notes` its third with their SQL; `poller` follows groups; `error` has all failures. No SQL
//! outside these.

mod backend;
mod boot;
mod claim_statements;
mod claims;
mod client;
mod config;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod notes;
#[cfg(test)]
mod plans;
mod poller;
mod statements;
mod store_file;

pub use backend::{LocalBackend, RECORD_BYTES_MAX, RECORDS_MAX};
pub use config::{BACKEND, LocalConfig};
pub use poller::WATCHERS_MAX;
