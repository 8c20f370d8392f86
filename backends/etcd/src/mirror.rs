//! Follows a group's records or claims over one connection: one list, then one server watch from the next revision on.
//!
//! A server watch can fall silent without ending, and its server can lag behind. So the mirror proves itself again and again: a quorum
//! read returns the store's revision, then the watch is asked for its progress until it has reached that revision.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Error, Event, EventType, WatchResponse, WatchStream};
use futures::FutureExt;
use shardwise_core::{GroupName, Moment};
use shardwise_discovery::feeds::{Feed, FeedLimits, GroupReader, Watched};
use shardwise_discovery::{Result, one_line};
use tokio::time::{Instant, sleep_until, timeout};

use crate::client::{EtcdConnection, KeyEntry};
use crate::error::{EtcdResult, Failure};
use crate::inner::EtcdInner;
use crate::keys::Folder;
use crate::revisions::RevisionState;

/// A server that still has changes to send says nothing about its progress, and is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// The most messages of the watch that are shown together.
const MESSAGES_MAX: usize = 1_000;
/// The most watches of members, and as many of claims, that one [`EtcdBackend`](crate::EtcdBackend) and its clones serve at a time.
pub const WATCHERS_MAX: usize = 16_384;
/// The most groups that they watch at a time.
pub const GROUPS_MAX: usize = 256;
pub(crate) const LIMITS: FeedLimits = FeedLimits { watches: WATCHERS_MAX, groups: GROUPS_MAX };

/// How long a proof may take: as long as the watches' pace, but at least and at most so long.
const PROOF_LIMITS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// What of a group is followed, as it is gathered from etcd.
pub(crate) trait Mirror: Default + Send + Sync + 'static {
    type Shown: Watched;
    const KEYS_MAX: usize;

    /// Where it stands.
    fn folder(inner: &EtcdInner, group: &GroupName) -> Folder;

    /// There is this now, or another value under its key.
    fn put(&mut self, folder: &Folder, entry: &KeyEntry) -> EtcdResult<()>;

    /// There is nothing under this key any more.
    fn delete(&mut self, folder: &Folder, key: &[u8]);

    /// All that is there, as of this revision.
    fn shown(&self, revision: u64) -> Arc<Self::Shown>;
}

pub(crate) struct MirrorReader<M: Mirror> {
    inner: Arc<EtcdInner>,
    /// `None` before the first list, and while a new one is read.
    watch: Option<MirrorWatch<M>>,
}

impl<M: Mirror> MirrorReader<M> {
    pub(crate) const fn new(inner: Arc<EtcdInner>) -> Self {
        Self { inner, watch: None }
    }

    async fn list(&mut self, feed: &Feed<M::Shown>) -> EtcdResult<()> {
        self.watch = None;
        let inner = &self.inner;
        let (watch, proven) = inner.pool.call(|connection| MirrorWatch::open(Arc::clone(inner), feed.group(), connection)).await?;
        self.watch.insert(watch).publish(feed, Some(proven))
    }

    /// The contract's answer. Where history is compacted, nothing is wrong: a list says what was missed. Where the endpoint is the cause,
    /// the next one gets its turn.
    async fn settled(&mut self, answer: EtcdResult<()>, feed: &Feed<M::Shown>) -> Result<()> {
        let answer = match answer {
            Err(Failure::Compacted) => self.list(feed).await,
            other => other,
        };
        answer.map_err(|failure| {
            if let Some(watch) = self.watch.take()
                && failure.is_of_endpoint()
            {
                self.inner.pool.blame(&watch.connection);
            }
            failure.during(M::Shown::OPERATION)
        })
    }
}

impl<M: Mirror> GroupReader<M::Shown> for MirrorReader<M> {
    const NEXT_PROVES: bool = false;

    async fn open(&mut self, feed: &Feed<M::Shown>) -> Result<()> {
        let answer = self.list(feed).await;
        self.settled(answer, feed).await
    }

    async fn next(&mut self, feed: &Feed<M::Shown>) -> Result<()> {
        let answer = match &mut self.watch {
            Some(watch) => watch.take_changes(feed).await,
            None => self.list(feed).await,
        };
        self.settled(answer, feed).await
    }

    async fn prove(&mut self, feed: &Feed<M::Shown>) -> Result<()> {
        let limit = feed.pace().unwrap_or_default().clamp(PROOF_LIMITS.0, PROOF_LIMITS.1);
        let answer = match &mut self.watch {
            Some(watch) => match timeout(limit, watch.prove(feed)).await {
                Ok(answer) => answer,
                Err(_) => Err(watch.ended(&format!("it was silent for {} ms", limit.as_millis()))),
            },
            None => self.list(feed).await,
        };
        self.settled(answer, feed).await
    }
}

