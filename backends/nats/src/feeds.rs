//! Watches: what the observer of a group has read goes to the feeds of its members and of its claims.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use shardwise_core::{Moment, View};
use shardwise_discovery::feeds::{Feed, FeedLimits, GroupReader, Hub, Watched, follow};
use shardwise_discovery::{ClaimTable, Error, Result};
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep_until, timeout};

use crate::error::{Failure, NatsResult};
use crate::groups::{ReadGroup, ReadingInterest};
use crate::registrar::BucketHandle;

/// The most watches of members, and as many of claims, that one [`NatsBackend`](crate::NatsBackend) and its clones serve at a time.
pub const WATCHERS_MAX: usize = 16_384;
/// The most groups that they watch at a time.
pub const GROUPS_MAX: usize = 256;
const LIMITS: FeedLimits = FeedLimits { watches: WATCHERS_MAX, groups: GROUPS_MAX };

/// How long a reading may take that a caller waits for, and the longest silence of an observer.
const READING_LIMIT: Duration = Duration::from_secs(12);

/// What is shown of a group.
pub(crate) trait ReadPart: Send + Sync + 'static {
    type Shown: Watched;
    const IS_CLAIMS: bool;

    fn of(read: &ReadGroup) -> Option<&Arc<Self::Shown>>;
}

pub(crate) struct ReadMembers;

impl ReadPart for ReadMembers {
    type Shown = View;
    const IS_CLAIMS: bool = false;

    fn of(read: &ReadGroup) -> Option<&Arc<View>> {
        read.view.as_ref()
    }
}

pub(crate) struct ReadClaims;

impl ReadPart for ReadClaims {
    type Shown = ClaimTable;
    const IS_CLAIMS: bool = true;

    fn of(read: &ReadGroup) -> Option<&Arc<ClaimTable>> {
        read.claims.as_ref()
    }
}

/// A hub whose groups are read from the bucket.
pub(crate) fn following<P: ReadPart>(handle: &Arc<BucketHandle>) -> Hub<P::Shown> {
    let (clock, handle) = (handle.client.clock.clone(), Arc::clone(handle));
    Hub::new(clock, LIMITS, move |feed| follow(BucketReader::<P>::new(Arc::clone(&handle)), feed))
}

/// Waits until the group is proven as of that moment, and answers what was read.
pub(crate) async fn read_as_of(interest: &ReadingInterest, asked: Moment) -> NatsResult<ReadGroup> {
    let mut states = interest.group.shown.subscribe();
    read_until(interest, &mut states, asked, |read| read.view.is_some()).await
}

async fn read_until(
    interest: &ReadingInterest,
    states: &mut Receiver<ReadGroup>,
    asked: Moment,
    has_part: impl Fn(&ReadGroup) -> bool,
) -> NatsResult<ReadGroup> {
    interest.group.want_proof(asked);
    let reading = async {
        loop {
            let read = states.borrow_and_update().clone();
            match &read.failure {
                Some((failure, at)) if *at >= asked => return Err(failure.clone()),
                None if read.proven >= asked && has_part(&read) => return Ok(read),
                _ => {}
            }
            states.changed().await.map_err(|_| Failure::ShuttingDown)?;
        }
    };
    timeout(READING_LIMIT, reading).await.unwrap_or(Err(Failure::TimedOut { after: READING_LIMIT }))
}

/// Hands one part of one group to its feed.
struct BucketReader<P> {
    handle: Arc<BucketHandle>,
    place: Option<(ReadingInterest, Receiver<ReadGroup>)>,
    /// When something was read last, and when the next proof is asked for unless it comes by itself.
    heard: Instant,
    due: Instant,
    part: PhantomData<fn() -> P>,
}

impl<P: ReadPart> BucketReader<P> {
    fn new(handle: Arc<BucketHandle>) -> Self {
        let now = Instant::now();
        Self { handle, place: None, heard: now, due: now, part: PhantomData }
    }

    fn failed(&self, failure: &Failure) -> Error {
        failure.during(self.handle.client.place(), P::Shown::OPERATION)
    }

    /// Waits for a reading that is proven as of now, and shows it.
    async fn read_now(&mut self, feed: &Feed<P::Shown>) -> NatsResult<()> {
        let asked = self.handle.client.clock.now();
        let Some((interest, states)) = &mut self.place else { return Err(Failure::ShuttingDown) };
        let read = read_until(interest, states, asked, |read| P::of(read).is_some()).await?;
        self.show(feed, &read);
        Ok(())
    }

    fn show(&mut self, feed: &Feed<P::Shown>, read: &ReadGroup) {
        // Claims that this reader has asked for may be unread yet.
        if let Some(shown) = P::of(read) {
            let is_same = feed.latest().is_some_and(|latest| Arc::ptr_eq(&latest, shown) || latest == *shown);
            if is_same { feed.prove(read.proven) } else { feed.show(Arc::clone(shown), Some(read.proven)) }
        }
        self.heard = Instant::now();
        self.due = self.heard + pause(feed);
    }

    /// Waits for the next reading, or asks for one where a proof is due.
    async fn read_next(&mut self, feed: &Feed<P::Shown>) -> NatsResult<()> {
        let Some((interest, states)) = &mut self.place else { return Err(Failure::ShuttingDown) };
        tokio::select! {
            changed = states.changed() => changed.map_err(|_| Failure::ShuttingDown)?,
            () = sleep_until(self.due) => {
                // Its task may have ended with another runtime.
                if self.heard.elapsed() > READING_LIMIT {
                    return Err(Failure::TimedOut { after: READING_LIMIT });
                }
                interest.group.want_proof(self.handle.client.clock.now());
                self.due = Instant::now() + pause(feed);
                return Ok(());
            }
        }
        let read = states.borrow_and_update().clone();
        if let Some((failure, _)) = read.failure {
            return Err(failure);
        }
        self.show(feed, &read);
        Ok(())
    }
}

/// A little less than the pace of the watches.
fn pause<T: Watched>(feed: &Feed<T>) -> Duration {
    feed.pace().unwrap_or(READING_LIMIT) * 3 / 4
}

impl<P: ReadPart> GroupReader<P::Shown> for BucketReader<P> {
    const NEXT_PROVES: bool = true;

    async fn open(&mut self, feed: &Feed<P::Shown>) -> Result<()> {
        let interest = self.handle.interest(feed.group(), P::IS_CLAIMS);
        let states = interest.group.shown.subscribe();
        self.place = Some((interest, states));
        self.read_now(feed).await.map_err(|failure| self.failed(&failure))
    }

    async fn next(&mut self, feed: &Feed<P::Shown>) -> Result<()> {
        self.read_next(feed).await.map_err(|failure| self.failed(&failure))
    }

    async fn prove(&mut self, feed: &Feed<P::Shown>) -> Result<()> {
        self.read_now(feed).await.map_err(|failure| self.failed(&failure))
    }
}
