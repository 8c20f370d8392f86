//! How a request gets to one member, and what is known when no answer comes back.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use async_trait::async_trait;
pub use shardwise_core::routing::Undelivered;
use shardwise_core::{Incarnation, InstanceId};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{Answer, Request};

/// One incarnation of a member, and the address at which it takes requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberEndpoint {
    /// Its id.
    pub instance_id: InstanceId,
    /// Its incarnation: a member that has joined again is another one.
    pub incarnation: Incarnation,
    /// Its record's metadata [`super::ADDRESS_KEY`].
    pub address: String,
}

impl Hash for MemberEndpoint {
    /// By the incarnation alone, which two endpoints hardly ever share, because each request looks its endpoint up.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.incarnation.hash(state);
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
    /// begun. It ends by `attempt.until` ([`Attempt::before_sending`] and [`Attempt::after_sending`] help); otherwise it is dropped, and
    /// the outcome is unknown.
    ///
    /// # Errors
    ///
    /// What is known of a request without an answer.
    async fn bring(&self, endpoint: &MemberEndpoint, request: &Request, attempt: &Attempt) -> Result<Answer, Undelivered>;
}
