//! Listeners: each gets every event in order; a slow one gets the latest ones merged.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;
use futures::{Stream, StreamExt};
use shardwise_core::{Ownership, Rebalance};

use crate::error::locked;

/// Events that listeners receive.
pub trait Update: Clone + Send {
    /// The most events queued for one listener; beyond it the latest two are merged.
    const BACKLOG_MAX: usize;

    /// This event and then `next`, as one.
    #[must_use]
    fn merged(self, next: Self) -> Self;
}

impl Update for Rebalance {
    /// Only one is queued: acting on an old rebalance would use slots that may be lost again.
    const BACKLOG_MAX: usize = 1;

    fn merged(self, next: Self) -> Self {
        self.then(next)
    }
}

impl Update for Arc<Ownership> {
    const BACKLOG_MAX: usize = 64;

    fn merged(self, next: Self) -> Self {
        next
    }
}

pub(crate) struct ListenerHub<T> {
    subscribers: Mutex<Vec<Weak<Subscriber<T>>>>,
}

struct Subscriber<T> {
    pending: Mutex<Pending<T>>,
    waker: AtomicWaker,
}

struct Pending<T> {
    backlog: VecDeque<T>,
    closed: bool,
}

impl<T> Default for ListenerHub<T> {
    fn default() -> Self {
        Self { subscribers: Mutex::default() }
    }
}

impl<T: Update> ListenerHub<T> {
    pub(crate) fn subscribe(&self) -> Listener<T> {
        let pending = Mutex::new(Pending { backlog: VecDeque::new(), closed: false });
        let subscriber = Arc::new(Subscriber { pending, waker: AtomicWaker::new() });
        let mut subscribers = locked(&self.subscribers);
        subscribers.retain(|subscriber| subscriber.strong_count() > 0);
        subscribers.push(Arc::downgrade(&subscriber));
        Listener { subscriber }
    }

    pub(crate) fn push(&self, update: &T) {
        for subscriber in locked(&self.subscribers).iter().filter_map(Weak::upgrade) {
            let mut pending = locked(&subscriber.pending);
            let full = pending.backlog.len() >= T::BACKLOG_MAX;
            let last = if full { pending.backlog.pop_back() } else { None };
            pending.backlog.push_back(match last {
                Some(last) => last.merged(update.clone()),
                None => update.clone(),
            });
            drop(pending);
            subscriber.waker.wake();
        }
    }
}

impl<T> Drop for ListenerHub<T> {
    fn drop(&mut self) {
        for subscriber in locked(&self.subscribers).iter().filter_map(Weak::upgrade) {
            locked(&subscriber.pending).closed = true;
            subscriber.waker.wake();
        }
    }
}

/// The rebalances of one service from the subscription on. A slot that was lost and regained between two reads is in both `lost` and
/// `gained`.
pub type Rebalances = Listener<Rebalance>;

/// Every snapshot of one service from the subscription on; a reader that is far behind misses older ones.
pub type Snapshots = Listener<Arc<Ownership>>;

/// Events of one service as a stream that ends with the service. A slow reader gets the latest events merged.
pub struct Listener<T> {
    subscriber: Arc<Subscriber<T>>,
}

impl<T: Update> Listener<T> {
    /// The next event; `None` once the service is gone. Cancel safe.
    pub async fn recv(&mut self) -> Option<T> {
        self.next().await
    }
}

impl<T: Update> Stream for Listener<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        self.subscriber.waker.register(context.waker());
        let mut pending = locked(&self.subscriber.pending);
        match pending.backlog.pop_front() {
            Some(update) => Poll::Ready(Some(update)),
            None if pending.closed => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}
