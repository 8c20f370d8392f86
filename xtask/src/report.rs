//! What the person at the terminal reads.

use std::io::Write as _;
use std::time::Duration;

use crate::pass::StepPass;

/// One line on standard output, at once. A closed output is no reason to stop checking.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

pub(crate) struct ReportRow {
    pub(crate) step: &'static str,
    pub(crate) took: Duration,
    pub(crate) failed: u64,
    /// What passed, also if something failed.
    pub(crate) pass: StepPass,
}

/// The table of steps, the line `N passed, M failed` and, last, a line for each step that could not check anything.
pub(crate) fn table(rows: &[ReportRow]) -> String {
    let mut text = format!("{:<14}{:>9}{:>9}{:>9}\n", "step", "seconds", "passed", "failed");
    let mut line = |step: &str, took: Duration, passed: u64, failed: u64, note: &str| {
        text += format!("{step:<14}{:>9.1}{passed:>9}{failed:>9}  {note}", took.as_secs_f64()).trim_end();
        text += "\n";
    };
    for row in rows {
        line(row.step, row.took, row.pass.checks, row.failed, row.pass.note.as_deref().unwrap_or(""));
    }
    let (passed, failed) = (rows.iter().map(|r| r.pass.checks).sum::<u64>(), rows.iter().map(|r| r.failed).sum::<u64>());
    line("total", rows.iter().map(|r| r.took).sum(), passed, failed, "");
    let unchecked = rows.iter().filter_map(|row| Some(format!("\nNOT CHECKED: {}: {}", row.step, row.pass.not_checked.as_ref()?)));
    format!("{text}\n{passed} passed, {failed} failed{}", unchecked.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_ends_with_the_sum() {
        let row = |step, pass, failed| ReportRow { step, took: Duration::from_millis(1_250), failed, pass };
        let text = table(&[row("fmt", StepPass::many(1), 0), row("test", StepPass::many(40), 2)]);
        assert!(text.contains("fmt                 1.2        1        0\n"), "{text}");
        assert!(text.ends_with("\n41 passed, 2 failed"), "{text}");
        let text = table(&[row("fmt", StepPass::many(1), 0), row("advisories", StepPass::not_checked("no network".into()), 0)]);
        assert!(text.ends_with("\n1 passed, 0 failed\nNOT CHECKED: advisories: no network"), "{text}");
    }
}
