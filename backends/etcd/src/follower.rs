//! Follows one group's records or claims: a list and a server watch, proven again
//! and again, and once more from a list on where history is compacted.

use std::sync::Arc;
use std::time::Duration;

use shardwise_discovery::Result;
use shardwise_discovery::feeds::{Feed, FeedLimits, GroupReader, Watched};
use tokio::time::timeout;

use crate::backend::EtcdInner;
use crate::error::Failure;
use crate::mirror::{Mirror, MirrorWatch};

/// The most watches of members, and as many of claims, that one [`EtcdBackend`](crate::EtcdBackend) and its clones serve at a time.
pub const WATCHERS_MAX: usize = 16_384;
/// The most groups that they watch at a time.
pub const GROUPS_MAX: usize = 256;
pub(crate) const LIMITS: FeedLimits = FeedLimits { watches: WATCHERS_MAX, groups: GROUPS_MAX };

/// How long a proof may take: as long as the watches' pace, but at least and at most so long.
const PROOF_LIMITS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

pub(crate) struct MirrorReader<M: Mirror> {
    inner: Arc<EtcdInner>,
    /// `None` before the first list, and while a new one is read.
    watch: Option<MirrorWatch<M>>,
}

impl<M: Mirror> MirrorReader<M> {
    pub(crate) const fn new(inner: Arc<EtcdInner>) -> Self {
        Self { inner, watch: None }
    }

    async fn list(&mut self, feed: &Feed<M::Topic>) -> std::result::Result<(), Failure> {
        self.watch = None;
        let inner = &self.inner;
        let (watch, proven) = inner.pool.call(|connection| MirrorWatch::open(Arc::clone(inner), feed.group(), connection)).await?;
        self.watch.insert(watch).publish(feed, Some(proven))
    }

    async fn news(&mut self, feed: &Feed<M::Topic>) -> std::result::Result<(), Failure> {
        let Some(watch) = &mut self.watch else { return self.list(feed).await };
        match watch.news(feed).await {
            // Nothing is wrong: a list says what was missed.
            Err(Failure::Compacted) => self.list(feed).await,
            other => other,
        }
    }

    async fn proof(&mut self, feed: &Feed<M::Topic>) -> std::result::Result<(), Failure> {
        let Some(watch) = &mut self.watch else { return self.list(feed).await };
        let limit = feed.pace().unwrap_or_default().clamp(PROOF_LIMITS.0, PROOF_LIMITS.1);
        match timeout(limit, watch.prove(feed)).await {
            Ok(Err(Failure::Compacted)) => self.list(feed).await,
            Ok(answer) => answer,
            Err(_) => Err(watch.ended(&format!("it was silent for {} ms", limit.as_millis()))),
        }
    }

    /// The contract's answer; where the endpoint is the cause, the next one gets its turn.
    fn settled(&mut self, answer: std::result::Result<(), Failure>) -> Result<()> {
        answer.map_err(|failure| {
            if let Some(watch) = self.watch.take()
                && failure.is_of_endpoint()
            {
                self.inner.pool.blame(watch.connection());
            }
            failure.during(M::Topic::OPERATION)
        })
    }
}

impl<M: Mirror> GroupReader<M::Topic> for MirrorReader<M> {
    const NEXT_PROVES: bool = false;

    async fn open(&mut self, feed: &Feed<M::Topic>) -> Result<()> {
        let answer = self.list(feed).await;
        self.settled(answer)
    }

    async fn next(&mut self, feed: &Feed<M::Topic>) -> Result<()> {
        let answer = self.news(feed).await;
        self.settled(answer)
    }

    async fn prove(&mut self, feed: &Feed<M::Topic>) -> Result<()> {
        let answer = self.proof(feed).await;
        self.settled(answer)
    }
}
