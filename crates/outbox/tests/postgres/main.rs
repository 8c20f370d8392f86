//! The PostgreSQL store on real servers: the newest version and the oldest.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;
mod costs;
mod publishing;
mod refusals;
#[path = "../common/mod.rs"]
mod shared;
mod suite;
mod writers;
