#![doc = include_str!("../docs.md")]
//!
//! Inside: `config` is the setting and `kind` reads it, `store_file` checks the file before SQLite opens it, `client` opens it and keeps it
//! open as an `open_store`; `statements` holds all SQL of members, `claim_statements` that of claims; `backend` is the contract, `claims`
//! its second part, `notes` its third with their SQL; `poller` follows groups; `error` has all failures. No SQL outside these.

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
mod kind;
mod notes;
mod open_store;
#[cfg(test)]
mod plans;
mod poller;
mod statements;
mod store_file;

pub use backend::{LocalBackend, RECORD_BYTES_MAX};
pub use config::LocalConfig;
pub use kind::BACKEND;
pub use poller::WATCHERS_MAX;
pub use statements::RECORDS_MAX;
