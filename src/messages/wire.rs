//! A message and its outcome, as JSON in a request to the holder of a name.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use shardwise_core::Epoch;

/// The path of messages.
pub(super) const MESSAGES: &str = "shardwise/messages";
/// The most bytes of one message, and of one reply, as JSON.
pub(super) const MESSAGE_BYTES_MAX: usize = 256 * 1024;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireMessage {
    /// The epoch under which the caller believes the name is held.
    pub(super) epoch: Epoch,
    pub(super) body: Box<RawValue>,
}

/// The outcome of a message, from the member that received it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WireAnswer {
    /// It was handled.
    Reply(Box<RawValue>),
    /// It was not handled: this member does not hold the name, or not under that epoch, or is releasing it.
    NotMine,
    /// It was not handled: too many wait already.
    Busy,
    /// It was not handled: it is not a message of the type accepted here.
    Unreadable(String),
    /// It was taken, and whether it was handled is unknown.
    Lost(String),
    /// It was handled, and the reply cannot be sent.
    Unwritable(String),
}
