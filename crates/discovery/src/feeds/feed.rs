//! What is known of one watched group: the reader writes it, the watches read it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardwise_core::{GroupName, Moment, View};
use tokio::sync::{Notify, watch};

use super::{Shelf, Topic};
use crate::Error;

/// What was last seen of a group.
#[derive(Debug)]
pub(super) struct News<T> {
    pub(super) shown: Option<Arc<T>>,
    /// How often something new was shown.
    pub(super) shows: u64,
    /// Before the request that proved it current.
    pub(super) proven: Moment,
    /// Why it could not be proven just now.
    pub(super) failure: Option<Error>,
    /// How many failures there were.
    pub(super) failures: u64,
    /// Nobody reads the group any more.
    pub(super) over: bool,
}

impl<T> Clone for News<T> {
    fn clone(&self) -> Self {
        let Self { shown, shows, proven, failure, failures, over } = self;
        Self { shown: shown.clone(), shows: *shows, proven: *proven, failure: failure.clone(), failures: *failures, over: *over }
    }
}

/// One watched group.
pub(super) struct Board<T> {
    group: GroupName,
    news: watch::Sender<News<T>>,
    wake: Notify,
    interest: Mutex<Interest>,
}

/// What the watches of a group want.
#[derive(Default)]
struct Interest {
    /// How often they want a proof, and how many want it so.
    paces: BTreeMap<Duration, usize>,
    /// When the last one came: it wants a read that begins after that.
    newest: Moment,
}

impl<T> Board<T> {
    pub(super) fn new(group: GroupName) -> Self {
        let nothing = News { shown: None, shows: 0, proven: Moment::ZERO, failure: None, failures: 0, over: false };
        Self { group, news: watch::Sender::new(nothing), wake: Notify::new(), interest: Mutex::default() }
    }

    pub(super) const fn group(&self) -> &GroupName {
        &self.group
    }

    pub(super) fn news(&self) -> watch::Receiver<News<T>> {
        self.news.subscribe()
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

    pub(super) fn leave(&self, pace: Duration) {
        let mut interest = self.interest();
        if let Some(count) = interest.paces.get_mut(&pace) {
            *count -= 1;
            if *count == 0 {
                interest.paces.remove(&pace);
            }
        }
    }

    pub(super) fn stir(&self) {
        self.wake.notify_one();
    }
}

/// The reader's end of a watched group. Dropping it says that the reader has ended.
pub struct Feed<T = View> {
    board: Arc<Board<T>>,
    shelf: Arc<Shelf<T>>,
}

impl<T> fmt::Debug for Feed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").field("group", &self.board.group).finish_non_exhaustive()
    }
}

impl<T: Topic> Feed<T> {
    pub(super) const fn new(board: Arc<Board<T>>, shelf: Arc<Shelf<T>>) -> Self {
        Self { board, shelf }
    }

    /// Which group.
    pub fn group(&self) -> &GroupName {
        &self.board.group
    }

    /// How often what is shown has to be proven: as the quickest watch wants it. `None` if nobody watches.
    pub fn pace(&self) -> Option<Duration> {
        self.board.interest().paces.keys().next().copied()
    }

    /// What was shown last.
    pub fn latest(&self) -> Option<Arc<T>> {
        self.board.news.borrow().shown.clone()
    }

    /// Somebody waits for a read that begins after it came.
    pub fn has_newcomer(&self) -> bool {
        let newest = self.board.interest().newest;
        self.board.news.borrow().proven < newest
    }

    /// Whether a proof of `now` is news to anybody: a newcomer waits, a failure is over, or the pace wants it. For a source that
    /// reads more often than that.
    pub fn wants_proof(&self, now: Moment) -> bool {
        let Some(pace) = self.pace() else { return false };
        let due = {
            let news = self.board.news.borrow();
            news.failure.is_some() || now >= news.proven.plus(pace)
        };
        due || self.has_newcomer()
    }

    /// Shows the group, and since when that is known to be current. Without that it is as new as the last proof.
    pub fn show(&self, shown: Arc<T>, proven: Option<Moment>) {
        self.board.news.send_if_modified(|news| {
            if let Some(proven) = proven {
                news.prove(proven);
            }
            // The same members at a later revision are news too: whoever watches may have read another view in between.
            let is_new = news.shown.as_ref() != Some(&shown);
            if is_new {
                (news.shown, news.shows) = (Some(shown), news.shows + 1);
            }
            is_new || proven.is_some()
        });
    }

    /// Nothing has changed: what was shown was still current at that moment.
    pub fn prove(&self, at: Moment) {
        self.board.news.send_modify(|news| news.prove(at));
    }

    /// The group cannot be read just now. Each failure is told.
    pub fn fail(&self, error: Error) {
        self.board.news.send_modify(|news| (news.failure, news.failures) = (Some(error), news.failures + 1));
    }

    /// Waits until somebody comes or leaves; at once if that has happened since the last time.
    pub async fn stirred(&self) {
        self.board.wake.notified().await;
    }

    /// Ends the feed if nobody watches; who comes from now on gets another. `false`: somebody does.
    pub fn end_unwatched(&self) -> bool {
        let mut feeds = self.shelf.feeds();
        let unwatched = self.pace().is_none();
        if unwatched {
            feeds.remove(&self.board);
        }
        unwatched
    }
}

impl<T> News<T> {
    fn prove(&mut self, at: Moment) {
        (self.proven, self.failure) = (self.proven.max(at), None);
    }
}

impl<T> Drop for Feed<T> {
    /// The reader's runtime may end under watches of another one: they notice, and the first has the group read again.
    fn drop(&mut self) {
        self.shelf.feeds().remove(&self.board);
        self.board.news.send_modify(|news| news.over = true);
    }
}
