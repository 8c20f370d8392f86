//! Golden vectors and invalid input: these tests take seconds and need no process of their own, so they are one binary.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests; a vector that cannot be read should stop them")]

mod bad_input;
mod golden;
