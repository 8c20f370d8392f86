#![doc = include_str!("../docs.md")]
//!
//! Inside: `config` has the settings, `kind` reads them, `client` the connections; all SQL is in `sql`. `backend` is the contract, with the
//! calls of members in `members`, `claims` its second part, `notes` its third; `shared` is what they and the tasks share. `observer` reads
//! a group into `mirror` and evicts silent members, `feeds` hands what was read to the watches, `listener` hears notifications. `history`
//! notices that the database was replaced; `error` has all failures.

mod answers;
mod backend;
mod claims;
mod client;
mod config;
mod error;
mod feeds;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod history;
mod init;
mod kind;
mod listener;
mod members;
mod mirror;
mod notes;
mod observer;
mod shared;
mod sql;

pub use backend::PostgresBackend;
pub use client::CONNECTIONS_MAX;
pub use config::{PostgresBackendConfig, SCHEMA_DEFAULT};
pub use feeds::{GROUPS_MAX, WATCHERS_MAX};
pub use kind::BACKEND;
pub use members::{RECORD_BYTES_MAX, TTL_MIN};
pub use sql::schema::{MIGRATIONS, SCHEMA_VERSION, SchemaMigration};
