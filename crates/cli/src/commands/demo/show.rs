//! The demo's display: bars on a terminal, plain lines elsewhere, only the result with `--json`.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::output;
use crate::redrawn::RedrawnLines;

const RATE_EVERY: Duration = Duration::from_millis(500);
const BAR_COLUMNS: u64 = 30;

pub(super) struct DemoDisplay {
    quiet: bool,
    /// `None` without a terminal.
    bars: Option<RedrawnLines>,
    /// In order of appearance.
    workers: Vec<WorkerBar>,
    slots: u64,
    measured: Instant,
}

struct WorkerBar {
    name: String,
    delivered: u64,
    at_last_measure: u64,
    rate: f64,
    killed: bool,
}

impl DemoDisplay {
    pub(super) fn new(quiet: bool, slots: u32) -> Self {
        let bars = if quiet { None } else { RedrawnLines::on_terminal() };
        Self { quiet, bars, workers: Vec::new(), slots: slots.into(), measured: Instant::now() }
    }

    /// Prints a line that stays.
    pub(super) fn line(&mut self, line: impl std::fmt::Display) {
        match &mut self.bars {
            _ if self.quiet => {}
            Some(bars) => bars.print(&line.to_string()),
            None => output::note(line),
        }
    }

    pub(super) fn worker(&mut self, name: &str) {
        self.workers.push(WorkerBar { name: name.to_owned(), delivered: 0, at_last_measure: 0, rate: 0.0, killed: false });
    }

    /// That worker was killed; its bar empties when the others have its slots.
    pub(super) fn killed(&mut self, name: &str) {
        if let Some(worker) = self.named(name) {
            worker.killed = true;
        }
    }

    pub(super) fn delivered_by(&mut self, name: &str) {
        if let Some(worker) = self.named(name) {
            worker.delivered += 1;
        }
    }

    fn named(&mut self, name: &str) -> Option<&mut WorkerBar> {
        self.workers.iter_mut().find(|worker| worker.name == name)
    }

    /// Shows the present shares and the progress.
    pub(super) fn update(&mut self, shares: &BTreeMap<String, u32>, delivered: u64, planned: u64) {
        let Some(bars) = &mut self.bars else { return };
        let since = self.measured.elapsed();
        if since >= RATE_EVERY {
            self.measured = Instant::now();
            for worker in &mut self.workers {
                worker.rate = (worker.delivered - worker.at_last_measure) as f64 / since.as_secs_f64();
                worker.at_last_measure = worker.delivered;
            }
        }
        let total = format!("  {:<10} {} {delivered:>5} events", "delivered", bar(delivered, planned.max(delivered)));
        let workers = self.workers.iter().map(|worker| worker.line(shares.get(&worker.name).copied().unwrap_or(0).into(), self.slots));
        bars.show(std::iter::once(total).chain(workers).collect());
    }

    /// Removes the bars; printed lines stay.
    pub(super) fn end(&mut self) {
        self.bars = None;
    }
}

impl WorkerBar {
    fn line(&self, slots: u64, of: u64) -> String {
        let state = match slots {
            _ if self.killed => format!("{slots:>5} slots  killed"),
            0 if self.delivered == 0 => "starting".to_owned(),
            _ => format!("{slots:>5} slots {:>7.0} events/s", self.rate),
        };
        format!("  {:<10} {} {state}", self.name, bar(slots, of))
    }
}

/// A bar that is full when `part` equals `whole`.
fn bar(part: u64, whole: u64) -> String {
    let full = (part * BAR_COLUMNS + whole / 2).checked_div(whole).unwrap_or(0).min(BAR_COLUMNS);
    (0..BAR_COLUMNS).map(|column| if column < full { '█' } else { '░' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_part() {
        let full = |part, whole| bar(part, whole).chars().filter(|c| *c == '█').count();
        assert_eq!([full(0, 9), full(3, 9), full(9, 9), full(12, 9), full(0, 0)], [0, 10, 30, 30, 0]);
        assert_eq!(bar(1, 2).chars().count(), 30);
    }
}
