//! One reader per group feeds all watches of that group in this process, for backends where reading costs something.
//!
//! A backend says in a [`GroupReader`] how one group is read, and [`follow`] drives it for as long as the group is watched. [`Hub::watch`]
//! makes of that the streams that the contract asks for, each in order and at its own pace. Watches see the newest state only, so nothing
//! can pile up, and a first view is never from a read that began before its watch.
//!
//! What is shown of a group is a [`Watched`]: its view, or its [`ClaimTable`](crate::ClaimTable). A backend has a hub for each.
//! Where one observer reads both, in an [`Observatory`], [`Hub::observing`] hands what it has read to each; [`ObservedGroups`] has what the
//! process needs of each group.

mod feed;
mod follow;
mod groups;
mod observed;
mod watch;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use shardwise_core::{GroupName, Moment, View};
use tokio::time::timeout;

pub use self::feed::Feed;
use self::feed::{FeedState, GroupState};
pub use self::follow::{GroupReader, REPAIR_PAUSE, follow};
pub use self::groups::{GroupInterest, ObservedGroup, ObservedGroups, ObserverNeeds, ReadingEnd};
pub use self::observed::{NoReading, Observatory, ObservedPart, ObservedState, READING_LIMIT, StateOf};
pub use self::watch::Watched;
use crate::{Clock, Error, ErrorKind, Result, ViewSnapshot, WatchEvent};

/// How much one hub serves at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedLimits {
    /// The most watches.
    pub watches: usize,
    /// The most groups that they watch.
    pub groups: usize,
}

/// How often a single read wants a proof: it needs its first event only.
const READ_PACE: Duration = Duration::from_hours(1);
/// How long it waits for the follower, whose watch may be silent.
const READ_WITHIN: Duration = Duration::from_millis(500);

/// Where watches and readers meet. Clones are the same hub.
pub struct Hub<T: 'static = View>(Arc<HubState<T>>);

struct HubState<T: 'static> {
    start: Box<dyn Fn(Feed<T>) + Send + Sync>,
    clock: Clock,
    limits: FeedLimits,
    watched: Mutex<WatchedGroups<T>>,
}

struct WatchedGroups<T> {
    by_name: HashMap<GroupName, Arc<GroupState<T>>>,
    watches: usize,
}

impl<T> Clone for Hub<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Watched> Hub<T> {
    /// A hub without watches. `start` is called for each group that is watched and not read, and
    /// has it read in a task (see [`follow`]) until [`Feed::end_unwatched`] returns `true`. A
    /// feed that is dropped earlier is one whose reader has ended, and its watches start another.
    pub fn new(clock: Clock, limits: FeedLimits, start: impl Fn(Feed<T>) + Send + Sync + 'static) -> Self {
        let watched = Mutex::new(WatchedGroups { by_name: HashMap::new(), watches: 0 });
        Self(Arc::new(HubState { start: Box::new(start), clock, limits, watched }))
    }

    /// A watch of `group`. Nothing happens before it is polled.
    pub fn watch(&self, group: &GroupName, prove_every: Duration) -> BoxStream<'static, Result<T::Event>> {
        watch::stream(self.clone(), group.clone(), prove_every)
    }

    /// Subscribes to `group`, for reads that begin at `since` or later. Starts a reader if the group has none.
    fn subscribe(&self, group: &GroupName, pace: Duration, since: Moment) -> Result<Subscription<T>> {
        let full = |max: usize, what: &str| {
            let context = format!("this process already has {max} {what} of this backend, and no more are allowed; drop some");
            Error::new(ErrorKind::TooLarge, T::OPERATION, context)
        };
        let limits = self.0.limits;
        let mut watched = self.watched();
        if watched.watches >= limits.watches {
            return Err(full(limits.watches, "watches"));
        }
        let room = watched.by_name.len() < limits.groups;
        let (group_state, is_new) = match watched.by_name.entry(group.clone()) {
            Entry::Occupied(known) => (Arc::clone(known.get()), false),
            Entry::Vacant(_) if !room => return Err(full(limits.groups, "watched groups")),
            Entry::Vacant(place) => (Arc::clone(place.insert(Arc::new(GroupState::new(group.clone())))), true),
        };
        watched.watches += 1;
        group_state.enter(pace, since);
        drop(watched);
        let subscription =
            Subscription { feed_state: group_state.feed_state.subscribe(), pace, group_state: Arc::clone(&group_state), hub: self.clone() };
        if is_new {
            (self.0.start)(Feed { group_state, hub: self.clone() });
        }
        subscription.group_state.wake.notify_one();
        Ok(subscription)
    }
}

impl Hub<View> {
    /// The group as of now or later, from the task that follows it anyway: of many members of a process that ask at a time, each would read
    /// the whole group. `None` if nothing follows it, or if it cannot be read there soon; the caller then reads it.
    pub async fn read(&self, group: &GroupName) -> Option<ViewSnapshot> {
        if !self.watched().by_name.contains_key(group) {
            return None;
        }
        match timeout(READ_WITHIN, self.watch(group, READ_PACE).next()).await {
            Ok(Some(Ok(WatchEvent::View(read)))) => Some(read),
            _ => None,
        }
    }
}

impl<T> Hub<T> {
    fn watched(&self) -> MutexGuard<'_, WatchedGroups<T>> {
        // Nothing under this lock can panic halfway through a change.
        self.0.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> WatchedGroups<T> {
    fn remove(&mut self, group_state: &Arc<GroupState<T>>) {
        if self.by_name.get(&group_state.group).is_some_and(|known| Arc::ptr_eq(known, group_state)) {
            self.by_name.remove(&group_state.group);
        }
    }
}

/// One watch's place. Dropping it ends the work for it.
struct Subscription<T: 'static> {
    feed_state: tokio::sync::watch::Receiver<FeedState<T>>,
    pace: Duration,
    group_state: Arc<GroupState<T>>,
    hub: Hub<T>,
}

impl<T> Drop for Subscription<T> {
    fn drop(&mut self) {
        self.hub.watched().watches -= 1;
        // What the reader does just now need not begin anew.
        if self.group_state.leave(self.pace) {
            self.group_state.wake.notify_one();
        }
    }
}
