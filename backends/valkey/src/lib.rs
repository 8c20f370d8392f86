#![doc = include_str!("../docs.md")]
//!
//! Inside: `config` has the settings and `kind` reads them, `address` reads addresses, `dial` says why there is no connection, `sentinel`
//! finds the primary, `connection` is one connection and `client` the one in use. The scripts are in `lua/`, with their texts and answers
//! in `scripts`; `keys` says where things stand. `backend` is the contract, `notes` its third part. `reader` follows a group by a
//! `subscription` to its `changes` over its `mirror`, for the watches. `foreign` looks for the keys of another fleet, which `member_keys`
//! names; `error` has all failures.

mod address;
mod backend;
mod changes;
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
mod kind;
mod member_keys;
mod mirror;
mod notes;
mod reader;
mod records;
mod scripts;
mod sentinel;
mod subscription;

pub use backend::ValkeyBackend;
pub use config::{PREFIX_DEFAULT, SENTINELS_MAX, ValkeyConfig};
pub use kind::BACKEND;
pub use reader::{GROUPS_MAX, WATCHERS_MAX};
pub use records::{RECORD_BYTES_MAX, TTL_MIN};
