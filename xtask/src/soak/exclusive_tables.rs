//! What both soaks of exclusive ownership report: faults and handovers on each backend.

use std::collections::BTreeSet;

use serde_json::Value;

use super::figures::{each_backend, number};
use crate::failure::TaskFailure;

/// Those with every scene.
pub(super) const BACKENDS: [&str; 3] = ["local", "consul", "etcd"];
pub(super) const COLUMNS: Columns = Columns(&BACKENDS);

/// Tables with a column for each of these backends.
pub(super) struct Columns(pub(super) &'static [&'static str]);

/// The fields of a scene with handovers, and what each is.
const HANDS: [(&str, &str); 4] =
    [("slots", "slots handed over"), ("median_ms", "median, ms"), ("p99_ms", "p99, ms"), ("worst_ms", "worst, ms")];

pub(super) fn of<'a>(runs: &'a [Value], scene: &'a str, backend: &'a str) -> impl Iterator<Item = &'a Value> {
    runs.iter().filter(move |run| run["scene"] == scene && run["backend"] == backend)
}

impl Columns {
    /// The first lines of a table.
    pub(super) fn head(&self) -> String {
        format!("| | {} |\n|---|{}\n", self.0.join(" | "), "---:|".repeat(self.0.len()))
    }

    /// One row of a table: a figure on each backend.
    pub(super) fn row(&self, what: &str, cell: impl Fn(&str) -> Option<String>) -> Result<String, TaskFailure> {
        each_backend(what, self.0, cell)
    }

    /// The table of faults: the seed, how often each was caused, and what they came to. `fields` are those of the scene, and what each is.
    pub(super) fn faults(&self, runs: &[Value], fields: &[(&str, &str)]) -> Result<String, TaskFailure> {
        let mut text = self.head();
        text += &self.row("seed (SHARDWISE_SEED)", |backend| Some(of(runs, "faults", backend).next()?["seed"].to_string()))?;
        let kinds: BTreeSet<_> = runs.iter().filter_map(|run| run["counts"].as_object()).flat_map(|counts| counts.keys()).collect();
        for kind in kinds {
            text += &self.row(kind, |backend| {
                Some(of(runs, "faults", backend).next()?["counts"][kind.as_str()].as_u64().unwrap_or_default().to_string())
            })?;
        }
        for (field, what) in fields {
            text += &self.row(what, |backend| {
                let figure = &of(runs, "faults", backend).next()?[*field];
                Some(if figure.is_null() { "–".into() } else { figure.to_string() })
            })?;
        }
        Ok(text)
    }

    /// The table of handovers in good order.
    pub(super) fn hands(&self, runs: &[Value]) -> Result<String, TaskFailure> {
        let mut text = self.head();
        for (field, what) in HANDS {
            text += &self.row(what, |backend| Some(number(of(runs, "hands", backend).next()?[field].as_f64()?)))?;
        }
        Ok(text)
    }
}
