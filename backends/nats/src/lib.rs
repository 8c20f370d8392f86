#![doc = include_str!("../docs.md")]
//!
//! Inside: `config` has the settings and `kind` reads them, `dial` those of connections, `connection` one connection, `certificates` why a
//! server hung up on TLS, `refusals` which rights were missing, `answers` whether its server does its work, `client` the present one and
//! its requests, `jetstream` the requests and answers of JetStream's API with its `api_errors`, `bucket` what a bucket must be. `names`
//! says where everything stands, `messages` how it is written. `backend` is the contract: `registrar` has the calls of members and
//! `records` what others see of them, `claims` its second part, `notes` its third; `handle` is what they and the tasks share. `observer`
//! reads a group through a `consumer` into a `mirror`, and evicts silent members with `evictions`; `writes` knows how this process's own
//! writes went, `feeds` hands what was read to the watches. `history` notices that the stream was replaced; `status` follows the keys of
//! another fleet, which `status_keys` names; `error` has all failures.

mod answers;
mod api_errors;
mod backend;
mod bucket;
mod certificates;
mod claims;
mod client;
mod config;
mod connection;
mod consumer;
mod dial;
mod error;
mod evictions;
mod feeds;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod handle;
mod history;
mod jetstream;
mod kind;
mod messages;
mod mirror;
mod names;
mod notes;
mod observer;
#[cfg(test)]
mod race_tests;
mod records;
mod refusals;
mod registrar;
mod status;
mod status_keys;
mod writes;

pub use backend::NatsBackend;
pub use config::{BUCKET_DEFAULT, NatsBackendConfig, STATUS_KEYS_DEFAULT, SyncInterval, URL_DEFAULT, URLS_MAX};
pub use feeds::{GROUPS_MAX, WATCHERS_MAX};
pub use kind::BACKEND;
pub use registrar::{RECORD_BYTES_MAX, TTL_MIN};
