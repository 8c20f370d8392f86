//! `cargo xtask bench outbox`: the program `crates/outbox/benches/outbox` prints its figures; this judges them and writes the page.

use std::fmt::Write as _;

use serde_json::Value;

use crate::context::TaskContext;
use crate::report::say;
use crate::run::{HUNG_AFTER, StepLog, TaskFailure};

/// The benchmark that this is about.
pub(crate) const NAME: &str = "outbox";

/// The contestants, in the order of the page: the name and the shape that the program prints, and their titles.
const CONTESTANTS: [(&str, &str, &str); 12] = [
    ("ceiling", "many", "the ceiling, 10 events an aggregate"),
    ("ours 1", "many", "one publisher"),
    ("ours 2", "many", "two publishers"),
    ("clean 1", "many", "one publisher, in turn with the next"),
    ("poison 1", "many", "one publisher, one aggregate in a hundred poison: the others' events"),
    ("ceiling", "single", "the ceiling, one event an aggregate"),
    ("ours 1", "single", "one publisher"),
    ("ours 2", "single", "two publishers"),
    ("skip locked", "jobs", "two workers with `FOR UPDATE SKIP LOCKED`"),
    ("graphile-worker", "jobs", "graphile-worker"),
    ("nats 1", "many", "one publisher into JetStream"),
    ("nats 2", "many", "two publishers into JetStream"),
];

const WHAT: &str = "Events a second from a full outbox in PostgreSQL (default durability, on the same machine) into a sink that takes \
    everything at once, each publisher a process. The ceiling: one connection that reads rows of the same table in order and marks them \
    with `UPDATE … = ANY` in batches of 1,000, without fence and sequence. `SKIP LOCKED`: two workers on a plain table, batches of 100, \
    deleted in the transaction that locks them, without order. graphile-worker: jobs that do nothing, local queue of 500, batched \
    completion. Poison: the sink refuses every event of 1 % of the aggregates, for the time being; ten pairs a round with and without, \
    judged by their medians, because single drains vary by more than what is to be seen. Each begins on a fresh copy behind a checkpoint, \
    and is connected (our publishers: registered, without slots) when its clock starts; rounds go over all in turn. A look at the backlog \
    for the metrics, which a publisher has every ten seconds, is in the drains of more than two seconds only. Latency: from the writer's \
    return from COMMIT to the sink; the best round is judged, as the fastest is of the rates.";

/// Around the place in the page about the switch `listen` where its cost stands.
const COST_BEGINS: &str = "<!-- the cost of listen, by cargo xtask bench outbox -->";
const COST_ENDS: &str = "<!-- -->";

/// The limits that must be reached.
struct OutboxGoal {
    what: &'static str,
    reached: fn(&OutboxFigures) -> Option<(f64, bool)>,
}

const GOALS: [OutboxGoal; 9] = [
    OutboxGoal {
        what: "one publisher over the ceiling, wanted 0.6",
        reached: |figures| over(figures, ("ours 1", "many"), ("ceiling", "many"), 0.6),
    },
    OutboxGoal {
        what: "two publishers over one, wanted more than 1",
        reached: |figures| over(figures, ("ours 2", "many"), ("ours 1", "many"), 1.0).map(|(ratio, _)| (ratio, ratio > 1.0)),
    },
    OutboxGoal {
        what: "the others' events beside 1 % poison aggregates over all events without, by the medians, wanted 0.95",
        reached: |figures| {
            let ratio = figures.median("poison 1", "many")? / figures.median("clean 1", "many")?;
            Some((ratio, ratio >= 0.95))
        },
    },
    OutboxGoal {
        what: "one publisher over graphile-worker, wanted 2",
        reached: |figures| over(figures, ("ours 1", "many"), ("graphile-worker", "jobs"), 2.0),
    },
    OutboxGoal {
        what: "two publishers over two workers with `SKIP LOCKED`, wanted 1",
        reached: |figures| over(figures, ("ours 2", "many"), ("skip locked", "jobs"), 1.0),
    },
    OutboxGoal {
        what: "into JetStream, wanted 30,000 a second",
        reached: |figures| {
            let fastest = ["nats 1", "nats 2"]
                .into_iter()
                .filter_map(|name| figures.fastest(name, "many"))
                .fold(None, |a: Option<f64>, b| Some(a.map_or(b, |a| a.max(b))))?;
            Some((fastest, fastest >= 30_000.0))
        },
    },
    OutboxGoal {
        what: "commit to sink with wake-up at half load, median in ms, wanted below 10",
        reached: |figures| below(figures, "woken, half load", "p50_ms", 10.0),
    },
    OutboxGoal { what: "the same, p99 in ms, wanted below 30", reached: |figures| below(figures, "woken, half load", "p99_ms", 30.0) },
    OutboxGoal {
        what: "commit to sink by polling only, idle, p99 in ms, wanted below 1,100",
        reached: |figures| below(figures, "polling, idle", "p99_ms", 1_100.0),
    },
];

