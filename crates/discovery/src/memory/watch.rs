//! Following a group: its records, or its claims.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use shardwise_core::{GroupName, Moment, View};

use super::MemoryBackend;
use super::groups::{MemoryGroup, MemoryGroups};
use crate::feeds::Watched;
use crate::{ClaimTable, Result};

/// A followed part of a group.
pub(super) trait WatchSubject: Watched {
    /// The number of its last change.
    fn mark(group: &MemoryGroup) -> u64;

    /// As it is now.
    fn read(groups: &MemoryGroups, group: &GroupName) -> Arc<Self>;
}

impl WatchSubject for View {
    fn mark(group: &MemoryGroup) -> u64 {
        group.revision
    }

    fn read(groups: &MemoryGroups, group: &GroupName) -> Arc<Self> {
        groups.view(group)
    }
}

impl WatchSubject for ClaimTable {
    fn mark(group: &MemoryGroup) -> u64 {
        group.claims_revision
    }

    fn read(groups: &MemoryGroups, group: &GroupName) -> Arc<Self> {
        Arc::new(Self(groups.by_name.get(group).map(|group| group.claims.clone()).unwrap_or_default()))
    }
}

/// A stream of events about a group.
pub(super) fn follow<T: WatchSubject>(
    backend: &MemoryBackend,
    group: &GroupName,
    prove_every: Duration,
) -> BoxStream<'static, Result<T::Event>> {
    let (backend, group) = (backend.clone(), group.clone());
    let watcher = MemoryWatcher::<T> { backend, group, prove_every, sent: None, cut: false, proven: Moment::ZERO };
    Box::pin(stream::unfold(watcher, |mut watcher| async move {
        let event = watcher.next().await;
        Some((event, watcher))
    }))
}

struct MemoryWatcher<T> {
    backend: MemoryBackend,
    group: GroupName,
    prove_every: Duration,
    /// The last state shown, and its mark.
    sent: Option<(u64, Arc<T>)>,
    /// The connection is cut, and the watch has reported that.
    cut: bool,
    proven: Moment,
}

impl<T: WatchSubject> MemoryWatcher<T> {
    async fn next(&mut self) -> Result<T::Event> {
        loop {
            // From here on, so that no change after the poll is missed.
            let store = Arc::clone(&self.backend.store);
            let changed = store.changes.notified();
            let wait = match self.poll() {
                Err(error) => {
                    // One error per cut; then silence until something changes.
                    self.sent = None;
                    if !std::mem::replace(&mut self.cut, true) {
                        return Err(error);
                    }
                    self.prove_every
                }
                Ok((now, event, next_end)) => {
                    self.cut = false;
                    let prove_at = self.proven.plus(self.prove_every);
                    if event.is_some() || now >= prove_at {
                        self.proven = now;
                        return Ok(event.unwrap_or_else(|| T::proven(now)));
                    }
                    next_end.map_or(prove_at, |end| end.min(prove_at)).since(now)
                }
            };
            // Either will do.
            let _ = tokio::time::timeout(wait, changed).await;
        }
    }

    /// The present moment, the event if there is one, and when the next record expires.
    fn poll(&mut self) -> Result<(Moment, Option<T::Event>, Option<Moment>)> {
        let Self { backend, group: name, sent, .. } = self;
        backend.with_groups(T::OPERATION, |groups, now| {
            groups.reap(name, now);
            let group = groups.by_name.get(name);
            // What other groups do is no change to one without records.
            let mark = group.map_or(0, T::mark);
            let next_end = group.and_then(|group| group.records.values().map(|stored| stored.ends).min());
            if sent.as_ref().is_some_and(|(seen, _)| *seen == mark) {
                return Ok((now, None, next_end));
            }
            let read = T::read(groups, name);
            let event = T::event(sent.as_ref().map(|(_, shown)| &**shown), &read, now);
            *sent = Some((mark, read));
            Ok((now, event, next_end))
        })
    }
}