struct MirrorWatch<S: Mirror> {
    inner: Arc<EtcdInner>,
    folder: Folder,
    connection: Arc<EtcdConnection>,
    stream: WatchStream,
    mirror: S,
    /// The mirror is newer than the last state shown.
    changed: bool,
    /// Every change up to this revision is in the mirror.
    seen: i64,
    /// Where the line of revisions stood when the list had been read.
    at: RevisionState,
}

impl<S: Mirror> MirrorWatch<S> {
    /// Reads the list and begins to watch. Also returns since when the list is current.
    async fn open(inner: Arc<EtcdInner>, group: &GroupName, connection: Arc<EtcdConnection>) -> EtcdResult<(Self, Moment)> {
        let folder = S::folder(&inner, group);
        let (proven, before) = (inner.clock.now(), inner.revisions.now());
        let (entries, seen) = connection.list(&folder, S::KEYS_MAX).await?;
        inner.revisions.report(before, seen)?;
        let at = inner.revisions.now();
        let mut mirror = S::default();
        entries.iter().try_for_each(|entry| mirror.put(&folder, entry))?;
        let stream = connection.watch(&folder, seen + 1).await?;
        Ok((Self { inner, folder, connection, stream, mirror, changed: true, seen, at }, proven))
    }

    fn ended(&self, why: &str) -> Failure {
        Failure::WatchEnded { endpoint: self.connection.context.endpoint.to_string(), why: why.to_owned() }
    }

    /// Waits for the watch's next event and applies it. Cancel-safe.
    async fn take_changes(&mut self, feed: &Feed<S::Shown>) -> EtcdResult<()> {
        let message = self.stream.message().await;
        self.take(message)?;
        // Messages that have arrived in the meantime are shown together.
        for _ in 0..MESSAGES_MAX {
            let Some(message) = self.stream.message().now_or_never() else { break };
            self.take(message)?;
        }
        self.publish(feed, None)
    }

    fn take(&mut self, message: std::result::Result<Option<WatchResponse>, Error>) -> EtcdResult<()> {
        let message = message.map_err(|error| self.connection.context.meaning(&error))?;
        let message = message.ok_or_else(|| self.ended("its stream has ended"))?;
        if message.canceled() {
            return Err(match one_line(message.cancel_reason()) {
                // With a compaction the reason is empty.
                _ if message.compact_revision() > 0 => Failure::Compacted,
                why if why.contains("permission denied") => self.connection.context.forbidden(),
                why => self.ended(&why),
            });
        }
        for event in message.events() {
            self.apply(event)?;
        }
        if message.events().is_empty() && !message.created() {
            // Progress: all changes up to here have been sent.
            self.seen = self.seen.max(message.header().map_or(0, etcd_client::ResponseHeader::revision));
        }
        Ok(())
    }

    fn apply(&mut self, event: &Event) -> EtcdResult<()> {
        let Some(kv) = event.kv() else { return Ok(()) };
        match event.event_type() {
            EventType::Put => self.mirror.put(&self.folder, &KeyEntry::from(kv))?,
            EventType::Delete => self.mirror.delete(&self.folder, kv.key()),
        }
        (self.changed, self.seen) = (true, self.seen.max(kv.mod_revision()));
        Ok(())
    }

    /// Makes sure that everything is shown that was true when this began.
    async fn prove(&mut self, feed: &Feed<S::Shown>) -> EtcdResult<()> {
        let (proven, before, known) = (self.inner.clock.now(), self.inner.revisions.now(), self.seen);
        let (connection, folder) = (Arc::clone(&self.connection), self.folder.clone());
        let mut read = pin!(connection.revision(&folder));
        // What the watch delivers in the meantime is applied.
        let target = loop {
            tokio::select! {
                revision = &mut read => break revision?,
                taken = self.take_changes(feed) => taken?,
            }
        };
        self.inner.revisions.report(before, target)?;
        if target < known {
            return Err(Failure::Replaced);
        }
        while self.seen < target {
            self.stream.request_progress().await.map_err(|error| self.connection.context.meaning(&error))?;
            let again = Instant::now() + ASK_AGAIN;
            while self.seen < target {
                tokio::select! {
                    taken = self.take_changes(feed) => taken?,
                    () = sleep_until(again) => break,
                }
            }
        }
        self.publish(feed, Some(proven))
    }

    /// Shows the watches the new state, and that it was proven.
    fn publish(&mut self, feed: &Feed<S::Shown>, proven: Option<Moment>) -> EtcdResult<()> {
        // An error even without changes: the store is not the one that this mirror follows.
        let revision = self.inner.revisions.follow(self.at, self.seen)?;
        if std::mem::take(&mut self.changed) {
            feed.show(self.mirror.shown(revision), proven);
        } else if let Some(proven) = proven {
            feed.prove(proven);
        }
        Ok(())
    }
}
