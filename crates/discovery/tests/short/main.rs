//! The memory backend, faults, feeds, observed groups and records: each of these tests takes less than a second and needs no process of its
//! own, so they are one binary.

#![expect(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests report by panicking")]

mod faults;
mod feeds;
mod memory;
mod observed;
mod records;
