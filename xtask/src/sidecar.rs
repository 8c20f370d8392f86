//! `cargo xtask bench sidecar`: the program `crates/cli/benches/sidecar` prints its figures; this judges them and writes the page.

use std::fmt::Write as _;

use serde_json::Value;

use crate::context::TaskContext;
use crate::report::say;
use crate::run::{HUNG_AFTER, StepLog, TaskFailure};

/// The benchmark that this is about.
pub(crate) const NAME: &str = "sidecar";

const MIB: f64 = 1024.0 * 1024.0;
/// How much more memory a body of four times the length may take at its peak and still count as none.
const GROWTH_MAX: f64 = 8.0;

/// How often the page is opened.
const OPENED: usize = 5;

const WHAT: &str = "A real `shardwise serve`, alone in its group on the backend `local` (TTL 3 s), asked over loopback by one process \
    with plain blocking sockets that shares the cores with it; the load generator is our own, not `wrk`. Lists and streams come back \
    whole, because everything is the worker's own. Peak memory is the process's `VmHWM`, forgotten before each row. How late renewals are \
    is what `shardwise_deadline_margin_seconds` loses under load (16 connections that ask for owners, two that send lists) against the \
    same sidecar idle. The page: a release build and headless Chromium, opened anew five times.";

/// The limits that must be reached: the figure, one of its numbers, and the bound.
struct SidecarGoal {
    what: &'static str,
    found: fn(&SidecarFigures) -> Option<f64>,
    reached: fn(f64) -> bool,
}

const GOALS: [SidecarGoal; 6] = [
    SidecarGoal {
        what: "100,000 keys in JSON, round trip in ms (fastest), wanted below 60",
        found: |figures| figures.number("list", "fastest_ms"),
        reached: |found| found < 60.0,
    },
    SidecarGoal {
        what: "1,000,000 keys as a stream of text, in ms (fastest), wanted below 600",
        found: |figures| figures.number("stream", "fastest_ms"),
        reached: |found| found < 600.0,
    },
    SidecarGoal {
        what: "peak memory that four times the body takes more, in MiB, wanted none (below 8)",
        found: |figures| Some((figures.number("memory", "four_times")? - figures.number("memory", "once")?).max(0.0) / MIB),
        reached: |found| found < GROWTH_MAX,
    },
    SidecarGoal {
        what: "`owner` requests a second over 16 connections, wanted 15,000",
        found: |figures| figures.number("owner", "best"),
        reached: |found| found >= 15_000.0,
    },
    SidecarGoal {
        what: "margin of the worst renewal beside a minute of load, in ms, wanted above 0 and no lease lost",
        found: |figures| if figures.number("renewals", "lost")? > 0.0 { Some(0.0) } else { figures.number("renewals", "margin_lowest_ms") },
        reached: |found| found > 0.0,
    },
    SidecarGoal {
        what: "the page with 200 members and 16,384 slots, in ms until it can be used (slowest of five), wanted below 1,000",
        found: |figures| {
            figures
                .0
                .iter()
                .filter(|figures| figures["figure"] == "page")
                .filter_map(|figures| figures["usable_ms"].as_f64())
                .max_by(f64::total_cmp)
        },
        reached: |found| found < 1_000.0,
    },
];

/// All figures that the program printed.
struct SidecarFigures(Vec<Value>);

impl SidecarFigures {
    fn number(&self, figure: &str, field: &str) -> Option<f64> {
        self.0.iter().find(|figures| figures["figure"] == figure)?[field].as_f64()
    }
}

/// Runs it and gives back the section's text.
pub(crate) fn run(context: &TaskContext, head: &str) -> Result<String, TaskFailure> {
    let log = StepLog::begin(context, "bench")?;
    let bench = context.cargo(&["bench", "--package", "shardwise-cli", "--bench", NAME]);
    let open = || context.cargo(&["test", "--release", "--package", "shardwise-sidecar", "--test", "page", "two_hundred"]);
    let commands = std::iter::once(bench).chain((0..OPENED).map(|_| open()));
    let figures = SidecarFigures(log.figures("SHARDWISE_SIDECAR_FIGURES", HUNG_AFTER, commands)?);
    if figures.0.is_empty() {
        return Err(TaskFailure::new("the benchmark told no figures"));
    }
    let page = page(&figures);
    say(&page);
    Ok(format!("## {NAME}\n\n{head}\n\n{page}"))
}