/// The same with one event an aggregate, where each event has the whole cost of its aggregate's order: shown beside, without a verdict.
const BESIDE: [(&str, &str, (&str, &str)); 4] = [
    ("one publisher over the ceiling", "ours 1", ("ceiling", "single")),
    ("two publishers over one", "ours 2", ("ours 1", "single")),
    ("one publisher over graphile-worker", "ours 1", ("graphile-worker", "jobs")),
    ("two publishers over two workers with `SKIP LOCKED`", "ours 2", ("skip locked", "jobs")),
];

/// All figures that the program printed.
struct OutboxFigures(Vec<Value>);

impl OutboxFigures {
    /// Events a second of every round, sorted.
    fn rates(&self, name: &str, shape: &str) -> Vec<f64> {
        let of = self.0.iter().filter(|figure| figure["name"] == name && figure["shape"] == shape);
        let mut rates: Vec<f64> = of.filter_map(|figure| Some(figure["events"].as_f64()? / figure["seconds"].as_f64()?)).collect();
        rates.sort_by(f64::total_cmp);
        rates
    }

    /// The fastest round: under other load it is more reliable than the mean.
    fn fastest(&self, name: &str, shape: &str) -> Option<f64> {
        self.rates(name, shape).last().copied()
    }

    fn median(&self, name: &str, shape: &str) -> Option<f64> {
        let rates = self.rates(name, shape);
        rates.get(rates.len() / 2).copied()
    }

    /// The best round of a latency.
    fn latency(&self, name: &str, field: &str) -> Option<f64> {
        self.0.iter().filter(|figure| figure["latency"] == name).filter_map(|figure| figure[field].as_f64()).min_by(f64::total_cmp)
    }
}

fn over(figures: &OutboxFigures, ours: (&str, &str), theirs: (&str, &str), wanted: f64) -> Option<(f64, bool)> {
    let ratio = figures.fastest(ours.0, ours.1)? / figures.fastest(theirs.0, theirs.1)?;
    Some((ratio, ratio >= wanted))
}

fn below(figures: &OutboxFigures, name: &str, field: &str, limit: f64) -> Option<(f64, bool)> {
    let found = figures.latency(name, field)?;
    Some((found, found < limit))
}

/// Runs it and gives back the section's text.
pub(crate) fn run(context: &TaskContext, head: &str) -> Result<String, TaskFailure> {
    let log = StepLog::begin(context, "bench")?;
    let command = context.cargo(&["bench", "--package", "shardwise-outbox", "--all-features", "--bench", NAME]);
    let figures = OutboxFigures(log.figures("SHARDWISE_OUTBOX_FIGURES", HUNG_AFTER, [command])?);
    if figures.0.is_empty() {
        return Err(TaskFailure::new("the benchmark told no figures"));
    }
    let page = page(&figures);
    say(&page);
    if let Some(cost) = listen_cost(&figures) {
        let path = context.root().join("crates/outbox/postgres.md");
        let failed = |e: std::io::Error| TaskFailure::new(format!("{}: {e}", path.display()));
        let text = std::fs::read_to_string(&path).map_err(failed)?;
        let text = beside_the_switch(&text, &cost)
            .ok_or_else(|| TaskFailure::new(format!("{} has no place for what listening costs", path.display())))?;
        std::fs::write(&path, text).map_err(failed)?;
    }
    Ok(format!("## {NAME}\n\n{head}\n\n{page}"))
}

/// The cost of `listen = true` to committing writers, in the fastest rounds.
fn listen_cost(figures: &OutboxFigures) -> Option<String> {
    let fastest = |name: &str| {
        let of = figures.0.iter().filter(|figure| figure["writers"] == name);
        of.filter_map(|figure| figure["rate"].as_f64()).max_by(f64::total_cmp)
    };
    let (off, on) = (fastest("`listen = false`")?, fastest("`listen = true`")?);
    Some(format!("{on:.0} transactions a second instead of {off:.0} ({:+.0} %)", (on / off - 1.0) * 100.0))
}

/// The page that describes the switch, with the figure in its place.
fn beside_the_switch(text: &str, cost: &str) -> Option<String> {
    let (before, rest) = text.split_once(COST_BEGINS)?;
    let (_, after) = rest.split_once(COST_ENDS)?;
    Some(format!("{before}{COST_BEGINS}{cost}{COST_ENDS}{after}"))
}

