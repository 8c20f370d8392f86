//! Why a message has no reply.

use std::fmt;
use std::time::Duration;

use shardwise_core::write_with_causes;

/// Why a message to a singleton has no reply. [`MessageError::may_have_been_handled`] says whether sending it again may handle it twice.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// No holder took it in time. It was not handled.
    #[error("{name}: no member took the message within {waited:?}: {why}; it was not handled")]
    NoLeader {
        /// The name of the singleton.
        name: String,
        /// How long it waited.
        waited: Duration,
        /// The last obstacle.
        why: String,
    },
    /// Too many messages wait already, here or at the holder. It was not handled; send fewer at once, or later.
    #[error("{name}: {why}; the message was not handled")]
    Full {
        /// The name of the singleton.
        name: String,
        /// Which limit was reached.
        why: String,
    },
    /// It is too long as JSON. It was not sent.
    #[error("the message has {bytes} bytes as JSON; at most {most} are allowed")]
    TooLarge {
        /// Its bytes.
        bytes: usize,
        /// The bytes allowed.
        most: usize,
    },
    /// It cannot be written as JSON. It was not sent.
    #[error("the message cannot be written as JSON: {0}")]
    Unwritable(String),
    /// It may not be sent to the holder's address, or the holder refuses its type. It was not handled, and a retry does not help.
    #[error("{name}: the message was refused and not handled: {why}")]
    Refused {
        /// The name of the singleton.
        name: String,
        /// The reason.
        why: String,
    },
    /// It was delivered, and it is unknown whether it was handled: not at all, in part, or in full.
    #[error("{name}: the message was handed over under epoch {epoch}, and it is unknown if it was handled: {why}")]
    Lost {
        /// The name of the singleton.
        name: String,
        /// The epoch of the holder that received it.
        epoch: shardwise_core::Epoch,
        /// What happened to the connection.
        why: String,
    },
    /// It was handled, and the reply cannot be read or written.
    #[error("{name}: the message was handled, but its reply is not valid: {why}")]
    Reply {
        /// The name of the singleton.
        name: String,
        /// The reason.
        why: String,
    },
    /// Sending needs a tokio runtime, and this was called outside one. It was not sent.
    #[error("a message can only be sent inside a tokio runtime; it was not handled")]
    NoRuntime,
    /// This worker's service has ended. The message was not handled.
    #[error("this worker's service has ended; the message was not handled")]
    Closed,
}

impl fmt::Debug for MessageError {
    /// Like [`Display`](fmt::Display): `main` prints a returned error by its `Debug`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_causes(f, self)
    }
}

impl MessageError {
    /// Whether it was handled, or may have been: then sending it again may handle it twice. All others were certainly not handled.
    pub const fn may_have_been_handled(&self) -> bool {
        matches!(self, Self::Lost { .. } | Self::Reply { .. })
    }
}
