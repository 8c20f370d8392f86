//! Where watches of one group and the one server watch behind them meet.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardwise_core::{GroupName, Moment, View};
use shardwise_discovery::Error;
use tokio::sync::{Notify, watch};

use crate::backend::Inner;
use crate::error::Failure;
use crate::follower::Follower;

/// The most watches that one [`EtcdBackend`](crate::EtcdBackend) and its clones serve at a time.
pub const WATCHERS_MAX: usize = 16_384;
/// The most groups that they watch at a time.
pub const GROUPS_MAX: usize = 256;

/// What was last seen of a group. Watches read the newest only, so nothing can pile up.
#[derive(Debug, Clone, Default)]
pub(crate) struct News {
    pub(crate) view: Option<Arc<View>>,
    /// How many views there were; a new number is a new view.
    pub(crate) views: u64,
    /// Before the request that proved the view current.
    pub(crate) proven: Moment,
    /// Why the view could not be proven just now.
    pub(crate) failure: Option<Error>,
    /// How many failures there were.
    pub(crate) failures: u64,
}

pub(crate) struct Hub {
    inner: Arc<Inner>,
    feeds: Mutex<Feeds>,
}

#[derive(Default)]
struct Feeds {
    by_group: HashMap<GroupName, Arc<Feed>>,
    watchers: usize,
}

/// One watched group.
pub(crate) struct Feed {
    pub(crate) group: GroupName,
    pub(crate) news: watch::Sender<News>,
    /// Somebody has come, or the last one has left.
    pub(crate) wake: Notify,
    /// How often the watches want a proof, and how many want it so.
    paces: Mutex<BTreeMap<Duration, usize>>,
}

impl Feed {
    fn paces(&self) -> MutexGuard<'_, BTreeMap<Duration, usize>> {
        // Nothing under this lock can panic halfway through a change.
        self.paces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new view, if there is one, and since when it is known to be current.
    pub(crate) fn publish(&self, view: Option<View>, proven: Option<Moment>) {
        self.news.send_if_modified(|news| {
            // The same members at a later revision are news too: whoever watches may have read another view in between.
            let fresh = view.filter(|view| news.view.as_deref() != Some(view));
            if let Some(proven) = proven {
                (news.proven, news.failure) = (proven, None);
            }
            let told = fresh.is_some() || proven.is_some();
            if let Some(view) = fresh {
                (news.view, news.views) = (Some(Arc::new(view)), news.views + 1);
            }
            told
        });
    }

    /// The view cannot be proven just now.
    pub(crate) fn fail(&self, error: Error) {
        self.news.send_modify(|news| (news.failure, news.failures) = (Some(error), news.failures + 1));
    }

    /// How often the view has to be proven; nothing if nobody watches.
    pub(crate) fn pace(&self) -> Option<Duration> {
        self.paces().keys().next().copied()
    }
}

/// One watch's place. Dropping it ends the work for it.
pub(crate) struct Subscription {
    hub: Arc<Hub>,
    feed: Arc<Feed>,
    pace: Duration,
    pub(crate) news: watch::Receiver<News>,
}

impl Hub {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner, feeds: Mutex::default() }
    }

    fn feeds(&self) -> MutexGuard<'_, Feeds> {
        // Nothing under this lock can panic halfway through a change.
        self.feeds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Moment {
        self.inner.clock.now()
    }

    /// A place among the watches of `group`. Starts to follow it if nobody does.
    pub(crate) fn subscribe(self: &Arc<Self>, group: &GroupName, pace: Duration) -> Result<Subscription, Failure> {
        let mut feeds = self.feeds();
        if feeds.watchers >= WATCHERS_MAX {
            return Err(Failure::TooManyWatches { what: "watches", max: WATCHERS_MAX });
        }
        if feeds.by_group.len() >= GROUPS_MAX && !feeds.by_group.contains_key(group) {
            return Err(Failure::TooManyWatches { what: "watched groups", max: GROUPS_MAX });
        }
        feeds.watchers += 1;
        let known = feeds.by_group.get(group).map(Arc::clone);
        let feed = known.unwrap_or_else(|| {
            let (news, wake, paces) = (watch::Sender::default(), Notify::new(), Mutex::default());
            let feed = Arc::new(Feed { group: group.clone(), news, wake, paces });
            feeds.by_group.insert(group.clone(), Arc::clone(&feed));
            tokio::spawn(Follower::new(Arc::clone(self), Arc::clone(&self.inner), Arc::clone(&feed)).run());
            feed
        });
        *feed.paces().entry(pace).or_default() += 1;
        drop(feeds);
        feed.wake.notify_one();
        Ok(Subscription { hub: Arc::clone(self), news: feed.news.subscribe(), feed, pace })
    }

    /// Ends a feed that nobody watches. `false`: somebody does.
    pub(crate) fn end_unwatched(&self, feed: &Arc<Feed>) -> bool {
        let mut feeds = self.feeds();
        let unwatched = feed.pace().is_none();
        if unwatched {
            remove(&mut feeds, feed);
        }
        unwatched
    }

    /// Ends a feed whose follower has ended: the watches notice, and the first starts a new one.
    pub(crate) fn end(&self, feed: &Arc<Feed>) {
        remove(&mut self.feeds(), feed);
    }
}

fn remove(feeds: &mut Feeds, feed: &Arc<Feed>) {
    if feeds.by_group.get(&feed.group).is_some_and(|known| Arc::ptr_eq(known, feed)) {
        feeds.by_group.remove(&feed.group);
    }
}

impl Subscription {
    /// Whether this feed still has somebody who feeds it.
    pub(crate) fn is_fed(&self) -> bool {
        self.hub.feeds().by_group.get(&self.feed.group).is_some_and(|known| Arc::ptr_eq(known, &self.feed))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.hub.feeds().watchers -= 1;
        let mut paces = self.feed.paces();
        if let Some(count) = paces.get_mut(&self.pace) {
            *count -= 1;
            if *count == 0 {
                paces.remove(&self.pace);
            }
        }
        drop(paces);
        self.feed.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use shardwise_core::{InstanceId, Member};

    use super::*;

    #[test]
    fn the_same_members_at_a_later_revision_are_told_again() {
        let (news, wake, paces) = (watch::Sender::default(), Notify::new(), Mutex::default());
        let feed = Feed { group: GroupName::new("g").unwrap(), news, wake, paces };
        let at = |revision| View::new(revision, vec![Member::named(InstanceId::new("a").unwrap())]);
        let told = || (feed.news.borrow().views, feed.news.borrow().view.as_ref().map(|view| view.revision()));
        feed.publish(Some(at(5)), Some(Moment::from_nanos(1)));
        assert_eq!(told(), (1, Some(5)));
        // A read by itself shows another member at revision 6, which is gone again at 7.
        feed.publish(Some(at(7)), Some(Moment::from_nanos(2)));
        assert_eq!(told(), (2, Some(7)), "who went by the view of 6 has to hear of 7");
        feed.publish(Some(at(7)), Some(Moment::from_nanos(3)));
        assert_eq!(told(), (2, Some(7)), "nothing new");
    }
}
