//! Groups that one observer reads for members and claims alike: what it has read last goes to the feeds of both.

use std::sync::Arc;
use std::time::Duration;

use shardwise_core::{GroupName, Moment};
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep_until, timeout};

use super::{Feed, GroupReader, Watched};
use crate::{Error, Result};

/// How long a reading may take that a caller waits for, and the longest silence of an observer.
pub const READING_LIMIT: Duration = Duration::from_secs(12);

/// What an observer has read of a group last.
pub trait ObservedState: Clone + Send + Sync + 'static {
    /// Why it could not be read.
    type Failure: Clone + From<NoReading> + Send;

    /// The group is known as it was at this moment, or later.
    fn proven(&self) -> Moment;

    /// Why the group cannot be read at present, and since when.
    fn failure(&self) -> Option<&(Self::Failure, Moment)>;
}

/// One part of what was read.
pub trait ObservedPart<T>: ObservedState {
    /// `None` while it is not read.
    fn part(&self) -> Option<&Arc<T>>;
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
pub trait Observatory: Send + 'static {
    /// What is read of a group.
    type State: ObservedState;
    /// The group is observed until this is dropped.
    type Interest: Send;

    /// Has the group observed.
    fn observe(&self, group: &GroupName) -> (Self::Interest, Receiver<Self::State>);

    /// Has the group proven as of that moment.
    fn want_proof(&self, interest: &Self::Interest, of: Moment);

    /// The present moment of the clock that the proofs use.
    fn now(&self) -> Moment;

    /// The failure as the error of this operation.
    fn error(&self, failure: &<Self::State as ObservedState>::Failure, operation: &'static str) -> Error;
}

/// Waits for a reading with that part that is proven as of `asked`.
///
/// # Errors
/// The failure of a reading since `asked`; [`NoReading`] if there is none.
pub async fn read_as_of<S: ObservedState>(
    states: &mut Receiver<S>,
    asked: Moment,
    has_part: impl Fn(&S) -> bool,
) -> std::result::Result<S, S::Failure> {
    let reading = async {
        loop {
            let state = states.borrow_and_update().clone();
            match state.failure() {
                Some((failure, at)) if *at >= asked => return Err(failure.clone()),
                None if state.proven() >= asked && has_part(&state) => return Ok(state),
                _ => {}
            }
            states.changed().await.map_err(|_| NoReading::Ended)?;
        }
    };
    timeout(READING_LIMIT, reading).await.unwrap_or_else(|_| Err(NoReading::TimedOut.into()))
}

/// Hands one part of one observed group to its feed.
pub struct ObservedReader<O: Observatory> {
    observatory: O,
    place: Option<(O::Interest, Receiver<O::State>)>,
    /// When something was read last, and when the next proof is asked for unless it comes by itself.
    heard: Instant,
    due: Instant,
}

type Read<O> = std::result::Result<(), <<O as Observatory>::State as ObservedState>::Failure>;

impl<O: Observatory> ObservedReader<O> {
    /// A reader of groups that are observed there.
    pub fn new(observatory: O) -> Self {
        let now = Instant::now();
        Self { observatory, place: None, heard: now, due: now }
    }

    /// Waits for a reading that is proven as of now, and shows it.
    async fn read_now<T: Watched>(&mut self, feed: &Feed<T>) -> Read<O>
    where
        O::State: ObservedPart<T>,
    {
        let asked = self.observatory.now();
        let Some((interest, states)) = &mut self.place else { return Err(NoReading::Ended.into()) };
        self.observatory.want_proof(interest, asked);
        let state = read_as_of(states, asked, |state| state.part().is_some()).await?;
        self.show(feed, &state);
        Ok(())
    }

    /// Waits for the next reading, or asks for one where a proof is due.
    async fn read_next<T: Watched>(&mut self, feed: &Feed<T>) -> Read<O>
    where
        O::State: ObservedPart<T>,
    {
        let Some((interest, states)) = &mut self.place else { return Err(NoReading::Ended.into()) };
        tokio::select! {
            changed = states.changed() => changed.map_err(|_| NoReading::Ended)?,
            () = sleep_until(self.due) => {
                // Its task may have ended with another runtime.
                if self.heard.elapsed() > READING_LIMIT {
                    return Err(NoReading::TimedOut.into());
                }
                self.observatory.want_proof(interest, self.observatory.now());
                self.due = Instant::now() + pause(feed);
                return Ok(());
            }
        }
        let state = states.borrow_and_update().clone();
        if let Some((failure, _)) = state.failure() {
            return Err(failure.clone());
        }
        self.show(feed, &state);
        Ok(())
    }

    /// Shows what was read, or proves what is shown.
    fn show<T: Watched>(&mut self, feed: &Feed<T>, state: &O::State)
    where
        O::State: ObservedPart<T>,
    {
        // Claims that this reader has asked for may be unread yet.
        if let Some(part) = state.part() {
            let is_same = feed.latest().is_some_and(|latest| Arc::ptr_eq(&latest, part) || latest == *part);
            if is_same { feed.prove(state.proven()) } else { feed.show(Arc::clone(part), Some(state.proven())) }
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

impl<T: Watched, O: Observatory> GroupReader<T> for ObservedReader<O>
where
    O::State: ObservedPart<T>,
{
    const NEXT_PROVES: bool = true;

    async fn open(&mut self, feed: &Feed<T>) -> Result<()> {
        self.place = Some(self.observatory.observe(feed.group()));
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
