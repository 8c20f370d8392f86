#![doc = include_str!("../docs.md")]
//!
//! Inside: `config` is the setting, `place` looks at the file before SQLite does, `client` opens it and keeps it open, `statements` holds
//! all SQL, `backend` is the contract, `poller` follows groups, `error` says what went wrong. No SQL outside `client` and
//! `statements`.

mod backend;
mod boot;
mod client;
mod config;
mod error;
mod place;
mod poller;
mod statements;

pub use backend::{LocalBackend, RECORD_BYTES_MAX, RECORDS_MAX};
pub use config::{BACKEND, LocalConfig};
pub use poller::WATCHERS_MAX;
