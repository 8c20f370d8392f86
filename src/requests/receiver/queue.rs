//! One request of a key at a time, the others in order of arrival.

use std::sync::{Arc, Mutex};

use shardwise_core::routing::{KeyQueues, QueueLimits, QueueTicket, Queued};
use tokio::sync::oneshot;

use crate::error::locked;
use crate::requests::Undelivered;

/// The queues of one handler.
pub(super) struct TurnQueues(Mutex<KeyQueues<oneshot::Sender<()>>>);

/// A request's place in the queue of its key; dropping it lets the next one go on.
pub(super) struct TurnPlace {
    queues: Arc<TurnQueues>,
    ticket: QueueTicket,
}

impl TurnQueues {
    pub(super) const fn new(limits: QueueLimits) -> Self {
        Self(Mutex::new(KeyQueues::new(limits)))
    }

    /// Waits until it is this request's turn.
    ///
    /// # Errors
    ///
    /// [`Undelivered::Busy`] if too many wait already.
    pub(super) async fn turn(self: &Arc<Self>, key: u64) -> Result<TurnPlace, Undelivered> {
        let (wake, woken) = oneshot::channel();
        let queued = locked(&self.0).enter(key, || wake).map_err(|_| Undelivered::Busy(None))?;
        let place = |ticket| TurnPlace { queues: Arc::clone(self), ticket };
        match queued {
            Queued::Turn(ticket) => Ok(place(ticket)),
            Queued::Waits(ticket) => {
                // Made before it waits, so that one that is cancelled meanwhile leaves the queue.
                let place = place(ticket);
                // The queue keeps the sender until it is this request's turn.
                let _ = woken.await;
                Ok(place)
            }
        }
    }
}

impl Drop for TurnPlace {
    fn drop(&mut self) {
        let next = locked(&self.queues.0).leave(self.ticket);
        if let Some(next) = next {
            // If it was cancelled, it leaves too and the one after it goes on.
            let _ = next.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn one_goes_at_a_time_and_a_cancelled_one_leaves_the_queue() {
        let queues = Arc::new(TurnQueues::new(QueueLimits { per_key: 2, in_all: 2 }));
        let first = queues.turn(1).await.unwrap();
        let (mut second, mut third) = (Box::pin(queues.turn(1)), Box::pin(queues.turn(1)));
        assert!(second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none());
        assert!(matches!(queues.turn(1).await, Err(Undelivered::Busy(None))));
        drop(queues.turn(2).await.unwrap());
        drop(first);
        // It has its turn by now, and does not take it.
        drop(second);
        let third = third.now_or_never().unwrap().unwrap();
        drop(third);
        let queues = locked(&queues.0);
        assert_eq!((queues.keys(), queues.waiting()), (0, 0));
    }
}
