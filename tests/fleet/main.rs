//! Fleets in one process: the test kit that users get (feature `testing`), what it shows of losses and of metrics, and fixed bugs.

#![expect(clippy::expect_used, clippy::panic, reason = "tests report by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod loss;
mod metrics;
mod regressions;
#[expect(dead_code, reason = "each test file uses its part")]
#[path = "../common/scripted.rs"]
mod scripted;
mod test_fleet;
