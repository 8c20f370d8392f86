//! The application of the demo: writes generated or real events into the outbox at a steady rate.

use std::time::Duration;

use shardwise_outbox::{NewEvent, SqliteStore};
use tokio::time::Instant;

use super::ledger::Ledger;
use crate::exit::Result;

const TRANSACTION_MAX: u64 = 500;
const TRANSACTIONS_MAX: usize = 50;
/// The least duration over which real events are spread, in TTLs, so that a takeover and a handover fit in.
const REAL_TTLS: u32 = 4;

pub(super) struct EventWriter {
    source: Box<dyn Iterator<Item = NewEvent> + Send>,
    /// The time from one event to the next.
    interval: Duration,
    /// The least number of events to write.
    pub(super) planned: u64,
    /// Beyond the plan nothing is written while so many are not delivered: on a busy machine the writer would keep the file locked, and
    /// so delay the changes for which it goes on.
    waiting_max: u64,
    pub(super) written: u64,
    /// Events that the store could not take yet.
    waiting: Vec<NewEvent>,
    /// `None` before the start.
    started: Option<Instant>,
}

impl EventWriter {
    /// Generated events. Beyond the plan, at most as many wait for their delivery as are written in a `ttl`.
    pub(super) fn made(events: u64, aggregates: u64, rate: u64, ttl: Duration) -> Self {
        let made = (0u64..).map(move |n| {
            let (order, change) = (n % aggregates, n / aggregates + 1);
            let event = NewEvent::new("order", order.to_string(), "OrderChanged", format!(r#"{{"change":{change}}}"#));
            event.with_id(format!("event-{n}"))
        });
        Self::new(Box::new(made), events, interval(rate), events_in(ttl, interval(rate)))
    }

    /// Real events, written slowly enough for both changes to fit in.
    pub(super) fn real(events: Vec<NewEvent>, rate: u64, ttl: Duration) -> Self {
        let planned = events.len() as u64;
        let slow_enough = (ttl * REAL_TTLS).div_f64(planned.max(1) as f64);
        Self::new(Box::new(events.into_iter()), planned, interval(rate).max(slow_enough), 0)
    }

    fn new(source: Box<dyn Iterator<Item = NewEvent> + Send>, planned: u64, interval: Duration, waiting_max: u64) -> Self {
        Self { source, interval, planned, waiting_max, written: 0, waiting: Vec::new(), started: None }
    }

    pub(super) fn start(&mut self) {
        self.started = Some(Instant::now());
    }

    /// Writes the events that are due. It exceeds the plan only if `go_on`, and never with real events.
    pub(super) async fn write_due(&mut self, store: &SqliteStore, ledger: &mut Ledger, go_on: bool) -> Result<()> {
        let Some(started) = self.started else { return Ok(()) };
        let due = events_in(started.elapsed(), self.interval);
        let more = if go_on { self.written.saturating_add(self.waiting_max.saturating_sub(ledger.lost())) } else { 0 };
        let due = due.min(self.planned.max(more));
        for _ in 0..TRANSACTIONS_MAX {
            while self.written < due
                && (self.waiting.len() as u64) < TRANSACTION_MAX
                && let Some(event) = self.source.next()
            {
                self.written += 1;
                ledger.written(event.id.as_deref().unwrap_or_default(), &event.key());
                self.waiting.push(event);
            }
            if self.waiting.is_empty() {
                break;
            }
            match store.enqueue_all(self.waiting.clone()).await {
                Ok(_) => self.waiting.clear(),
                // The machine is busy, and so is the application's writer: the next turn retries.
                Err(error) if error.is_retryable() => {
                    tracing::info!(%error, "the writer waits");
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn events_in(time: Duration, interval: Duration) -> u64 {
    u64::try_from(time.as_nanos() / interval.as_nanos().max(1)).unwrap_or(u64::MAX)
}

/// The time between two events at `rate` events a second.
fn interval(rate: u64) -> Duration {
    Duration::from_secs(1).div_f64(rate as f64)
}

#[cfg(test)]
mod tests {
    use shardwise_outbox::Store;

    use super::*;

    /// Lets a writer that started `ago` take its next turn on an empty outbox. Returns it with the longest time for which it can have been
    /// writing.
    fn after_a_turn(mut writer: EventWriter, ago: Duration, go_on: bool) -> (u64, Duration) {
        let folder = tempfile::tempdir().unwrap();
        let (mut ledger, path) = (Ledger::default(), folder.path().join("outbox.db"));
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let store = SqliteStore::init(path).await.unwrap();
            let started = Instant::now().checked_sub(ago).unwrap();
            writer.started = Some(started);
            writer.write_due(&store, &mut ledger, go_on).await.unwrap();
            let writing = started.elapsed();
            assert_eq!((ledger.events(), store.status().await.unwrap().pending), (writer.written, writer.written));
            store.close().await;
            (writer.written, writing)
        })
    }

    /// One transaction per turn was not enough for a high rate.
    #[test]
    fn the_rate_is_kept_exactly_however_late_a_turn_comes() {
        for (rate, seconds) in [(7, 3), (2_000, 1), (2_000, 3), (10_000, 1)] {
            let (written, writing) =
                after_a_turn(EventWriter::made(u64::MAX, 10, rate, Duration::ZERO), Duration::from_secs(seconds), true);
            let slowest = rate * seconds - 1;
            let fastest = rate * u64::try_from(writing.as_millis() + 1).unwrap() / 1_000;
            assert!((slowest..=fastest).contains(&written), "{written} events in {writing:?} at {rate} a second");
        }
    }

    #[test]
    fn the_plan_is_not_exceeded_unless_asked() {
        let late = Duration::from_secs(2);
        let made = |ttl| EventWriter::made(1_500, 10, 1_000, Duration::from_secs(ttl));
        assert_eq!(after_a_turn(made(9), late, false).0, 1_500);
        assert!(after_a_turn(made(9), late, true).0 >= 1_999, "writing goes on until both changes have settled");
        assert_eq!(after_a_turn(made(1), late, true).0, 1_500, "more than a TTL's worth waits already");
        let event = |n: u32| NewEvent::new("order", "1", "Changed", "1").with_id(n.to_string());
        assert_eq!(
            after_a_turn(EventWriter::real((0..30).map(event).collect(), 1_000, late), late * 100, true).0,
            30,
            "real ones are not made up"
        );
        // 30 events over four TTLs of 2 s: after 4 s half of them are due.
        assert_eq!(after_a_turn(EventWriter::real((0..30).map(event).collect(), 1_000, late), late * 2, true).0, 15);
    }
}
