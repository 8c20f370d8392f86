//! Claims from a scripted Consul, notes, and Consul's own service: each of these tests takes seconds and needs no process of its own, so
//! they are one binary.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod claims_answers;
#[path = "../common/mod.rs"]
mod common;
mod notes;
mod own_service;
