//! Figures of many runs, and what is said of them.

use serde_json::Value;

/// One figure of every run, sorted.
pub(super) struct Figures(Vec<f64>);

impl Figures {
    /// The figure called `field` of every run that has it.
    pub(super) fn of<'a>(runs: impl IntoIterator<Item = &'a Value>, field: &str) -> Self {
        let mut numbers: Vec<f64> = runs.into_iter().filter_map(|run| run[field].as_f64()).collect();
        numbers.sort_by(f64::total_cmp);
        Self(numbers)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The smallest that at least `percent` of 100 do not exceed.
    pub(super) fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied().unwrap_or_default()
    }

    pub(super) fn median(&self) -> f64 {
        self.percentile(50)
    }

    pub(super) fn worst(&self) -> f64 {
        self.percentile(100)
    }
}

/// Whole milliseconds where they are many, tenths where they are few.
pub(super) fn number(value: f64) -> String {
    if value.fract() == 0.0 || value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_figures() {
        let runs: Vec<_> = (1..=200).rev().map(|ms| serde_json::json!({ "ms": ms, "other": 0.5 })).collect();
        let figures = Figures::of(&runs, "ms");
        assert_eq!([figures.median(), figures.percentile(99), figures.worst()].map(number), ["100", "198", "200"]);
        assert_eq!(number(Figures::of(&runs[..3], "ms").percentile(99)), "200", "of few it is the worst");
        assert!(Figures::of(&runs, "none").is_empty());
        assert_eq!(number(Figures::of(&runs, "other").worst()), "0.5");
    }
}
