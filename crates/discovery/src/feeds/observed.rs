//! Groups that one observer reads for members and claims alike: what it has read last goes to the feeds of both.

use std::sync::Arc;
use std::time::Duration;

use shardwise_core::{Moment, View};
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep_until, timeout};

use super::groups::{GroupInterest, ObservedGroup, ObservedGroups};
use super::{Feed, FeedLimits, GroupReader, Hub, Watched, follow};
use crate::{ClaimTable, Clock, Error, Result};

/// How long a reading may take that a caller waits for, and the longest silence of an observer.
pub const READING_LIMIT: Duration = Duration::from_secs(12);

/// What an observer has read of a group last.
#[derive(Debug, Clone)]
pub struct ObservedState<F, N> {
    /// The members.
    pub view: Option<Arc<View>>,
    /// `None` while claims are not read.
    pub claims: Option<Arc<ClaimTable>>,
    /// The notes, where observers read them.
    pub notes: N,
    /// The group is known as it was at this moment, or later.
    pub proven: Moment,
    /// Why the group cannot be read at present, and since when.
    pub failure: Option<(F, Moment)>,
}

/// What the observers there read of a group.
pub type StateOf<O> = ObservedState<<O as Observatory>::Failure, <O as Observatory>::Notes>;

/// One part of what was read.
pub trait ObservedPart: Watched {
    /// Whether claims must be read for it.
    const IS_OF_CLAIMS: bool;

    /// `None` while it is not read.
    fn of<F, N>(state: &ObservedState<F, N>) -> Option<&Arc<Self>>;
}

impl ObservedPart for View {
    const IS_OF_CLAIMS: bool = false;

    fn of<F, N>(state: &ObservedState<F, N>) -> Option<&Arc<Self>> {
        state.view.as_ref()
    }
}

impl ObservedPart for ClaimTable {
    const IS_OF_CLAIMS: bool = true;

    fn of<F, N>(state: &ObservedState<F, N>) -> Option<&Arc<Self>> {
        state.claims.as_ref()
    }
}

/// The observer says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoReading {
    /// It has ended.
    Ended,
    /// Not for [`READING_LIMIT`].
    TimedOut,
}

/// Where groups are observed.
pub trait Observatory: Send + Sync + Sized + 'static {
    /// Why a group could not be read.
    type Failure: Clone + From<NoReading> + Send + Sync;
    /// A member's life whose end can be waited for.
    type Life: Clone + Ord + Send;
    /// What is read of a group's notes; `()` where observers do not read them.
    type Notes: Clone + Default + Send + Sync;
    /// What else belongs to a group.
    type Extra: Default + Send + Sync;
    /// How long a group is read on after its last reader.
    const LINGER: Duration;

    /// The groups that are observed.
    fn groups(&self) -> &ObservedGroups<Self>;

    /// Observes the group in a task until [`ObservedGroups::end_unneeded`] returns `true`.
    fn start(self: &Arc<Self>, group: Arc<ObservedGroup<Self>>);

    /// The clock of the proofs.
    fn clock(&self) -> &Clock;

    /// The failure as the error of this operation.
    fn error(&self, failure: &Self::Failure, operation: &'static str) -> Error;
}

impl<T: ObservedPart> Hub<T> {
    /// A hub whose groups are observed there.
    pub fn observing<O: Observatory>(observatory: &Arc<O>, limits: FeedLimits) -> Self {
        let (clock, observatory) = (observatory.clock().clone(), Arc::clone(observatory));
        Self::new(clock, limits, move |feed| follow(ObservedReader::new(Arc::clone(&observatory)), feed))
    }
}

/// Waits for a reading with that part that is proven as of `asked`. Fails with the failure of a reading since `asked`, or with
/// [`NoReading`] if there is none.
pub(super) async fn read_as_of<O: Observatory>(
    states: &mut Receiver<StateOf<O>>,
    asked: Moment,
    has_part: impl Fn(&StateOf<O>) -> bool,
) -> std::result::Result<StateOf<O>, O::Failure> {
    let reading = async {
        loop {
            let state = states.borrow_and_update().clone();
            match &state.failure {
                Some((failure, at)) if *at >= asked => return Err(failure.clone()),
                None if state.proven >= asked && has_part(&state) => return Ok(state),
                _ => {}
            }
            states.changed().await.map_err(|_| NoReading::Ended)?;
        }
    };
    timeout(READING_LIMIT, reading).await.unwrap_or_else(|_| Err(NoReading::TimedOut.into()))
}

