//! The conformance suite: it passes over the memory backend, and fails over backends with one mistake each.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "tests report by panicking")]

mod memory;
mod wrong;