/// Writing to a String cannot fail, so what `writeln!` answers is let go.
fn page(figures: &OutboxFigures) -> String {
    let mut text = format!("{WHAT}\n\n| | fastest round | median |\n|---|---:|---:|\n");
    for (name, shape, title) in CONTESTANTS {
        if let (Some(fastest), Some(median)) = (figures.fastest(name, shape), figures.median(name, shape)) {
            let _ = writeln!(text, "| {title} | {fastest:.0} | {median:.0} |");
        }
    }
    for missing in figures.0.iter().filter(|figure| figure["missing"].is_string()) {
        let _ = writeln!(
            text,
            "| {}: could not run: {} | | |",
            missing["name"].as_str().unwrap_or_default(),
            missing["missing"].as_str().unwrap_or_default()
        );
    }
    let latencies: Vec<&Value> = figures.0.iter().filter(|figure| figure["latency"].is_string()).collect();
    if !latencies.is_empty() {
        text += "\n| commit to sink | events a second | p50, ms | p99, ms |\n|---|---:|---:|---:|\n";
        for figure in latencies {
            let number = |field: &str| figure[field].as_f64().unwrap_or_default();
            let name = figure["latency"].as_str().unwrap_or_default();
            let _ = writeln!(text, "| {name} | {:.0} | {:.1} | {:.1} |", number("rate"), number("p50_ms"), number("p99_ms"));
        }
    }
    let writers: Vec<&Value> = figures.0.iter().filter(|figure| figure["writers"].is_string()).collect();
    if !writers.is_empty() {
        text += "\n| 64 committing writers, no publisher | transactions a second |\n|---|---:|\n";
        for figure in writers {
            let _ = writeln!(
                text,
                "| {} | {:.0} |",
                figure["writers"].as_str().unwrap_or_default(),
                figure["rate"].as_f64().unwrap_or_default()
            );
        }
    }
    if let Some(cost) = listen_cost(figures) {
        let _ = writeln!(text, "\nWith `listen = true`: {cost}, by the fastest rounds.");
    }
    text += "\n| wanted | found | |\n|---|---:|---|\n";
    for goal in GOALS {
        let (found, verdict) = match (goal.reached)(figures) {
            Some((found, reached)) => {
                (if found < 100.0 { format!("{found:.2}") } else { format!("{found:.0}") }, if reached { "reached" } else { "missed" })
            }
            None => ("–".into(), "not measured"),
        };
        let _ = writeln!(text, "| {} | {found} | {verdict} |", goal.what);
    }
    let beside = BESIDE.iter().filter_map(|(what, ours, theirs)| Some((what, over(figures, (ours, "single"), *theirs, 0.0)?.0)));
    for (number, (what, found)) in beside.enumerate() {
        if number == 0 {
            text += "\n| with one event an aggregate instead of ten | found |\n|---|---:|\n";
        }
        let _ = writeln!(text, "| {what} | {found:.2} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_judged_by_the_fastest_rounds_and_poison_by_the_median() {
        let run =
            |name: &str, shape: &str, seconds: f64| serde_json::json!({"name": name, "shape": shape, "events": 1_000, "seconds": seconds});
        let figures = OutboxFigures(vec![
            run("ceiling", "many", 0.02),
            run("ceiling", "many", 0.01),
            run("ours 1", "many", 0.5),
            run("ours 1", "many", 0.016),
            run("ours 2", "many", 0.017),
            run("clean 1", "many", 0.001),
            run("clean 1", "many", 0.016),
            run("clean 1", "many", 0.02),
            run("poison 1", "many", 0.017),
            run("ceiling", "single", 0.02),
            run("ours 1", "single", 0.04),
            serde_json::json!({"writers": "`listen = false`", "rate": 2_000.0}),
            serde_json::json!({"writers": "`listen = false`", "rate": 4_000.0}),
            serde_json::json!({"writers": "`listen = true`", "rate": 3_000.0}),
            serde_json::json!({"latency": "woken, half load", "rate": 5_000, "p50_ms": 9.0, "p99_ms": 31.0}),
            serde_json::json!({"name": "graphile-worker", "missing": "no node"}),
        ]);
        let page = page(&figures);
        assert!(page.contains("| one publisher | 62500 | 62500 |\n"), "{page}");
        assert!(page.contains("wanted 0.6 | 0.62 | reached |\n"), "{page}");
        assert!(page.contains("wanted more than 1 | 0.94 | missed |\n"), "{page}");
        assert!(page.contains("all events without, by the medians, wanted 0.95 | 0.94 | missed |\n"), "{page}");
        assert!(
            page.contains("With `listen = true`: 3000 transactions a second instead of 4000 (-25 %), by the fastest rounds.\n"),
            "{page}"
        );
        assert!(page.contains("median in ms, wanted below 10 | 9.00 | reached |\n"), "{page}");
        assert!(page.contains("the same, p99 in ms, wanted below 30 | 31.00 | missed |\n"), "{page}");
        assert!(page.contains("graphile-worker, wanted 2 | – | not measured |\n"), "{page}");
        assert!(page.ends_with("| found |\n|---|---:|\n| one publisher over the ceiling | 0.50 |\n"), "{page}");
        assert!(page.contains("graphile-worker: could not run: no node"), "{page}");
    }
    #[test]
    fn the_page_about_the_switch_has_a_place_for_its_cost() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/outbox/postgres.md");
        let text = std::fs::read_to_string(path).unwrap();
        let filled = beside_the_switch(&text, "much").unwrap();
        assert!(filled.contains(&format!("{COST_BEGINS}much{COST_ENDS}")) && filled.contains("# The outbox in PostgreSQL"), "{filled}");
        assert_eq!(beside_the_switch(&filled, "much").unwrap(), filled);
        assert_eq!(beside_the_switch("no place", "much"), None);
    }
}
