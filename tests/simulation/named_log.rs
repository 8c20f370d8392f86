//! What singletons, daemons and timers do, wherever they run: written down by the work itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardwise::{ClaimName, Period, Tenure};

/// Where work under names is going on, and what was fired. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct NamedLog(Arc<Mutex<Shown>>);

#[derive(Default)]
struct Shown {
    begun: u64,
    /// By the order in which it was begun: which worker's, and by what right.
    running: BTreeMap<u64, (usize, Tenure)>,
    periods: BTreeSet<u64>,
    wrong: Option<String>,
}

/// Work that goes on as long as this lives.
struct Running(u64, NamedLog);

impl NamedLog {
    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Work under a name: until it is cancelled, and then for `winds_down`.
    ///
    /// # Errors
    ///
    /// Never.
    pub(crate) async fn work(self, worker: usize, tenure: Tenure, winds_down: Duration) -> Result<(), String> {
        let begun = {
            let mut shown = self.shown();
            shown.begun += 1;
            let begun = shown.begun;
            shown.running.insert(begun, (worker, tenure.clone()));
            begun
        };
        let _running = Running(begun, self);
        tenure.cancel().cancelled().await;
        tokio::time::sleep(winds_down).await;
        Ok(())
    }

    /// A timer's job begins.
    pub(crate) fn fires(&self, worker: usize, period: Period, tenure: &Tenure) {
        let mut shown = self.shown();
        let number = period.number;
        if !shown.periods.insert(number) {
            shown.wrong = Some(format!("period {number} is fired twice, the second time by worker {worker} under {tenure:?}"));
        } else if !tenure.is_held() {
            shown.wrong = Some(format!("period {number} is fired by worker {worker}, whose right to it is over: {tenure:?}"));
        }
    }

    pub(crate) fn periods(&self) -> u64 {
        self.shown().periods.len() as u64
    }

    /// What is wrong, if anything is: work under one name goes on twice, each by right and by its own clock.
    pub(crate) fn check(&self) -> Result<(), String> {
        let shown = self.shown();
        if let Some(wrong) = &shown.wrong {
            return Err(wrong.clone());
        }
        let mut alive: BTreeMap<&ClaimName, (usize, &Tenure)> = BTreeMap::new();
        for (worker, tenure) in shown.running.values().filter(|(_, tenure)| tenure.is_held()) {
            if let Some((other, by)) = alive.insert(tenure.name(), (*worker, tenure)) {
                return Err(format!("{} has two holders: workers {other} under {by:?} and {worker} under {tenure:?}", tenure.name()));
            }
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.1.shown().running.remove(&self.0);
    }
}
