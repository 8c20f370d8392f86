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
use shardwise_discovery::feeds::{Feed, Watched};
use shardwise_discovery::one_line;
use tokio::time::{Instant, sleep_until};

use crate::backend::EtcdInner;
use crate::client::{EtcdConnection, KeyEntry};
use crate::error::Failure;
use crate::keys::Folder;
use crate::revisions::RevisionState;

/// A server that still has changes to send says nothing about its progress, and is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// The most messages of the watch that are shown together.
const MESSAGES_MAX: usize = 1_000;

/// What of a group is followed, as it is gathered from etcd.
pub(crate) trait Mirror: Default + Send + Sync + 'static {
    /// The state that the watches see.
    type Topic: Watched;
    /// At most so many keys.
    const KEYS_MAX: usize;

    /// Where it stands.
    fn folder(inner: &EtcdInner, group: &GroupName) -> Folder;

    /// There is this now, or another value under its key.
    fn put(&mut self, folder: &Folder, entry: &KeyEntry) -> Result<(), Failure>;

    /// There is nothing under this key any more.
    fn delete(&mut self, folder: &Folder, key: &[u8]);

    /// All that is there, as of this revision.
    fn shown(&self, revision: u64) -> Arc<Self::Topic>;
}

pub(crate) struct MirrorWatch<S: Mirror> {
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
    pub(crate) async fn open(inner: Arc<EtcdInner>, group: &GroupName, connection: Arc<EtcdConnection>) -> Result<(Self, Moment), Failure> {
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

    pub(crate) const fn connection(&self) -> &Arc<EtcdConnection> {
        &self.connection
    }

    pub(crate) fn ended(&self, why: &str) -> Failure {
        Failure::WatchEnded { endpoint: self.connection.endpoint(), why: why.to_owned() }
    }

    /// Waits for the watch's next event and applies it. Cancel-safe.
    pub(crate) async fn news(&mut self, feed: &Feed<S::Topic>) -> Result<(), Failure> {
        let message = self.stream.message().await;
        self.take(message)?;
        // Messages that have arrived in the meantime are shown together.
        for _ in 0..MESSAGES_MAX {
            let Some(message) = self.stream.message().now_or_never() else { break };
            self.take(message)?;
        }
        self.publish(feed, None)
    }

    fn take(&mut self, message: Result<Option<WatchResponse>, Error>) -> Result<(), Failure> {
        let message = message.map_err(|error| self.connection.parties().of_client(&error, self.connection.wire()))?;
        let message = message.ok_or_else(|| self.ended("its stream has ended"))?;
        if message.canceled() {
            return Err(match one_line(message.cancel_reason()) {
                // With a compaction the reason is empty.
                _ if message.compact_revision() > 0 => Failure::Compacted,
                why if why.contains("permission denied") => self.connection.parties().forbidden(),
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

    fn apply(&mut self, event: &Event) -> Result<(), Failure> {
        let Some(kv) = event.kv() else { return Ok(()) };
        match event.event_type() {
            EventType::Put => self.mirror.put(&self.folder, &KeyEntry::from(kv))?,
            EventType::Delete => self.mirror.delete(&self.folder, kv.key()),
        }
        (self.changed, self.seen) = (true, self.seen.max(kv.mod_revision()));
        Ok(())
    }

    /// Makes sure that everything is shown that was true when this began.
    pub(crate) async fn prove(&mut self, feed: &Feed<S::Topic>) -> Result<(), Failure> {
        let (proven, before, known) = (self.inner.clock.now(), self.inner.revisions.now(), self.seen);
        let target = self.store_revision(feed).await?;
        self.inner.revisions.report(before, target)?;
        if target < known {
            return Err(Failure::Replaced);
        }
        while self.seen < target {
            let asked = self.stream.request_progress().await;
            asked.map_err(|error| self.connection.parties().of_client(&error, self.connection.wire()))?;
            let again = Instant::now() + ASK_AGAIN;
            while self.seen < target {
                tokio::select! {
                    news = self.news(feed) => news?,
                    () = sleep_until(again) => break,
                }
            }
        }
        self.publish(feed, Some(proven))
    }

    /// The store's revision by a quorum read; applies what the watch delivers in the meantime.
    async fn store_revision(&mut self, feed: &Feed<S::Topic>) -> Result<i64, Failure> {
        let (connection, folder) = (Arc::clone(&self.connection), self.folder.clone());
        let mut read = pin!(connection.revision(&folder));
        loop {
            tokio::select! {
                revision = &mut read => return revision,
                news = self.news(feed) => news?,
            }
        }
    }

    /// Shows the watches the new state, and that it was proven.
    pub(crate) fn publish(&mut self, feed: &Feed<S::Topic>, proven: Option<Moment>) -> Result<(), Failure> {
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
