//! Following a group: its records, or its claims.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, stream};
use shardwise_core::{GroupName, Moment};
use tokio::sync::futures::Notified;

use super::MemoryBackend;
use super::groups::{MemoryGroup, MemoryGroups};
use crate::{Result, ViewSnapshot, WatchEvent};

/// A followed part of a group.
pub(super) trait WatchSubject: Send + 'static {
    type Event: Send + 'static;

    /// The number of its last change, 0 while the group has no records: what other groups do is no news.
    fn mark(&self, group: Option<&MemoryGroup>) -> u64;

    /// The event after a change.
    fn news(&mut self, groups: &MemoryGroups, group: &GroupName, now: Moment) -> Self::Event;

    /// Nothing has changed, as of now.
    fn proven(now: Moment) -> Self::Event;

    /// Drops what was delivered: the next event does not build upon it.
    fn forget(&mut self) {}
}

/// The records as views.
pub(super) struct MemoryRecords;

impl WatchSubject for MemoryRecords {
    type Event = WatchEvent;

    fn mark(&self, group: Option<&MemoryGroup>) -> u64 {
        group.map_or(0, |group| group.revision)
    }

    fn news(&mut self, groups: &MemoryGroups, group: &GroupName, proven: Moment) -> WatchEvent {
        WatchEvent::View(ViewSnapshot { view: groups.view(group), proven })
    }

    fn proven(now: Moment) -> WatchEvent {
        WatchEvent::Proven(now)
    }
}

/// A stream of news about `subject`.
pub(super) fn follow<S: WatchSubject>(
    backend: &MemoryBackend,
    group: &GroupName,
    prove_every: Duration,
    subject: S,
) -> Pin<Box<dyn Stream<Item = Result<S::Event>> + Send>> {
    let (backend, group) = (backend.clone(), group.clone());
    let watcher = MemoryWatcher { backend, group, prove_every, subject, seen: None, cut: false, proven: Moment::ZERO };
    Box::pin(stream::unfold(watcher, |mut watcher| async move {
        let event = watcher.next().await;
        Some((event, watcher))
    }))
}

struct MemoryWatcher<S> {
    backend: MemoryBackend,
    group: GroupName,
    prove_every: Duration,
    subject: S,
    /// The mark of the last state shown.
    seen: Option<u64>,
    /// The connection is cut, and the watch has reported that.
    cut: bool,
    proven: Moment,
}

/// The result of a watcher's look.
struct WatchPoll<E> {
    now: Moment,
    mark: u64,
    /// The event to deliver, if the mark is new.
    news: Option<E>,
    /// When the next record expires.
    next_end: Option<Moment>,
}

impl<S: WatchSubject> MemoryWatcher<S> {
    async fn next(&mut self) -> Result<S::Event> {
        loop {
            // From here on, so that no change after the look is missed.
            let store = Arc::clone(&self.backend.store);
            let changed = store.changes.notified();
            let WatchPoll { now, mark, news, next_end } = match self.look() {
                Ok(look) => look,
                Err(error) => {
                    // One error per cut; then silence until something changes.
                    self.seen = None;
                    self.subject.forget();
                    if !std::mem::replace(&mut self.cut, true) {
                        return Err(error);
                    }
                    wait(changed, self.prove_every).await;
                    continue;
                }
            };
            self.cut = false;
            if let Some(event) = news {
                (self.seen, self.proven) = (Some(mark), now);
                return Ok(event);
            }
            let prove_at = self.proven.plus(self.prove_every);
            if now >= prove_at {
                self.proven = now;
                return Ok(S::proven(now));
            }
            let until = next_end.map_or(prove_at, |end| end.min(prove_at));
            wait(changed, until.since(now)).await;
        }
    }

    fn look(&mut self) -> Result<WatchPoll<S::Event>> {
        let Self { backend, group: name, subject, seen, .. } = self;
        backend.with_groups("watch", |groups, now| {
            groups.reap(name, now);
            let group = groups.by_name.get(name);
            let mark = subject.mark(group);
            let next_end = group.and_then(|group| group.records.values().map(|stored| stored.ends).min());
            let news = (*seen != Some(mark)).then(|| subject.news(groups, name, now));
            Ok(WatchPoll { now, mark, news, next_end })
        })
    }
}

async fn wait(changed: Notified<'_>, at_most: Duration) {
    // Either will do.
    let _ = tokio::time::timeout(at_most, changed).await;
}
