//! Requests between worker processes, from a caller that is not a member, on every backend: to any member, to one, to the owner of a key,
//! to the holder of a name, to a session; spread, taken over after SIGKILL, and cancelled.
//!
//! `restarts`, `sessions` and `trouble` go on for longer in `cargo xtask soak requests`, whose `--runs` are thousands of requests, and
//! report figures there. `SHARDWISE_SEED=N` repeats the order of the faults in `trouble`.

mod fleet;
mod log;
mod restarts;
mod scenes;
mod sessions;
mod trouble;
mod worker;

use std::time::Duration;

use crate::meeting::Kind;

const SLOTS: u32 = 16;
const TTL: Duration = Duration::from_secs(3);

/// After SIGKILL of an owner the first success comes within the TTL and this.
fn after_ttl(kind: Option<Kind>) -> Duration {
    // Observers of a silent member look every quarter of its TTL there.
    Duration::from_millis(if kind == Some(Kind::Postgres) { 1_000 } else { 500 })
}
