//! Measures the backlog of the whole outbox periodically, for the metrics.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use crate::metrics::BacklogMeters;
use crate::store::Backlog;

/// The delay before the first count. A publisher that has just started must first take slots and send the backlog of a restart, and a
/// count of a full outbox reads 10,000 aggregates.
const AFTER: Duration = Duration::from_secs(2);
const EVERY: Duration = Duration::from_secs(10);
const WITHIN: Duration = Duration::from_secs(5);
/// After this many consecutive failures the gauges no longer keep their last values, which would suggest that all is well. A single
/// failure is ignored.
const FAILURES: u32 = 3;
/// The most items of each kind that a count visits, which bounds its cost.
const MOST: usize = 10_000;

/// What the log has reported about slots without a publisher.
#[derive(Debug, Default)]
struct UnservedSlots {
    since: Option<Instant>,
    is_said: bool,
}

impl UnservedSlots {
    /// Reports once that slots have had no publisher for a TTL (`true`), and once that this has ended (`false`).
    fn observe(&mut self, free_slots: u32, ttl: Duration, now: Instant) -> Option<bool> {
        if free_slots == 0 {
            let was_said = std::mem::take(self).is_said;
            return was_said.then_some(false);
        }
        let since = *self.since.get_or_insert(now);
        let is_new = !self.is_said && now - since >= ttl;
        self.is_said |= is_new;
        is_new.then_some(true)
    }
}

