//! Figures of many runs, and what is said of them.

use serde_json::Value;

use crate::failure::TaskFailure;
use crate::measured::row;

/// One figure of every run, sorted.
pub(super) struct Figures(Vec<f64>);

impl Figures {
    /// The figure called `field` of every run that has it.
    pub(super) fn of<'a>(runs: impl IntoIterator<Item = &'a Value>, field: &str) -> Self {
        let mut numbers: Vec<f64> = runs.into_iter().filter_map(|run| run[field].as_f64()).collect();
        numbers.sort_by(f64::total_cmp);
        Self(numbers)
    }

    /// The smallest that at least `percent` of 100 do not exceed; none of no runs.
    pub(super) fn percentile(&self, percent: usize) -> Option<f64> {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied()
    }

    pub(super) fn median(&self) -> Option<f64> {
        self.percentile(50)
    }

    pub(super) fn worst(&self) -> Option<f64> {
        self.percentile(100)
    }
}

/// Whole milliseconds where they are many, tenths where they are few.
pub(super) fn number(value: f64) -> String {
    if value.fract() == 0.0 || value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

/// A number, or a dash for what was not measured.
pub(super) fn number_or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "–".into(), number)
}

/// One row of a table: a figure on each backend.
pub(super) fn each_backend(what: &str, backends: &[&str], cell: impl Fn(&str) -> Option<String>) -> Result<String, TaskFailure> {
    let cell = |&backend: &&str| cell(backend).ok_or_else(|| TaskFailure::new(format!("{backend} has no figure of: {what}")));
    let cells = backends.iter().map(cell).collect::<Result<Vec<_>, _>>()?;
    Ok(row(std::iter::once(what.to_owned()).chain(cells)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_figures() {
        let runs: Vec<_> = (1..=200).rev().map(|ms| serde_json::json!({ "ms": ms, "other": 0.5 })).collect();
        let figures = Figures::of(&runs, "ms");
        assert_eq!([figures.median(), figures.percentile(99), figures.worst()].map(number_or_dash), ["100", "198", "200"]);
        assert_eq!(Figures::of(&runs[..3], "ms").percentile(99), Some(200.0), "of few it is the worst");
        assert_eq!(Figures::of(&runs, "none").worst(), None);
        assert_eq!(number_or_dash(Figures::of(&runs, "other").worst()), "0.5");
    }
}