/// Hands one part of one observed group to its feed.
struct ObservedReader<O: Observatory> {
    observatory: Arc<O>,
    place: Option<(GroupInterest<O>, Receiver<StateOf<O>>)>,
    /// When something was read last, and when the next proof is asked for unless it comes by itself.
    heard: Instant,
    due: Instant,
}

type Read<O> = std::result::Result<(), <O as Observatory>::Failure>;

impl<O: Observatory> ObservedReader<O> {
    fn new(observatory: Arc<O>) -> Self {
        let now = Instant::now();
        Self { observatory, place: None, heard: now, due: now }
    }

    /// Waits for a reading that is proven as of now, and shows it.
    async fn read_now<T: ObservedPart>(&mut self, feed: &Feed<T>) -> Read<O> {
        let asked = self.observatory.clock().now();
        let Some((interest, states)) = &mut self.place else { return Err(NoReading::Ended.into()) };
        interest.group.want_proof(asked);
        let state = read_as_of::<O>(states, asked, |state| T::of(state).is_some()).await?;
        self.show(feed, &state);
        Ok(())
    }

    /// Waits for the next reading, or asks for one where a proof is due.
    async fn read_next<T: ObservedPart>(&mut self, feed: &Feed<T>) -> Read<O> {
        let Some((interest, states)) = &mut self.place else { return Err(NoReading::Ended.into()) };
        tokio::select! {
            changed = states.changed() => changed.map_err(|_| NoReading::Ended)?,
            () = sleep_until(self.due) => {
                // Its task may have ended with another runtime.
                if self.heard.elapsed() > READING_LIMIT {
                    return Err(NoReading::TimedOut.into());
                }
                interest.group.want_proof(self.observatory.clock().now());
                self.due = Instant::now() + pause(feed);
                return Ok(());
            }
        }
        let state = states.borrow_and_update().clone();
        if let Some((failure, _)) = state.failure {
            return Err(failure);
        }
        self.show(feed, &state);
        Ok(())
    }

    /// Shows what was read, or proves what is shown.
    fn show<T: ObservedPart>(&mut self, feed: &Feed<T>, state: &StateOf<O>) {
        // Claims that this reader has asked for may be unread yet.
        if let Some(part) = T::of(state) {
            let is_same = feed.latest().is_some_and(|latest| Arc::ptr_eq(&latest, part) || latest == *part);
            if is_same { feed.prove(state.proven) } else { feed.show(Arc::clone(part), Some(state.proven)) }
        }
        self.heard = Instant::now();
        self.due = self.heard + pause(feed);
    }

    fn done<T: Watched>(&self, read: Read<O>) -> Result<()> {
        read.map_err(|failure| self.observatory.error(&failure, T::OPERATION))
    }
}

/// A little less than the pace of the watches.
fn pause<T: Watched>(feed: &Feed<T>) -> Duration {
    feed.pace().unwrap_or(READING_LIMIT) * 3 / 4
}

impl<T: ObservedPart, O: Observatory> GroupReader<T> for ObservedReader<O> {
    const NEXT_PROVES: bool = true;

    async fn open(&mut self, feed: &Feed<T>) -> Result<()> {
        let interest = self.observatory.groups().read(&self.observatory, feed.group(), T::IS_OF_CLAIMS);
        let states = interest.group.shown.subscribe();
        self.place = Some((interest, states));
        let read = self.read_now(feed).await;
        self.done::<T>(read)
    }

    async fn next(&mut self, feed: &Feed<T>) -> Result<()> {
        let read = self.read_next(feed).await;
        self.done::<T>(read)
    }

    async fn prove(&mut self, feed: &Feed<T>) -> Result<()> {
        let read = self.read_now(feed).await;
        self.done::<T>(read)
    }
}
