//! Listeners for rebalances: each sees every change, merged into one if it was slow.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;
use futures::{Stream, StreamExt};
use shardwise_core::Rebalance;

/// The most rebalances kept apart for one listener; beyond it the latest two are merged.
const BACKLOG_MAX: usize = 16;

#[derive(Default)]
pub(crate) struct Hub {
    seats: Mutex<Vec<Weak<Seat>>>,
}

#[derive(Default)]
struct Seat {
    pending: Mutex<Pending>,
    waker: AtomicWaker,
}

#[derive(Default)]
struct Pending {
    backlog: VecDeque<Rebalance>,
    closed: bool,
}

/// The table stays whole whatever panics while it is locked: each change to it is a single push, pop or flag.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    pub(crate) fn subscribe(&self) -> Rebalances {
        let seat = Arc::new(Seat::default());
        let mut seats = lock(&self.seats);
        seats.retain(|seat| seat.strong_count() > 0);
        seats.push(Arc::downgrade(&seat));
        Rebalances { seat }
    }

    pub(crate) fn push(&self, rebalance: &Rebalance) {
        for seat in lock(&self.seats).iter().filter_map(Weak::upgrade) {
            let mut pending = lock(&seat.pending);
            let full = pending.backlog.len() >= BACKLOG_MAX;
            let last = if full { pending.backlog.pop_back() } else { None };
            pending.backlog.push_back(match last {
                Some(last) => last.then(rebalance.clone()),
                None => rebalance.clone(),
            });
            drop(pending);
            seat.waker.wake();
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        for seat in lock(&self.seats).iter().filter_map(Weak::upgrade) {
            lock(&seat.pending).closed = true;
            seat.waker.wake();
        }
    }
}

/// The rebalances of one service from the moment of asking on, as a stream that ends with the service.
///
/// A reader that is slow gets several changes merged into one: a slot that was lost and regained in between is in both `lost`
/// and `gained`.
pub struct Rebalances {
    seat: Arc<Seat>,
}

impl Rebalances {
    /// The next rebalance; `None` once the service is gone. Cancel safe.
    pub async fn recv(&mut self) -> Option<Rebalance> {
        self.next().await
    }
}

impl Stream for Rebalances {
    type Item = Rebalance;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Rebalance>> {
        self.seat.waker.register(context.waker());
        let mut pending = lock(&self.seat.pending);
        match pending.backlog.pop_front() {
            Some(rebalance) => Poll::Ready(Some(rebalance)),
            None if pending.closed => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}
