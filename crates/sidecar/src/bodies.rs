//! The memory for all bodies together, over all connections. Memory is reserved before a body is read into it. When none is left, the
//! bodies that have used most of it for longest without progress are dropped, so that clients with unfinished bodies neither fill the
//! memory nor keep others out.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::problem::{Problem, Result, TOO_MANY};

/// The most bytes of all bodies in memory at a time.
pub(crate) const KEPT_BYTES_MAX: usize = 16 << 20;
/// How long a body waits for memory. Dropped bodies free theirs immediately; only bodies that are being answered take longer.
const ROOM_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Bodies {
    free: Arc<Semaphore>,
    next: AtomicU64,
    unfinished: Mutex<HashMap<u64, Body>>,
}

/// A body that is not complete.
#[derive(Debug)]
struct Body {
    bytes: usize,
    heard: Instant,
    given_up: CancellationToken,
}

/// The memory reserved for one body; returned on drop.
#[derive(Debug)]
pub(crate) struct Room {
    bodies: Arc<Bodies>,
    number: u64,
    given_up: CancellationToken,
    taken: Option<OwnedSemaphorePermit>,
}

impl Bodies {
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { free: Arc::new(Semaphore::new(bytes)), next: AtomicU64::new(0), unfinished: Mutex::default() })
    }

    fn unfinished(&self) -> MutexGuard<'_, HashMap<u64, Body>> {
        // A poisoned lock is safe: each change is one insertion, removal or assignment.
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn room(self: &Arc<Self>) -> Room {
        let (number, given_up) = (self.next.fetch_add(1, Ordering::Relaxed), CancellationToken::new());
        self.unfinished().insert(number, Body { bytes: 0, heard: Instant::now(), given_up: given_up.clone() });
        Room { bodies: Arc::clone(self), number, given_up, taken: None }
    }

    /// Drops bodies until `bytes` are free, but never `but`: first those with the largest product of size and time without progress. By
    /// time alone, many large bodies could displace a small one that is sent without pauses; by size alone, many small stalled bodies
    /// could displace a large one.
    fn give_up(&self, bytes: usize, but: u64) {
        let unfinished = self.unfinished();
        let others = unfinished.iter().filter(|(number, body)| **number != but && body.bytes > 0 && !body.given_up.is_cancelled());
        let mut others: Vec<&Body> = others.map(|(_, body)| body).collect();
        let now = Instant::now();
        others.sort_by_cached_key(|body| Reverse(body.bytes as u128 * now.saturating_duration_since(body.heard).as_micros().max(1)));
        let mut freed = 0;
        for body in others {
            if freed >= bytes {
                break;
            }
            freed += body.bytes;
            body.given_up.cancel();
        }
    }
}

impl Room {
    /// Notes progress and reserves memory for `bytes` in total. A reservation never shrinks. It is an error if there is no memory within a
    /// few seconds, or this body is dropped for others meanwhile.
    pub(crate) async fn keeps(&mut self, bytes: usize) -> Result<()> {
        let had = self.taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        self.hears(had);
        let more = u32::try_from(bytes.saturating_sub(had)).map_err(|_| no_room())?;
        if more == 0 {
            return Ok(());
        }
        let free = Arc::clone(&self.bodies.free);
        let taken = if let Ok(taken) = Arc::clone(&free).try_acquire_many_owned(more) {
            taken
        } else {
            self.bodies.give_up(more as usize, self.number);
            let freed = tokio::time::timeout(ROOM_WITHIN, free.acquire_many_owned(more));
            self.unless_given_up(freed).await?.map_err(|_| no_room())?.map_err(|_| no_room())?
        };
        match &mut self.taken {
            Some(had) => had.merge(taken),
            None => self.taken = Some(taken),
        }
        self.hears(had.max(bytes));
        Ok(())
    }

    fn hears(&self, bytes: usize) {
        if let Some(body) = self.bodies.unfinished().get_mut(&self.number) {
            (body.bytes, body.heard) = (bytes, Instant::now());
        }
    }

    /// Waits for `wait`, unless this body is dropped for others before it resolves.
    pub(crate) async fn unless_given_up<T>(&self, wait: impl Future<Output = T>) -> Result<T> {
        self.given_up.run_until_cancelled(wait).await.ok_or_else(|| {
            TOO_MANY.because("the memory for request bodies is full and this one arrived most slowly; send it again without pauses")
        })
    }

    /// The body is complete and is no longer dropped for others.
    pub(crate) fn is_whole(&self) {
        self.bodies.unfinished().remove(&self.number);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.is_whole();
    }
}

fn no_room() -> Problem {
    TOO_MANY.because(format!("the requests that are being answered use all the memory for bodies ({KEPT_BYTES_MAX} bytes); try again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_body_that_takes_most_for_longest_makes_room() {
        let bodies = Bodies::new(100);
        let [mut first, mut second, mut third] = [(); 3].map(|()| bodies.room());
        first.keeps(40).await.unwrap();
        second.keeps(60).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        first.keeps(40).await.unwrap();
        let waits = tokio::spawn(async move {
            third.keeps(30).await.unwrap();
            third
        });
        let refusal = second.unless_given_up(std::future::pending::<()>()).await.unwrap_err();
        assert_eq!(refusal.status(), 429);
        assert_eq!(bodies.free.available_permits(), 0, "what is given up is kept until its owner lets go");
        drop(second);
        let third = waits.await.unwrap();
        assert_eq!(bodies.free.available_permits(), 30);
        drop((first, third));
        assert_eq!((bodies.free.available_permits(), bodies.unfinished().len()), (100, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_whole_body_is_not_given_up_and_no_request_waits_for_ever_for_its_room() {
        let bodies = Bodies::new(100);
        let [mut whole, mut late] = [(); 2].map(|()| bodies.room());
        whole.keeps(100).await.unwrap();
        whole.is_whole();
        let begun = tokio::time::Instant::now();
        let refusal = late.keeps(1).await.unwrap_err();
        assert_eq!((refusal.status(), begun.elapsed()), (429, ROOM_WITHIN));
        assert!(whole.unless_given_up(async {}).await.is_ok());
    }
}
