//! One reader per group feeds all watches of that group in this process, for backends where reading costs something.
//!
//! A backend says in a [`FeedSource`] how a group is read: it gets a [`Feed`], reads as long as somebody watches, and tells the feed what it
//! saw. [`Hub::watch`] makes of that the streams that the contract wants, each in order and at its own pace. Watches read the newest news
//! only, so nothing can pile up. Whoever waits for a first view gets none from a read that began before it came.
//!
//! What is shown of a group is a [`Watched`]: its view, or its [`ClaimTable`](crate::ClaimTable). A backend has a hub for each.
//!
//! Nothing here knows a backend or decides when to read; that is the source's.

mod feed;
mod watch;
mod watched;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream::BoxStream;
use shardwise_core::{GroupName, Moment, View};

pub use self::feed::Feed;
use self::feed::{FeedState, GroupState};
pub use self::watched::Watched;
use crate::{Clock, Error, Result};

/// What reads groups.
pub trait FeedSource<T = View>: Send + Sync + 'static {
    /// Somebody watches a group that nobody reads. To be read, in a task, until [`Feed::end_unwatched`] answers `true`; a feed that is
    /// dropped earlier is one whose reader has ended, and the watches start another.
    fn start(self: Arc<Self>, feed: Feed<T>);

    /// Somebody has come to a feed or has left one. A source with one reader for all feeds is woken by this, the others by
    /// [`Feed::stirred`].
    fn stirred(&self) {}

    /// What a watch is told for which there is no room; of the watch's operation.
    fn full(&self, full: LimitReached) -> Error;
}

/// How much one hub serves at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedLimits {
    /// The most watches.
    pub watches: usize,
    /// The most groups that they watch.
    pub groups: usize,
}

/// Which of the limits has been reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitReached {
    /// There are so many watches.
    Watches(usize),
    /// There are so many watched groups.
    Groups(usize),
}

/// Where watches and readers meet. Clones are the same hub.
pub struct Hub<S, T = View> {
    source: Arc<S>,
    clock: Clock,
    limits: FeedLimits,
    registry: Arc<Registry<T>>,
}

impl<S, T> Clone for Hub<S, T> {
    fn clone(&self) -> Self {
        Self { source: Arc::clone(&self.source), clock: self.clock.clone(), limits: self.limits, registry: Arc::clone(&self.registry) }
    }
}

impl<S, T> fmt::Debug for Hub<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl<S: FeedSource<T>, T: Watched> Hub<S, T> {
    /// A hub without watches.
    pub fn new(source: Arc<S>, clock: Clock, limits: FeedLimits) -> Self {
        Self { source, clock, limits, registry: Arc::default() }
    }

    /// What reads the groups.
    pub const fn source(&self) -> &Arc<S> {
        &self.source
    }

    /// A watch of `group`. Nothing happens before it is polled.
    pub fn watch(&self, group: &GroupName, prove_every: Duration) -> BoxStream<'static, Result<T::Event>> {
        watch::stream(self.clone(), group.clone(), prove_every)
    }

    /// A place among the watches of `group`, for reads that begin at `since` or later. Has the group read if nobody does.
    fn subscribe(&self, group: &GroupName, pace: Duration, since: Moment) -> Result<Subscription<T>> {
        let mut feeds = self.registry.feeds();
        if feeds.watches >= self.limits.watches {
            return Err(self.source.full(LimitReached::Watches(self.limits.watches)));
        }
        let room = feeds.by_group.len() < self.limits.groups;
        let (group_state, is_new) = match feeds.by_group.entry(group.clone()) {
            Entry::Occupied(known) => (Arc::clone(known.get()), false),
            Entry::Vacant(_) if !room => return Err(self.source.full(LimitReached::Groups(self.limits.groups))),
            Entry::Vacant(place) => (Arc::clone(place.insert(Arc::new(GroupState::new(group.clone())))), true),
        };
        feeds.watches += 1;
        group_state.enter(pace, since);
        drop(feeds);
        let subscription = Subscription {
            news: group_state.news(),
            pace,
            group_state: Arc::clone(&group_state),
            registry: Arc::clone(&self.registry),
            source: Arc::clone(&self.source) as Arc<dyn FeedSource<T>>,
        };
        if is_new {
            Arc::clone(&self.source).start(Feed::new(group_state, Arc::clone(&self.registry)));
        }
        subscription.stir();
        Ok(subscription)
    }
}

/// The watched groups.
struct Registry<T>(Mutex<Feeds<T>>);

struct Feeds<T> {
    by_group: HashMap<GroupName, Arc<GroupState<T>>>,
    watches: usize,
}

impl<T> Default for Registry<T> {
    fn default() -> Self {
        Self(Mutex::new(Feeds { by_group: HashMap::new(), watches: 0 }))
    }
}

impl<T> Feeds<T> {
    fn remove(&mut self, group_state: &Arc<GroupState<T>>) {
        if self.by_group.get(group_state.group()).is_some_and(|known| Arc::ptr_eq(known, group_state)) {
            self.by_group.remove(group_state.group());
        }
    }
}

impl<T> Registry<T> {
    fn feeds(&self) -> MutexGuard<'_, Feeds<T>> {
        // Nothing under this lock can panic halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One watch's place. Dropping it ends the work for it.
struct Subscription<T: 'static> {
    news: tokio::sync::watch::Receiver<FeedState<T>>,
    pace: Duration,
    group_state: Arc<GroupState<T>>,
    registry: Arc<Registry<T>>,
    source: Arc<dyn FeedSource<T>>,
}

impl<T: 'static> Subscription<T> {
    fn stir(&self) {
        self.group_state.stir();
        self.source.stirred();
    }
}

impl<T: 'static> Drop for Subscription<T> {
    fn drop(&mut self) {
        self.registry.feeds().watches -= 1;
        self.group_state.leave(self.pace);
        self.stir();
    }
}
