//! Deduplication for consumers: each event takes effect once, even if it arrives several times.
//!
//! `seen` records an event's id in the consumer's own transaction and returns whether it was already there. The consumer's changes commit
//! together with that record, or not at all. If two transactions process the same event at once, the second one waits and then finds the
//! event seen.
//!
#![doc = include_str!("../../inbox.md")]

#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;

/// At most a thousand years, which every clock can subtract.
fn seconds(age: std::time::Duration) -> i64 {
    i64::try_from(age.as_secs()).unwrap_or(i64::MAX).min(1_000 * 366 * 24 * 3_600)
}
