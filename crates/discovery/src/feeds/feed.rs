//! The last known state of one watched group: the reader writes it, the watches read it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardwise_core::{GroupName, Moment, View};
use tokio::sync::{Notify, watch};

use super::{Hub, Watched};
use crate::Error;

/// The last state read from a group.
pub(super) struct FeedState<T> {
    pub(super) shown: Option<Arc<T>>,
    /// How often something new was shown.
    pub(super) shows: u64,
    /// Before the request that proved it current.
    pub(super) proven: Moment,
    /// Why it cannot be proven at present.
    pub(super) failure: Option<Error>,
    /// How many failures there were.
    pub(super) failures: u64,
    /// The group is not read any more.
    pub(super) over: bool,
}

/// One watched group.
pub(super) struct GroupState<T> {
    pub(super) group: GroupName,
    pub(super) feed_state: watch::Sender<FeedState<T>>,
    /// Notified when a watch comes or leaves.
    pub(super) wake: Notify,
    interest: Mutex<Interest>,
}

/// The requests of a group's watches.
#[derive(Default)]
struct Interest {
    /// How often they want a proof, and how many want it so.
    paces: BTreeMap<Duration, usize>,
    /// When the last one came: it wants a read that begins after that.
    newest: Moment,
}

impl<T> GroupState<T> {
    pub(super) fn new(group: GroupName) -> Self {
        let nothing = FeedState { shown: None, shows: 0, proven: Moment::ZERO, failure: None, failures: 0, over: false };
        Self { group, feed_state: watch::Sender::new(nothing), wake: Notify::new(), interest: Mutex::default() }
    }

    fn interest(&self) -> MutexGuard<'_, Interest> {
        // Nothing under this lock can panic halfway through a change.
        self.interest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(&self, pace: Duration, since: Moment) {
        let mut interest = self.interest();
        *interest.paces.entry(pace).or_default() += 1;
        interest.newest = interest.newest.max(since);
    }

    /// Returns whether the group is to be proven less often from here on, or not at all.
    pub(super) fn leave(&self, pace: Duration) -> bool {
        let mut interest = self.interest();
        let shortest = interest.paces.keys().next().copied();
        if let Some(count) = interest.paces.get_mut(&pace) {
            *count -= 1;
            if *count == 0 {
                interest.paces.remove(&pace);
            }
        }
        interest.paces.keys().next().copied() != shortest
    }
}

/// The reader's end of a watched group. Dropping it says that the reader has ended.
pub struct Feed<T: 'static = View> {
    pub(super) group_state: Arc<GroupState<T>>,
    pub(super) hub: Hub<T>,
}

impl<T: Watched> Feed<T> {
    /// Which group.
    pub fn group(&self) -> &GroupName {
        &self.group_state.group
    }

    /// How often the view has to be proven: the shortest interval that a watch asks for. `None` without watches.
    pub fn pace(&self) -> Option<Duration> {
        self.group_state.interest().paces.keys().next().copied()
    }

    /// The last state shown.
    pub fn latest(&self) -> Option<Arc<T>> {
        self.group_state.feed_state.borrow().shown.clone()
    }

    /// A new watch waits for a read that begins after it came.
    pub fn has_newcomer(&self) -> bool {
        let newest = self.group_state.interest().newest;
        self.group_state.feed_state.borrow().proven < newest
    }

    /// Whether a proof of `now` is needed by a watch: a newcomer waits, a failure is over, or the pace wants it. For a source that
    /// reads more often than that.
    pub fn wants_proof(&self, now: Moment) -> bool {
        let Some(pace) = self.pace() else { return false };
        let due = {
            let state = self.group_state.feed_state.borrow();
            state.failure.is_some() || now >= state.proven.plus(pace)
        };
        due || self.has_newcomer()
    }

    /// Shows the group, and since when that is known to be current. Without that it is as new as the last proof.
    pub fn show(&self, shown: Arc<T>, proven: Option<Moment>) {
        self.group_state.feed_state.send_if_modified(|state| {
            if let Some(proven) = proven {
                state.prove(proven);
            }
            // The same members at a later revision are reported too: a watch's caller may have read another view in between.
            let is_new = state.shown.as_ref() != Some(&shown);
            if is_new {
                (state.shown, state.shows) = (Some(shown), state.shows + 1);
            }
            is_new || proven.is_some()
        });
    }

    /// Nothing has changed: the state shown was still current at that moment.
    pub fn prove(&self, at: Moment) {
        self.group_state.feed_state.send_modify(|state| state.prove(at));
    }

    /// The group cannot be read at present. Every failure reaches the watches.
    pub fn fail(&self, error: Error) {
        self.group_state.feed_state.send_modify(|state| (state.failure, state.failures) = (Some(error), state.failures + 1));
    }

    /// Waits until a watch comes or leaves; returns at once if that has happened since the last call.
    pub async fn stirred(&self) {
        self.group_state.wake.notified().await;
    }

    /// Ends the feed if it has no watches; later watches get a new feed. `false` if it has watches.
    pub fn end_unwatched(&self) -> bool {
        let mut watched = self.hub.watched();
        let unwatched = self.pace().is_none();
        if unwatched {
            watched.remove(&self.group_state);
        }
        unwatched
    }
}

impl<T> FeedState<T> {
    fn prove(&mut self, at: Moment) {
        (self.proven, self.failure) = (self.proven.max(at), None);
    }
}

impl<T> Drop for Feed<T> {
    /// The reader's runtime may end under watches of another one: they notice, and the first has the group read again.
    fn drop(&mut self) {
        self.hub.watched().remove(&self.group_state);
        self.group_state.feed_state.send_modify(|state| state.over = true);
    }
}
