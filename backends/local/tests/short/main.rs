//! The file, its records, claims and notes: each of these tests takes seconds and needs no process of its own, so they are one binary.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod claim_edits;
mod claims;
#[path = "../common/mod.rs"]
mod common;
mod errors;
mod expiry;
mod notes;
