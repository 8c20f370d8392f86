//! What became of the events of one batch, as the producer reports it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::types::RDKafkaErrorCode;
use tokio::sync::Notify;

/// What is known of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventFate {
    /// It was not handed to the producer.
    Unsent,
    /// It was, and there is no report yet.
    Open,
    /// Every replica that must have it has it.
    Accepted,
    /// It was refused, or its fate will not be known.
    Failed(RDKafkaErrorCode),
}

#[derive(Debug)]
struct Fates {
    of: Vec<EventFate>,
    open: usize,
}

/// The fates of a batch's events, by their place in it.
#[derive(Debug)]
pub(super) struct BatchReports {
    fates: Mutex<Fates>,
    settled: Notify,
}

/// Comes back with the report about its event.
#[derive(Debug)]
pub(super) struct Ticket {
    batch: Arc<BatchReports>,
    index: usize,
}

impl BatchReports {
    pub(super) fn new(events: usize) -> Arc<Self> {
        Arc::new(Self { fates: Mutex::new(Fates { of: vec![EventFate::Unsent; events], open: 0 }), settled: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Fates> {
        self.fates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For an event that is handed over now.
    #[expect(clippy::unnecessary_box_returns, reason = "the client takes it as a pointer")]
    pub(super) fn ticket(self: &Arc<Self>, index: usize) -> Box<Ticket> {
        let mut fates = self.lock();
        fates.of[index] = EventFate::Open;
        fates.open += 1;
        Box::new(Ticket { batch: Arc::clone(self), index })
    }

    /// Resolves when no event that was handed over is without a report.
    pub(super) async fn settled(&self) {
        loop {
            let changed = self.settled.notified();
            if self.lock().open == 0 {
                return;
            }
            changed.await;
        }
    }

    pub(super) fn fates(&self) -> Vec<EventFate> {
        self.lock().of.clone()
    }
}

impl Ticket {
    pub(super) fn report(self, fate: EventFate) {
        let mut fates = self.batch.lock();
        fates.of[self.index] = fate;
        fates.open -= 1;
        if fates.open == 0 {
            // A permit is stored if no task waits yet.
            self.batch.settled.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_batch_is_settled_when_each_event_has_its_report() {
        let reports = BatchReports::new(3);
        reports.settled().await;
        let (first, second) = (reports.ticket(0), reports.ticket(1));
        second.report(EventFate::Accepted);
        let waits = tokio::spawn({
            let reports = Arc::clone(&reports);
            async move { reports.settled().await }
        });
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        first.report(EventFate::Failed(RDKafkaErrorCode::MessageTimedOut));
        waits.await.unwrap();
        let expected = [EventFate::Failed(RDKafkaErrorCode::MessageTimedOut), EventFate::Accepted, EventFate::Unsent];
        assert_eq!(reports.fates(), expected);
    }
}
