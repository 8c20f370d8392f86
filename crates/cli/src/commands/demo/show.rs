//! What the demo shows while it runs: bars on a terminal, plain lines elsewhere, nothing but the end with `--json`.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::Instant;

/// How often rates are measured.
const RATE_EVERY: Duration = Duration::from_millis(500);
/// Full, filling, empty.
const BAR: &str = "██░";

pub(super) struct DemoDisplay {
    quiet: bool,
    bars: Option<MultiProgress>,
    total: Option<ProgressBar>,
    workers: BTreeMap<String, WorkerBar>,
    slots: u64,
    measured: Instant,
}

struct WorkerBar {
    bar: ProgressBar,
    delivered: u64,
    at_last_measure: u64,
    rate: f64,
    killed: bool,
}

impl DemoDisplay {
    pub(super) fn new(quiet: bool, slots: u32) -> Self {
        let bars =
            (!quiet && std::io::stderr().is_terminal()).then(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10)));
        Self { quiet, bars, total: None, workers: BTreeMap::new(), slots: slots.into(), measured: Instant::now() }
    }

    /// One line that stays.
    pub(super) fn line(&self, line: impl std::fmt::Display) {
        match &self.bars {
            _ if self.quiet => {}
            // With the terminal gone there is nobody left to tell.
            Some(bars) => drop(bars.println(line.to_string())),
            None => crate::output::note(line),
        }
    }

    pub(super) fn worker(&mut self, name: &str) {
        let bar = ProgressBar::hidden();
        let bar = self.bars.as_ref().map_or_else(|| bar.clone(), |bars| bars.add(ProgressBar::new(self.slots)));
        if let Ok(style) = ProgressStyle::with_template("  {prefix:<10} {bar:30} {msg}") {
            bar.set_style(style.progress_chars(BAR));
        }
        bar.set_prefix(name.to_owned());
        bar.set_message("starting");
        self.workers.insert(name.to_owned(), WorkerBar { bar, delivered: 0, at_last_measure: 0, rate: 0.0, killed: false });
    }

    /// That worker was killed; its bar empties when the others have its slots.
    pub(super) fn killed(&mut self, name: &str) {
        if let Some(worker) = self.workers.get_mut(name) {
            worker.killed = true;
        }
    }

    /// One event delivered by that worker.
    pub(super) fn delivered_by(&mut self, name: &str) {
        if let Some(worker) = self.workers.get_mut(name) {
            worker.delivered += 1;
        }
    }

    /// The present shares, and how far it all is.
    pub(super) fn update(&mut self, shares: &BTreeMap<String, u32>, delivered: u64, planned: u64) {
        let Some(bars) = &self.bars else { return };
        let total = self.total.get_or_insert_with(|| {
            let bar = bars.insert(0, ProgressBar::new(planned));
            bar.set_style(
                ProgressStyle::with_template("  delivered  {bar:30} {pos:>5} events")
                    .unwrap_or_else(|_| ProgressStyle::default_bar())
                    .progress_chars(BAR),
            );
            bar
        });
        total.set_length(planned.max(delivered));
        total.set_position(delivered);
        let since = self.measured.elapsed();
        let measures = since >= RATE_EVERY;
        if measures {
            self.measured = Instant::now();
        }
        for (name, worker) in &mut self.workers {
            if measures {
                worker.rate = (worker.delivered - worker.at_last_measure) as f64 / since.as_secs_f64();
                worker.at_last_measure = worker.delivered;
            }
            let slots = shares.get(name).copied().unwrap_or(0);
            worker.bar.set_position(slots.into());
            if worker.killed {
                worker.bar.set_message(format!("{slots:>5} slots  killed"));
            } else if slots > 0 {
                worker.bar.set_message(format!("{slots:>5} slots {:>7.0} events/s", worker.rate));
            }
        }
    }

    /// The bars go; what was said stays.
    pub(super) fn end(&self) {
        // Each one by itself: a bar that is only cleared is drawn once more when it is dropped.
        for bar in self.workers.values().map(|worker| &worker.bar).chain(&self.total) {
            bar.finish_and_clear();
        }
    }
}
