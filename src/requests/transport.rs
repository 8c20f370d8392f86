//! How a request gets to one member, and what is known when no answer comes back.

use std::time::Duration;

use async_trait::async_trait;
use shardwise_core::{Incarnation, InstanceId};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{Answer, Request};

/// One incarnation of a member, and the address at which it takes requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// Its id.
    pub instance_id: InstanceId,
    /// Its incarnation: a member that has joined again is another one.
    pub incarnation: Incarnation,
    /// Its record's metadata [`super::ADDRESS_KEY`].
    pub address: String,
}

/// Why there is no answer, from which follows whether the request may be sent again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Undelivered {
    /// No byte of it was handled: the member cannot be reached, or is not there any more. It may be sent again.
    #[error("{0}")]
    Unsent(String),
    /// The member does not own the key, hold the name or know the session, by its own view. It was not handled, and may be sent to another
    /// one: the member that the asked one believes to be right, if it knows one.
    #[error("it is not the one to ask{}", .0.as_ref().map(|id| format!("; by its view {id} is")).unwrap_or_default())]
    NotMine(Option<InstanceId>),
    /// The member has as many requests as it takes. It was not handled, and may be sent again after that time.
    #[error("it has as many requests as it takes at a time")]
    Busy(Option<Duration>),
    /// What answers at the member's address has not proven to be that member: it has another token or certificate, or is another program.
    /// Nothing was sent, and it may be sent again. It must not be final: any program at the address of a dead member could cause it.
    #[error("{0}")]
    Unproven(String),
    /// It may not be sent there, or the member refuses it, and trying again does not help: no token, no certificate, an address outside
    /// `peer_networks`.
    #[error("{0}")]
    Barred(String),
    /// It was sent, and whether it was handled is unknown.
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
}

/// How long an answer that may be under way is waited for once another member is the right one.
const REPLY_GRACE: Duration = Duration::from_secs(1);

/// The limits of one attempt to get an answer.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// When it ends at the latest.
    pub until: Instant,
    /// Cancelled once another member is the right one: what was not sent by then is not sent, and what was gets a second more.
    pub superseded: CancellationToken,
}

impl Attempt {
    /// An attempt that ends then, and not before.
    pub fn until(until: Instant) -> Self {
        Self { until, superseded: CancellationToken::new() }
    }

    /// Waits for what comes before the request is sent; `None` if the attempt ends before.
    pub async fn before_sending<T>(&self, step: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = step => Some(done),
            () = self.superseded.cancelled() => None,
            () = sleep_until(self.until) => None,
        }
    }

    /// Waits for what comes after it was sent; an error says why it is not waited for any longer.
    pub async fn after_sending<T>(&self, step: impl Future<Output = T>) -> Result<T, Undelivered> {
        let superseded = async {
            self.superseded.cancelled().await;
            sleep(REPLY_GRACE).await;
        };
        tokio::select! {
            biased;
            done = step => Ok(done),
            () = sleep_until(self.until) => Err(Undelivered::Unknown("there was no answer in time".into())),
            () = superseded => Err(Undelivered::Unknown("another member has taken its place since".into())),
        }
    }
}

/// Brings requests to members: over the network, or within a test's process.
#[async_trait]
pub trait Transport: Send + Sync {
    /// Brings one request to one member and waits for its answer. Dropping the future cancels it: the member's handler is aborted if it has
    /// begun.
    ///
    /// # Errors
    ///
    /// What is known of a request without an answer.
    async fn bring(&self, place: &Place, request: &Request, attempt: &Attempt) -> Result<Answer, Undelivered>;
}
