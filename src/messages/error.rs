//! Why a message has no reply.

use std::time::Duration;

/// Why a message to a singleton has no reply. [`MessageError::may_have_been_handled`] says whether sending it again may do it twice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// No holder took it in time. It was not handled.
    #[error("{name}: nobody took the message within {waited:?}: {why}; it was not handled")]
    NoLeader {
        /// To whom.
        name: String,
        /// How long it waited.
        waited: Duration,
        /// What was in the way last.
        why: String,
    },
    /// Too many wait already, here or at the holder. It was not handled; send less at once, or later.
    #[error("{name}: {why}; the message was not handled")]
    Full {
        /// To whom.
        name: String,
        /// Where, and how many are allowed.
        why: String,
    },
    /// It has too many bytes as JSON. It was not sent.
    #[error("the message has {bytes} bytes as JSON; at most {most} are allowed")]
    TooLarge {
        /// What it has.
        bytes: usize,
        /// What is allowed.
        most: usize,
    },
    /// It cannot be written as JSON. It was not sent.
    #[error("the message cannot be written as JSON: {0}")]
    Unwritable(String),
    /// It may not go to the holder's address, or the holder refuses it as a message of another type. It was not handled, and trying again does not help.
    #[error("{name}: the message was refused and not handled: {why}")]
    Refused {
        /// To whom.
        name: String,
        /// Why.
        why: String,
    },
    /// It was handed over, and it is unknown whether it was handled: not at all, in part, or in full.
    #[error("{name}: the message was handed over under epoch {epoch}, and it is unknown if it was handled: {why}")]
    Lost {
        /// To whom.
        name: String,
        /// The epoch of the holder that had it.
        epoch: shardwise_core::Epoch,
        /// What became of the way back.
        why: String,
    },
    /// It was handled, and the reply cannot be read or written.
    #[error("{name}: the message was handled, and its reply is none: {why}")]
    Reply {
        /// To whom.
        name: String,
        /// Why.
        why: String,
    },
    /// Sending needs a tokio runtime, and this was called outside of one. It was not sent.
    #[error("a message can only be sent inside a tokio runtime; it was not handled")]
    NoRuntime,
    /// This worker's service has ended. The message was not handled.
    #[error("this worker's service has ended; the message was not handled")]
    Closed,
}

impl MessageError {
    /// Whether it was handled, or may have been: then sending it again may do it twice. All others were certainly not handled.
    pub const fn may_have_been_handled(&self) -> bool {
        matches!(self, Self::Lost { .. } | Self::Reply { .. })
    }
}
