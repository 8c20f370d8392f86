//! What an attempt without an answer means, and the errors of a request.

use std::fmt;
use std::time::Duration;

use super::{NoRoute, WithinError};
use crate::{InstanceId, format_duration, one_line, write_with_causes};

/// The most characters of a reason that a member gave.
const REASON_CHARS: usize = 200;

/// Why an attempt has no answer of a handler.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Undelivered {
    /// It was certainly not handled: no connection, or it never reached the wire.
    #[error("{0}")]
    Unsent(String),
    /// The member does not serve the destination. It may name the member that does, as a hint.
    #[error("it does not serve that{}", .0.as_ref().map(|id| format!("; by its view {id} does")).unwrap_or_default())]
    NotMine(Option<InstanceId>),
    /// The member has too many requests, and says after which time to try again.
    #[error("it has as many requests as it takes at a time")]
    Busy(Option<Duration>),
    /// What answers at the member's address has not proven to be that member: it has another token or certificate, or is another program.
    /// Nothing was sent, and it may be sent again. It must not be final: any program at the address of a dead member could cause it.
    #[error("{0}")]
    Unproven(String),
    /// It may not be sent to that member, or the member refuses it: another attempt does not help.
    #[error("{0}")]
    Barred(String),
    /// It may have been handled: not at all, in part, or in full.
    #[error("it is unknown if it was handled: {0}")]
    Unknown(String),
}

impl Undelivered {
    /// Whether the request may have been handled.
    pub const fn may_have_been_handled(&self) -> bool {
        matches!(self, Self::Unknown(_))
    }

    /// The outcome for metrics and spans.
    pub const fn outcome(&self) -> &'static str {
        match self {
            Self::Unsent(_) => "unsent",
            Self::NotMine(_) => "not_mine",
            Self::Busy(_) => "busy",
            Self::Unproven(_) => "unproven",
            Self::Barred(_) => "barred",
            Self::Unknown(_) => "unknown",
        }
    }

    /// The obstacle, for an error.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Unsent(why) | Self::Unproven(why) | Self::Barred(why) | Self::Unknown(why) => one_line(why, REASON_CHARS),
            Self::NotMine(None) => "the member that was asked does not serve it".to_owned(),
            Self::NotMine(Some(hint)) => format!("the member that was asked does not serve it and names {hint}"),
            Self::Busy(_) => "the member that was asked has too many requests".to_owned(),
        }
    }
}

/// Why a request has no answer.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// No member took it in time. It was not handled.
    #[error("no member took the request within {}: {why}; it was not handled", format_duration(*.within))]
    TooLate {
        /// The time limit of the request.
        within: Duration,
        /// The last obstacle.
        why: String,
    },
    /// The last member that was asked in time had too many requests, or too many of this caller wait already. It was not handled; send
    /// fewer at once, or later.
    #[error("no member took the request within {}: too many are in progress; it was not handled", format_duration(*.within))]
    Busy {
        /// The time limit of the request; zero if it was refused at once because too many of this caller wait.
        within: Duration,
    },
    /// The request itself is not valid: its time limit, key, path, query, body or idempotency key. It was not sent.
    #[error("the request is not valid: {0}")]
    Invalid(String),
    /// It may not be sent to the member, or the member refuses it. It was not handled, and a retry does not help.
    #[error("the request was refused and not handled: {0}")]
    Barred(String),
    /// It may have been handled: not at all, in part, or in full.
    #[error("it is unknown if the request was handled: {0}")]
    Unknown(String),
    /// No member can serve the destination. It was not handled, and waiting does not help.
    #[error(transparent)]
    NoRoute(#[from] NoRoute),
}

impl fmt::Debug for AskError {
    /// Like [`Display`](fmt::Display), with the causes: `main` prints a returned error by its `Debug`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_causes(f, self)
    }
}

impl AskError {
    /// Whether it may have been handled: then sending it again may handle it twice. All others were certainly not handled.
    pub const fn may_have_been_handled(&self) -> bool {
        matches!(self, Self::Unknown(_))
    }

    /// The outcome for metrics and spans.
    pub const fn outcome(&self) -> &'static str {
        match self {
            Self::TooLate { .. } => "too_late",
            Self::Busy { .. } => "busy",
            Self::Invalid(_) => "invalid",
            Self::Barred(_) => "barred",
            Self::Unknown(_) => "unknown",
            Self::NoRoute(_) => "no_route",
        }
    }
}

impl From<WithinError> for AskError {
    fn from(error: WithinError) -> Self {
        Self::Invalid(error.to_string())
    }
}
