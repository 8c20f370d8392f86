//! Workers on any number of machines that meet in Consul. Start it in two or three terminals or on several machines, end one with Ctrl-C
//! or kill -9, and see the shares move.
//!
//! `cargo run -p shardwise-examples --example consul_workers`
//!
//! It needs Consul: `consul agent -dev` starts one to play with. The settings are in `examples/consul.toml`; another address can come
//! from the environment, `SHARDWISE__RESILIENCE__SHARDING__DISCOVERY__CONSUL__ADDRESS=http://10.0.0.7:8500`. The example `etcd_workers`
//! differs only in its settings.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example talks to its reader")]

mod workers;

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    workers::run(concat!(env!("CARGO_MANIFEST_DIR"), "/consul.toml")).await
}
