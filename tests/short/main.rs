//! What workers do over backends of the test's own: each of these tests takes seconds and needs no process of its own, so they are one
//! binary.

#![expect(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests report by panicking")]

mod backend_fails;
#[path = "../common/mod.rs"]
mod common;
mod drain;
mod health;
#[path = "../common/log.rs"]
mod log;
mod marks;
mod outside;
mod own_backend;
mod owners;
#[path = "../common/plain.rs"]
mod plain;
#[path = "../common/scripted.rs"]
mod scripted;
mod serves;
