//! The SQLite store, the metrics and restored copies: each of these tests takes seconds and needs no process of its own, so they are one
//! binary.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
mod metrics;
mod restore;
mod store;
mod suites;
