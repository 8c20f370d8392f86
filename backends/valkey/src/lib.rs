#![doc = include_str!("../docs.md")]
//!
//! Inside: `config` has the settings, `address` reads addresses, `dial` says why there is no connection, `sentinel` finds the primary, `connection` is one
//! connection and `client` the one in use. The scripts are in `lua/`, with their texts and answers in `scripts`; `keys` says where things
//! stand. `backend` is the contract, `notes` its third part. `reader` follows a group by `news` over its `mirror`, for the watches. `calls`
//! numbers calls; `foreign` looks for the keys of another fleet; `error` has all failures.

mod address;
mod backend;
mod calls;
mod client;
mod config;
mod connection;
mod dial;
mod error;
mod foreign;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod keys;
mod mirror;
mod news;
mod notes;
mod reader;
mod records;
mod scripts;
mod sentinel;

pub use backend::{TTL_LEAST, ValkeyBackend};
pub use config::{BACKEND, PREFIX_DEFAULT, SENTINELS_MAX, ValkeyConfig};
pub use reader::{GROUPS_MAX, WATCHERS_MAX};
pub use records::RECORD_BYTES_MAX;
