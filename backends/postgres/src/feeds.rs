//! Watches: what the observer of a group has read goes to the feeds of its members and of its claims.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use shardwise_core::{Moment, View};
use shardwise_discovery::feeds::{Feed, FeedLimits, GroupReader, Hub, Watched, follow};
use shardwise_discovery::{ClaimTable, Error, Result};
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep_until, timeout};

use crate::error::{Failure, PgResult};
use crate::groups::{FollowedState, GroupInterest};
use crate::shared::Shared;

/// The most watches of members, and as many of claims, that one [`PostgresBackend`](crate::PostgresBackend) and its clones serve at a time.
pub const WATCHERS_MAX: usize = 16_384;
/// The most groups that they watch at a time.
pub const GROUPS_MAX: usize = 256;
const LIMITS: FeedLimits = FeedLimits { watches: WATCHERS_MAX, groups: GROUPS_MAX };

/// How long a reading may take that a watch waits for, and the longest silence of an observer.
const READING_LIMIT: Duration = Duration::from_secs(12);

/// What is shown of a group.
pub(crate) trait GroupPart: Send + Sync + 'static {
    type Shown: Watched;
    const IS_CLAIMS: bool;

    fn of(state: &FollowedState) -> Option<&Arc<Self::Shown>>;
}

pub(crate) struct MembersPart;

impl GroupPart for MembersPart {
    type Shown = View;
    const IS_CLAIMS: bool = false;

    fn of(state: &FollowedState) -> Option<&Arc<View>> {
        state.view.as_ref()
    }
}

pub(crate) struct ClaimsPart;

impl GroupPart for ClaimsPart {
    type Shown = ClaimTable;
    const IS_CLAIMS: bool = true;

    fn of(state: &FollowedState) -> Option<&Arc<ClaimTable>> {
        state.claims.as_ref()
    }
}

/// A hub whose groups are read from the database.
pub(crate) fn following<P: GroupPart>(shared: &Arc<Shared>) -> Hub<P::Shown> {
    let (clock, shared) = (shared.client.clock.clone(), Arc::clone(shared));
    Hub::new(clock, LIMITS, move |feed| follow(PartReader::<P>::new(Arc::clone(&shared)), feed))
}

/// Hands one part of one group to its feed.
struct PartReader<P> {
    shared: Arc<Shared>,
    place: Option<ReaderSubscription>,
    /// When something was read last, and when the next proof is asked for unless it comes by itself.
    heard: Instant,
    due: Instant,
    part: PhantomData<fn() -> P>,
}

/// A reader's place at its group.
struct ReaderSubscription {
    interest: GroupInterest,
    states: Receiver<FollowedState>,
}

impl<P: GroupPart> PartReader<P> {
    fn new(shared: Arc<Shared>) -> Self {
        let now = Instant::now();
        Self { shared, place: None, heard: now, due: now, part: PhantomData }
    }

    fn failed(&self, failure: &Failure) -> Error {
        self.shared.client.context.during(failure, P::Shown::OPERATION)
    }

    /// Waits for a reading that begins now, and shows it.
    async fn read_now(&mut self, feed: &Feed<P::Shown>) -> PgResult<()> {
        let asked = self.shared.client.clock.now();
        let Some(place) = &mut self.place else { return Ok(()) };
        place.interest.group.wake();
        let reading = async {
            loop {
                let state = place.states.borrow_and_update().clone();
                match (&state.failure, P::of(&state)) {
                    (Some((failure, at)), _) if *at >= asked => return Err(failure.clone()),
                    (None, Some(shown)) if state.proven >= asked => {
                        show::<P>(feed, shown, state.proven);
                        return Ok(());
                    }
                    _ => {}
                }
                place.states.changed().await.map_err(|_| Failure::ShuttingDown)?;
            }
        };
        timeout(READING_LIMIT, reading).await.unwrap_or(Err(Failure::TimedOut { after: READING_LIMIT }))?;
        self.shown(feed);
        Ok(())
    }

    fn shown(&mut self, feed: &Feed<P::Shown>) {
        self.heard = Instant::now();
        self.due = self.heard + feed.pace().unwrap_or(READING_LIMIT) * 3 / 4;
    }

    /// Waits for the next reading, or asks for one where a proof is due.
    async fn read_next(&mut self, feed: &Feed<P::Shown>) -> PgResult<()> {
        let Some(place) = &mut self.place else { return Err(Failure::ShuttingDown) };
        tokio::select! {
            changed = place.states.changed() => changed.map_err(|_| Failure::ShuttingDown)?,
            () = sleep_until(self.due) => {
                // Its task may have ended with another runtime.
                if self.heard.elapsed() > READING_LIMIT {
                    return Err(Failure::TimedOut { after: READING_LIMIT });
                }
                place.interest.group.wake();
                self.due = Instant::now() + feed.pace().unwrap_or(READING_LIMIT) * 3 / 4;
                return Ok(());
            }
        }
        let state = place.states.borrow_and_update().clone();
        if let Some((failure, _)) = state.failure {
            return Err(failure);
        }
        // Claims that this reader has asked for may be unread yet.
        if let Some(shown) = P::of(&state) {
            show::<P>(feed, shown, state.proven);
        }
        self.shown(feed);
        Ok(())
    }
}

impl<P: GroupPart> GroupReader<P::Shown> for PartReader<P> {
    const NEXT_PROVES: bool = true;

    async fn open(&mut self, feed: &Feed<P::Shown>) -> Result<()> {
        let interest = self.shared.interest(feed.group(), P::IS_CLAIMS);
        let states = interest.group.shown.subscribe();
        self.place = Some(ReaderSubscription { interest, states });
        self.read_now(feed).await.map_err(|failure| self.failed(&failure))
    }

    async fn next(&mut self, feed: &Feed<P::Shown>) -> Result<()> {
        self.read_next(feed).await.map_err(|failure| self.failed(&failure))
    }

    async fn prove(&mut self, feed: &Feed<P::Shown>) -> Result<()> {
        self.read_now(feed).await.map_err(|failure| self.failed(&failure))
    }
}

/// Shows what was read, or proves what is shown.
fn show<P: GroupPart>(feed: &Feed<P::Shown>, shown: &Arc<P::Shown>, proven: Moment) {
    let is_same = feed.latest().is_some_and(|latest| Arc::ptr_eq(&latest, shown) || latest == *shown);
    if is_same { feed.prove(proven) } else { feed.show(Arc::clone(shown), Some(proven)) }
}
