#![doc = include_str!("../docs.md")]

mod api;
mod backend;
mod caller;
mod claims;
mod client;
mod config;
mod error;
mod follower;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod group_indexes;
mod keys;
mod kind;
mod names;
mod notes;
mod reader;
mod registrar;
mod registration_lock;
mod registrations;
mod wire;

pub use backend::ConsulBackend;
pub use config::ConsulConfig;
pub use follower::WATCHERS_MAX;
pub use group_indexes::GROUPS_MAX;
pub use kind::BACKEND;
pub use wire::RECORD_BYTES_MAX;
