//! When delivered rows are deleted, and how many in one step: small steps while there is little to delete, and the full rate while there
//! is much.
//!
//! A step holds the locks of its rows, so it grows only while steps are short. Between two steps the store is free for other work for part
//! of the step's duration, or for as long as the step blocked other writers, so that a long deletion delays neither publishing nor
//! writing. While most old rows cannot be deleted yet because they are pending, the scan is slow.

use std::time::Duration;

use shardwise::Moment;

use crate::store::SweepResult;

/// The rows of a step: at first and at most.
pub(super) const ROWS: usize = 1_000;
const ROWS_MAX: usize = 16_000;
/// The pause between two steps while there is more to delete: the longest, and as a fraction of the last step's duration.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_PART: u32 = 4;
/// The interval between two steps while there is nothing more.
pub(super) const EVERY: Duration = Duration::from_mins(1);
/// A step that takes less time may be larger next time; a longer step must be smaller next time.
const SHORT: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Retention {
    sweep_at: Moment,
    position: i64,
    rows: usize,
    began: Moment,
    clean_at: Moment,
}

impl Default for Retention {
    fn default() -> Self {
        Self { sweep_at: Moment::ZERO, position: 0, rows: ROWS, began: Moment::ZERO, clean_at: Moment::ZERO }
    }
}

impl Retention {
    pub(super) fn should_sweep(&self, now: Moment) -> bool {
        now >= self.sweep_at
    }

    /// A step begins: returns where, and its largest number of rows.
    pub(super) fn sweeping(&mut self, now: Moment) -> (i64, usize) {
        self.began = now;
        (self.position, self.rows)
    }

    /// A step has ended. If it returned a position to continue from, it was full of rows that are old enough for `retention`, or, with a
    /// retention of zero, more aggregates remain to be visited, most of which have nothing to delete.
    pub(super) fn swept(&mut self, swept: SweepResult, retention: Duration, now: Moment) {
        self.position = swept.resume.unwrap_or(0);
        let took = now.since(self.began);
        let finds_little = retention.is_zero() || swept.deleted < self.rows / 2;
        (self.sweep_at, self.rows) = match swept.resume {
            None => (now.plus(EVERY), ROWS),
            Some(_) if finds_little => (now.plus(PAUSE.max(swept.shut)), ROWS),
            Some(_) => {
                let rows = if took < SHORT {
                    (self.rows * 2).min(ROWS_MAX)
                } else if took > LONG {
                    (self.rows / 2).max(ROWS)
                } else {
                    self.rows
                };
                (now.plus((took / PAUSE_PART).min(PAUSE).max(swept.shut)), rows)
            }
        };
    }

    pub(super) fn sweep_failed(&mut self, now: Moment) {
        (self.sweep_at, self.rows) = (now.plus(EVERY), ROWS);
    }

    pub(super) fn should_clean(&self, now: Moment) -> bool {
        now >= self.clean_at
    }

    pub(super) fn cleaned(&mut self, more: bool, now: Moment) {
        self.clean_at = now.plus(if more { PAUSE } else { EVERY });
    }

