//! Benchmarks that are separate programs, which print figures as JSON, and what these must reach.

use serde_json::Value;

use crate::failure::TaskFailure;
use crate::measured::row;
use crate::report::say;

/// A figure and the limit that it must reach.
pub(crate) struct Goal {
    pub(crate) what: &'static str,
    pub(crate) wanted: Limit,
    pub(crate) found: fn(&[Value]) -> Option<f64>,
}

pub(crate) enum Limit {
    Above(f64),
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
}

impl Limit {
    fn is_reached(&self, found: f64) -> bool {
        match *self {
            Self::Above(limit) => found > limit,
            Self::AtLeast(limit) => found >= limit,
            Self::AtMost(limit) => found <= limit,
            Self::Below(limit) => found < limit,
        }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Above(limit) => write!(f, "more than {limit}"),
            Self::AtLeast(limit) => write!(f, "{limit} or more"),
            Self::AtMost(limit) => write!(f, "{limit} or less"),
            Self::Below(limit) => write!(f, "below {limit}"),
        }
    }
}

/// The page of a benchmark, with the verdicts on its goals behind it.
pub(crate) fn page(figures: &[Value], goals: &[Goal], page: fn(&[Value]) -> String) -> Result<String, TaskFailure> {
    if figures.is_empty() {
        return Err(TaskFailure::new("the benchmark printed no figures"));
    }
    let text = page(figures) + &verdicts(figures, goals);
    say(&text);
    Ok(text)
}

pub(crate) fn verdicts(figures: &[Value], goals: &[Goal]) -> String {
    let mut text = "\n| | wanted | found | |\n|---|---:|---:|---|\n".to_owned();
    for Goal { what, wanted, found } in goals {
        let found = found(figures);
        let verdict = found.map_or("not measured", |found| if wanted.is_reached(found) { "reached" } else { "missed" });
        let digits = if found.is_some_and(|found| found >= 100.0) { 0 } else { 2 };
        let found = found.map_or_else(|| "–".into(), |found| format!("{found:.digits$}"));
        text += &row([*what, &wanted.to_string(), &found, verdict]);
    }
    text
}

/// The goals that were missed, or not measured.
pub(crate) fn missed(figures: &[Value], goals: &[Goal]) -> Vec<&'static str> {
    let is_reached = |goal: &&Goal| (goal.found)(figures).is_some_and(|found| goal.wanted.is_reached(found));
    goals.iter().filter(|goal| !is_reached(goal)).map(|goal| goal.what).collect()
}

pub(crate) fn median(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = numbers.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// The numbers in `field` of all figures whose `key` is `name`.
pub(crate) fn numbers<'a>(figures: &'a [Value], key: &'a str, name: &'a str, field: &'a str) -> impl Iterator<Item = f64> + 'a {
    figures.iter().filter(move |figure| figure[key] == name).filter_map(move |figure| figure[field].as_f64())
}