/// Writing to a String cannot fail, so what `writeln!` answers is let go.
fn page(figures: &SidecarFigures) -> String {
    let number = |figure, field| figures.number(figure, field).unwrap_or(f64::NAN);
    let mut text = format!("{WHAT}\n\n| | fastest | median |\n|---|---:|---:|\n");
    for (figure, title) in [("list", "keys in JSON"), ("stream", "keys as a stream of text")] {
        let [keys, fastest, median] = ["keys", "fastest_ms", "median_ms"].map(|field| number(figure, field));
        let _ = writeln!(text, "| {keys} {title} | {fastest:.1} ms | {median:.1} ms |");
    }
    let _ = writeln!(
        text,
        "| `owner` over 16 connections | {:.0} a second | {:.0} a second |",
        number("owner", "best"),
        number("owner", "median")
    );
    let [idle, once, more] = ["idle", "once", "four_times"].map(|field| number("memory", field) / MIB);
    let _ = writeln!(text, "\nPeak memory: {idle:.1} MiB idle, {once:.1} MiB with the stream, {more:.1} MiB with one four times as long.");
    let [seconds, owners, lists, late] = ["seconds", "owners", "lists", "late_ms"].map(|field| number("renewals", field));
    let _ = writeln!(
        text,
        "Renewals beside {seconds:.0} s of load ({owners:.0} owners, {lists:.0} lists): at worst {late:.0} ms later than idle, {} leases \
         lost.",
        number("renewals", "lost")
    );
    text += "\n| wanted | found | |\n|---|---:|---|\n";
    for goal in GOALS {
        let (found, verdict) = match (goal.found)(figures) {
            Some(found) => {
                let shown = if found < 100.0 { format!("{found:.1}") } else { format!("{found:.0}") };
                (shown, if (goal.reached)(found) { "reached" } else { "missed" })
            }
            None => ("–".into(), "not measured"),
        };
        let _ = writeln!(text, "| {} | {found} | {verdict} |", goal.what);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_wanted_figure_has_its_verdict() {
        let figures = SidecarFigures(vec![
            json!({"figure": "list", "keys": 100_000, "fastest_ms": 41.25, "median_ms": 70.0}),
            json!({"figure": "stream", "keys": 1_000_000, "fastest_ms": 600.0, "median_ms": 700.0}),
            json!({"figure": "memory", "idle": 20_971_520, "once": 31_457_280, "four_times": 30_408_704}),
            json!({"figure": "owner", "best": 15_000.0, "median": 14_000.0}),
            json!({
                "figure": "renewals", "seconds": 60.0, "owners": 9, "lists": 2, "late_ms": 12.0, "margin_lowest_ms": 1_800.0, "lost": 1
            }),
            json!({"figure": "page", "usable_ms": 480.0}),
            json!({"figure": "page", "usable_ms": 612.0}),
        ]);
        let page = page(&figures);
        for line in [
            "| 100000 keys in JSON | 41.2 ms | 70.0 ms |\n",
            "wanted below 60 | 41.2 | reached |\n",
            "wanted below 600 | 600 | missed |\n",
            "wanted none (below 8) | 0.0 | reached |\n",
            "wanted 15,000 | 15000 | reached |\n",
            "no lease lost | 0.0 | missed |\n",
            "wanted below 1,000 | 612 | reached |\n",
            "20.0 MiB idle, 30.0 MiB with the stream, 29.0 MiB",
        ] {
            assert!(page.contains(line), "{line}: {page}");
        }
        assert!(super::page(&SidecarFigures(Vec::new())).contains("| – | not measured |"));
    }
}