    pub(super) fn wake_at(&self) -> Moment {
        self.sweep_at.min(self.clean_at)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{HOLD, at, holding, options};
    use super::super::{EngineAction, EngineInput};
    use super::*;
    use crate::PublisherOptions;
    use crate::sink::SinkLimits;
    use crate::store::TouchReply;

    /// Simulates ten seconds of a store that has `rows` old rows and takes `cost` to delete a thousand of them. Returns each step: when it
    /// began (ms), its rows, and how long it took.
    fn sweep(retention: Duration, rows: usize, cost: Duration) -> Vec<(u64, usize, Duration)> {
        sweep_of(retention, rows, cost, |rows, _| SweepResult { deleted: rows, ..SweepResult::default() })
    }

    /// The same; `swept` returns the result of a step from its number of rows and its duration.
    fn sweep_of(
        retention: Duration,
        mut rows: usize,
        cost: Duration,
        swept: impl Fn(usize, Duration) -> SweepResult,
    ) -> Vec<(u64, usize, Duration)> {
        let mut engine = holding(PublisherOptions { retention, ..options() }, SinkLimits::default());
        let (mut steps, mut ends) = (Vec::new(), None);
        for ms in 3..10_003 {
            let now = at(ms);
            if let Some((end, full)) = ends
                && now >= end
            {
                engine.on(EngineInput::Swept(full), now);
                ends = None;
            }
            for action in engine.next(now) {
                match action {
                    EngineAction::Sweep { limit, .. } => {
                        let took = cost.mul_f64(limit.min(rows) as f64 / 1_000.0);
                        steps.push((ms, limit.min(rows), took));
                        let resume = (rows >= limit).then_some(7);
                        ends = Some((now.plus(took), SweepResult { resume, ..swept(limit.min(rows), took) }));
                        rows -= limit.min(rows);
                    }
                    EngineAction::Touch => engine.on(EngineInput::Touched { started: now, touch: TouchReply::Seen(vec![HOLD]) }, now),
                    _ => {}
                }
            }
        }
        steps
    }

    /// Deleting the rows that a publisher delivers in a second must not take longer than a second.
    #[test]
    fn a_backlog_of_old_rows_goes_as_fast_as_a_publisher_delivers() {
        let steps = sweep(Duration::from_hours(6), 100_000_000, Duration::from_millis(5));
        let gone: usize = steps.iter().map(|(_, rows, _)| rows).sum();
        assert!(gone > 1_000_000, "{gone} rows in ten seconds, where 100,000 a second may be delivered: {steps:?}");
        assert!(steps.iter().all(|(_, rows, took)| *rows <= ROWS_MAX && *took <= LONG), "no step is long: {steps:?}");
        let busy: Duration = steps.iter().map(|(.., took)| *took).sum();
        assert!(busy < Duration::from_secs(9), "{busy:?} of ten seconds: the store is others' for a part of the time");
    }

    #[test]
    fn what_is_old_and_may_not_go_is_looked_through_at_leisure() {
        let few = |rows, _| SweepResult { deleted: rows / 3, ..SweepResult::default() };
        let steps = sweep_of(Duration::from_hours(6), 100_000_000, Duration::from_millis(5), few);
        assert!(steps.iter().all(|(_, rows, _)| *rows == ROWS) && steps.len() < 200, "{steps:?}");
    }

    #[test]
    fn where_no_other_writes_meanwhile_others_have_as_much_time() {
        let alone = |rows, took| SweepResult { deleted: rows, shut: took, ..SweepResult::default() };
        let steps = sweep_of(Duration::from_hours(6), 100_000_000, Duration::from_millis(5), alone);
        let busy: Duration = steps.iter().map(|(.., took)| *took).sum();
        assert!(busy <= Duration::from_millis(5_100), "{busy:?} of ten seconds: {steps:?}");
    }

    #[test]
    fn a_slow_store_gets_small_steps_and_pauses() {
        let steps = sweep(Duration::from_hours(6), 100_000_000, Duration::from_millis(400));
        assert!(steps.iter().all(|(_, rows, _)| *rows == ROWS), "{steps:?}");
        assert!(steps.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 450), "{steps:?}");
    }

    #[test]
    fn once_all_is_gone_it_looks_again_after_a_minute_and_begins_small() {
        let steps = sweep(Duration::from_hours(6), 10_000, Duration::from_millis(5));
        assert_eq!(steps.iter().map(|(_, rows, _)| *rows).collect::<Vec<_>>(), [1_000, 2_000, 4_000, 3_000]);
    }

    /// With a retention of zero there is usually nothing to delete, however many aggregates are visited.
    #[test]
    fn looking_through_aggregates_has_time() {
        let steps = sweep(Duration::ZERO, 100_000_000, Duration::from_millis(1));
        assert!(steps.iter().all(|(_, rows, _)| *rows == ROWS) && steps.len() < 200, "{steps:?}");
    }
}