/// Counts the outbox every ten seconds for the metrics of the whole outbox, and warns of slots that have had no publisher for a TTL.
/// `count_backlog` counts at most the given number of each kind, as [`Store::backlog`](crate::Store::backlog) does. The call ends if the
/// store does not count.
///
/// A publisher does this itself. A program that only watches an outbox, such as a sidecar, does it so that the outbox is counted while no
/// publisher is alive.
pub async fn report_backlog(
    count_backlog: impl Fn(usize) -> BoxFuture<'static, Result<Option<Backlog>, String>> + Send,
    sink: &str,
    poll: Duration,
    ttl: Duration,
) {
    let (meters, mut unserved, mut failures) = (BacklogMeters::new(sink), UnservedSlots::default(), 0_u32);
    let mut turns = interval_at(Instant::now() + AFTER, EVERY);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        let why = match timeout(WITHIN, count_backlog(MOST)).await {
            Ok(Ok(Some(backlog))) => {
                meters.counted(&backlog, poll);
                match unserved.observe(backlog.free_slots, ttl, Instant::now()) {
                    None => {}
                    Some(false) => tracing::info!("every slot of the outbox has a living publisher again"),
                    Some(true) => tracing::warn!(
                        slots = backlog.free_slots,
                        events = backlog.unpublished,
                        "no publisher has held these slots of the outbox for a TTL, and their events wait; see `shardwise outbox status` \
                         and `shardwise members`"
                    ),
                }
                if failures >= FAILURES {
                    tracing::info!(sink, "the outbox is counted again");
                }
                failures = 0;
                continue;
            }
            // This store does not count.
            Ok(Ok(None)) => return,
            Ok(Err(error)) => error,
            Err(_) => format!("no answer within {WITHIN:?}"),
        };
        failures = failures.saturating_add(1);
        if failures == FAILURES {
            meters.unknown();
            tracing::warn!(sink, %why, "the outbox could not be counted {FAILURES} times in a row: whether events are stuck is not known, and shardwise_outbox_stuck is 1");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(recorder: &metrics_util::debugging::Snapshotter, name: &str) -> Option<f64> {
        recorder.snapshot().into_vec().into_iter().find_map(|(key, _, _, value)| match value {
            metrics_util::debugging::DebugValue::Gauge(value) if key.key().name() == name => Some(value.into_inner()),
            _ => None,
        })
    }

    #[tokio::test(start_paused = true)]
    async fn an_outbox_that_cannot_be_counted_is_not_well() {
        let recorder = metrics_util::debugging::DebuggingRecorder::new();
        let shown = recorder.snapshotter();
        let _local = metrics::set_default_local_recorder(&recorder);
        let counts = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
        let asked = std::sync::Arc::clone(&counts);
        // The first count succeeds, the next four fail, and one of these hangs.
        let count_backlog = move |_| -> BoxFuture<'static, Result<Option<Backlog>, String>> {
            match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
                1 => Box::pin(std::future::pending()),
                2..=4 => Box::pin(async { Err("no right".into()) }),
                _ => Box::pin(async { Ok(Some(Backlog { complete: true, ..Backlog::default() })) }),
            }
        };
        let reporting = report_backlog(count_backlog, "script", Duration::from_secs(1), Duration::from_secs(15));
        tokio::pin!(reporting);
        // Counts at 2, 12 (timed out at 17), 22, 32, 42 and 52 s.
        let begun = Instant::now();
        let (stuck, complete) = ("shardwise_outbox_stuck", "shardwise_outbox_backlog_complete");
        // A gauge that was read is 0 until it is set again.
        for (seconds, gauge, expected) in [(5, complete, 1.0), (25, stuck, 0.0), (35, stuck, 1.0), (55, complete, 1.0)] {
            let _ = tokio::time::timeout_at(begun + Duration::from_secs(seconds), &mut reporting).await;
            assert_eq!(value(&shown, gauge), Some(expected), "{gauge} after {seconds} s, {counts:?} counts");
        }
    }

    #[derive(Clone, Default)]
    struct Logged(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

    impl std::io::Write for Logged {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_log_warns_at_its_default_level_of_slots_without_a_publisher() {
        let logged = Logged::default();
        let writer = logged.clone();
        let _log = tracing::subscriber::set_default(
            tracing_subscriber::fmt().with_ansi(false).with_max_level(tracing::Level::INFO).with_writer(move || writer.clone()).finish(),
        );
        let lines = || String::from_utf8_lossy(&logged.0.lock().unwrap()).lines().map(str::to_owned).collect::<Vec<_>>();
        let begun = Instant::now();
        // Three slots have no holder until the 45th second.
        let count_backlog = move |_| -> BoxFuture<'static, Result<Option<Backlog>, String>> {
            let free_slots = if begun.elapsed() < Duration::from_secs(45) { 3 } else { 0 };
            Box::pin(async move { Ok(Some(Backlog { complete: true, free_slots, unpublished: 7, ..Backlog::default() })) })
        };
        let reporting = report_backlog(count_backlog, "script", Duration::from_secs(1), Duration::from_secs(15));
        tokio::pin!(reporting);
        // Counts at 2, 12, 22, 32, 42 and 52 s.
        for (seconds, said) in [(15, 0), (25, 1), (44, 1), (55, 2)] {
            let _ = tokio::time::timeout_at(begun + Duration::from_secs(seconds), &mut reporting).await;
            assert_eq!(lines().len(), said, "after {seconds} s: {:?}", lines());
        }
        let warning = &lines()[0];
        for part in ["WARN", "slots=3", "events=7", "no publisher has held these slots", "shardwise outbox status"] {
            assert!(warning.contains(part), "{part} is not in {warning}");
        }
        assert!(lines()[1].contains("has a living publisher again"), "{:?}", lines());
    }

    #[tokio::test]
    async fn slots_without_a_publisher_are_said_once_after_a_ttl_and_once_when_they_have_one() {
        let (mut unserved, begun, ttl) = (UnservedSlots::default(), Instant::now(), Duration::from_secs(15));
        let mut observe = |free, seconds| unserved.observe(free, ttl, begun + Duration::from_secs(seconds));
        assert_eq!([observe(3, 0), observe(0, 10), observe(3, 20), observe(2, 30)], [None, None, None, None], "no TTL has passed");
        assert_eq!([observe(2, 35), observe(2, 50)], [Some(true), None]);
        assert_eq!([observe(0, 60), observe(0, 70)], [Some(false), None]);
        assert_eq!([observe(1, 80), observe(1, 95)], [None, Some(true)], "again");
    }
}
