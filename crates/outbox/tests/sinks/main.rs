//! Every sink with its real server: the public suite, and cases for each server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod common;
mod destinations;
mod http;
mod kafka;
mod late;
mod nats;
mod not_text;
mod passwords;
mod rabbitmq;
mod redis;
mod replays;
mod sentinels;
#[path = "../common/mod.rs"]
mod shared;
mod template;
mod twice;
