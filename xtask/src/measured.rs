//! `docs/internals/measured.md`: one section for each benchmark, replaced whole at every run.

use std::fmt::Display;

use crate::book;
use crate::context::TaskContext;
use crate::failure::TaskFailure;
use crate::files;
use crate::report::say;

/// One benchmark's median time, with the bounds of its 95 % confidence interval.
#[derive(Debug, PartialEq)]
pub(crate) struct BenchmarkFigure {
    pub(crate) name: String,
    pub(crate) nanos: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// The fastest sample: under other load it is more reliable than the mean.
    pub(crate) fastest: f64,
    /// How many things one run of it works on, if it says so.
    pub(crate) elements: Option<f64>,
}

/// The line above the figures: what was measured, and on which machine.
pub(crate) fn head(context: &TaskContext) -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim()));
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    format!("Commit {}; {}, {cores} cores.", revision(context), model.unwrap_or(std::env::consts::ARCH))
}

/// Puts a section of that name into the page: the line above the figures, and the figures.
pub(crate) fn write(context: &TaskContext, name: &str, head: &str, figures: &str) -> Result<(), TaskFailure> {
    let path = context.root().join("docs/internals/measured.md");
    let body = book::wrapped(&format!("{head}\n\n{figures}"));
    files::write(&path, &replace(&files::read(&path)?, name, &body))?;
    say(&format!("docs/internals/measured.md: section {name} is written"));
    Ok(())
}

/// The commit that was measured, and whether the tree had changes beside it; pages like the one that is written do not count.
fn revision(context: &TaskContext) -> String {
    let git = |arguments: &[&str]| {
        let output = context.command("git", arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".into());
    let clean = git(&["status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs"]).is_some_and(|changes| changes.is_empty());
    if clean { commit } else { format!("{commit} with uncommitted changes") }
}

pub(crate) fn row<C: Display>(cells: impl IntoIterator<Item = C>) -> String {
    cells.into_iter().fold(String::from("|"), |row, cell| format!("{row} {cell} |")) + "\n"
}

pub(crate) fn table(figures: &[BenchmarkFigure]) -> String {
    let mut text = "| benchmark | median | 95 % interval | for each element |\n|---|---:|---:|---:|\n".to_owned();
    for f in figures {
        let interval = format!("{} – {}", time(f.low), time(f.high));
        let each = f.elements.map_or_else(String::new, |elements| time(f.nanos / elements));
        text += &row([f.name.clone(), time(f.nanos), interval, each]);
    }
    text
}

/// `document` with the section of that name replaced, or added in the order of the names.
fn replace(document: &str, name: &str, body: &str) -> String {
    let mut sections: Vec<(&str, &str)> = document
        .split("\n## ")
        .skip(1)
        .filter_map(|part| part.split_once('\n'))
        .map(|(title, body)| (title.trim(), body.trim()))
        .filter(|(title, _)| *title != name)
        .collect();
    sections.push((name, body.trim()));
    sections.sort_unstable();
    let head = document.split("\n## ").next().unwrap_or_default();
    sections.iter().fold(format!("{}\n", head.trim()), |text, (title, body)| format!("{text}\n## {title}\n\n{body}\n"))
}

fn time(nanos: f64) -> String {
    let (value, unit) = match nanos {
        n if n < 1e3 => (n, "ns"),
        n if n < 1e6 => (n / 1e3, "µs"),
        n if n < 1e9 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    match value {
        v if v < 10.0 => format!("{v:.2} {unit}"),
        v if v < 100.0 => format!("{v:.1} {unit}"),
        v => format!("{v:.0} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_replaced_and_the_others_stay() {
        let first = replace("# Measured\n", "ring", "old\n");
        let second = replace(&first, "outbox", "figures\n");
        let third = replace(&second, "ring", "new\n");
        assert_eq!(third, "# Measured\n\n## outbox\n\nfigures\n\n## ring\n\nnew\n");
        assert_eq!(replace(&third, "ring", "new\n"), third);
    }

    #[test]
    fn a_figure_has_units_that_are_easy_to_read() {
        let figure = BenchmarkFigure {
            name: "filter/3".into(),
            nanos: 12_345.0,
            low: 12_000.0,
            high: 13_000.0,
            fastest: 12_000.0,
            elements: Some(1_000.0),
        };
        let text = table(&[figure]);
        assert!(text.ends_with("| filter/3 | 12.3 µs | 12.0 µs – 13.0 µs | 12.3 ns |\n"), "{text}");
    }
}
