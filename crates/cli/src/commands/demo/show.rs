//! The demo's display: bars on a terminal, plain lines elsewhere, only the result with `--json`.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::{output, status_line};

/// How often the bars are drawn; also the time over which a rate is measured.
const DRAW_EVERY: Duration = Duration::from_millis(250);
const BAR_COLUMNS: u64 = 30;

pub(super) struct DemoDisplay {
    quiet: bool,
    /// In order of appearance.
    workers: Vec<WorkerBar>,
    slots: u64,
    drawn: Instant,
}

struct WorkerBar {
    name: String,
    delivered: u64,
    delivered_when_drawn: u64,
    killed: bool,
}

impl DemoDisplay {
    pub(super) fn new(quiet: bool, slots: u32) -> Self {
        Self { quiet, workers: Vec::new(), slots: slots.into(), drawn: Instant::now() }
    }

    /// Prints a line that stays.
    pub(super) fn line(&self, line: impl std::fmt::Display) {
        if !self.quiet {
            output::note(line);
        }
    }

    pub(super) fn worker(&mut self, name: &str) {
        self.workers.push(WorkerBar { name: name.to_owned(), delivered: 0, delivered_when_drawn: 0, killed: false });
    }

    /// That worker was killed; its bar empties when the others have its slots.
    pub(super) fn killed(&mut self, name: &str) {
        self.workers.iter_mut().filter(|worker| worker.name == name).for_each(|worker| worker.killed = true);
    }

    pub(super) fn delivered_by(&mut self, name: &str) {
        self.workers.iter_mut().filter(|worker| worker.name == name).for_each(|worker| worker.delivered += 1);
    }

    /// Shows the present shares and the progress.
    pub(super) fn update(&mut self, shares: &BTreeMap<String, u32>, delivered: u64, planned: u64) {
        let since = self.drawn.elapsed();
        if self.quiet || since < DRAW_EVERY || !status_line::is_possible() {
            return;
        }
        self.drawn = Instant::now();
        let mut lines = vec![format!("  {:<10} {} {delivered:>5} events", "delivered", bar(delivered, planned.max(delivered)))];
        for worker in &mut self.workers {
            let slots: u64 = shares.get(&worker.name).copied().unwrap_or(0).into();
            let rate = (worker.delivered - worker.delivered_when_drawn) as f64 / since.as_secs_f64();
            worker.delivered_when_drawn = worker.delivered;
            let state = match slots {
                _ if worker.killed => format!("{slots:>5} slots  killed"),
                0 if worker.delivered == 0 => "starting".to_owned(),
                _ => format!("{slots:>5} slots {rate:>7.0} events/s"),
            };
            lines.push(format!("  {:<10} {} {state}", worker.name, bar(slots, self.slots)));
        }
        status_line::draw(&lines);
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
