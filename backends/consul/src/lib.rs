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
mod keys;
mod names;
mod notes;
mod reader;
mod registrar;
mod registration_lock;
mod registrations;
mod wire;

pub use backend::ConsulBackend;
pub use config::{BACKEND, ConsulConfig};
pub use follower::WATCHERS_MAX;
pub use reader::GROUPS_MAX;
pub use wire::RECORD_BYTES_MAX;
