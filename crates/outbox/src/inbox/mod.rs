//! For consumers: each event once, whatever comes twice.
//!
//! `seen` notes an event's id in the consumer's own transaction, and says whether it was there before. What the consumer does with the event
//! commits together with the note, or not at all; two that get the same event at once wait for each other, and the second one finds it
//! seen.
//!
#![doc = include_str!("../../inbox.md")]

#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;
