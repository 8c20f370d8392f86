//! TLS between workers without a sidecar: certificates of a CA of the test's own (feature `tls`).

#![expect(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests report by panicking")]

#[path = "../common/asking.rs"]
mod asking;
#[path = "../common/channel.rs"]
mod channel;
#[path = "../common/mod.rs"]
#[expect(dead_code, reason = "each test file uses its part")]
mod common;
#[path = "../common/http2.rs"]
mod http2;
mod messages;
mod requests;
