//! `cargo xtask bench writers`: the program `crates/outbox/benches/writers` prints its figures; this judges their medians and writes the
//! page.

use serde_json::Value;

use crate::judged::Limit::{AtLeast, AtMost, Below};
use crate::judged::{Goal, median, numbers};
use crate::measured::row;

pub(crate) const NAME: &str = "writers";

const WHAT: &str = "What an insert costs the writer. 16 clients in one process (sqlx, prepared statements, TCP on the same machine) commit \
    one statement a transaction for 3 s, on a server with its defaults (`fsync`, `synchronous_commit` and `full_page_writes` on), without \
    a publisher. Each run begins with a fresh copy of the same database behind a checkpoint; every second round has the opposite order; \
    medians of the rounds. Payloads of 150 bytes; aggregates are drawn from 100,000 with the same draws for all, ten of a transaction \
    sorted. Plain: a table with the columns of `outbox`, its primary key the only index, without checks, NOT NULL and trigger; id, time \
    and position are filled by defaults, so that the rows are as long. With checks: the same with the CHECK constraints of `outbox`. In \
    our empty outbox every aggregate is new at first, and with ten events a transaction about four of ten at the end; of the known ones, \
    each has an event that waits. `SKIP LOCKED`: a plain table of \
    jobs. graphile-worker: `add_job` and `add_jobs` without a queue's name, so without an order; each of its transactions notifies. WAL \
    and disk: the growth of the whole log and of all files of the database. Processor: of the server's processes and of the clients.";
const WHAT_WOKEN: &str = "Wake-up: a publisher and writers of one event a transaction, over 1,000 aggregates, in one process. 64 writers \
    as fast as they can; the commits count, and every event arrives. Latency: from the writer's return from COMMIT to the sink. Full load: \
    16 writers as fast as they can, until everything has arrived; half load: the same writers at half of that pace. Idle: one event at a \
    time, 150 to 350 ms after the one before arrived; all rounds together, the first five of each not counted.";

/// The contestants, in the order of the page: the names that the program prints, the plain table that they are compared with, and titles.
const CONTESTANTS: [(&str, &str, &str); 14] = [
    ("one: plain", ONE, "one event: plain table"),
    ("one: checked", ONE, "plain table with checks"),
    ("one: ours", ONE, "**our outbox**, new aggregates"),
    ("one: ours, known", ONE, "our outbox, known aggregates"),
    ("one: skip locked", ONE, "table for `SKIP LOCKED`"),
    ("one: graphile-worker", ONE, "graphile-worker, `add_job`"),
    ("ten: plain", TEN, "ten events of ten aggregates in one statement: plain table"),
    ("ten: ours", TEN, "**our outbox**, new aggregates"),
    ("ten: ours, known", TEN, "our outbox, known aggregates"),
    ("ten: skip locked", TEN, "table for `SKIP LOCKED`"),
    ("ten: graphile-worker", TEN, "graphile-worker, `add_jobs`"),
    ("ten of one: plain", TEN_OF_ONE, "ten events of one aggregate in one statement: plain table"),
    ("ten of one: ours", TEN_OF_ONE, "our outbox"),
    ("hot: ours", ONE, "one event, all clients write the same aggregate: our outbox"),
];
const ONE: &str = "one: plain";
const TEN: &str = "ten: plain";
const TEN_OF_ONE: &str = "ten of one: plain";

/// The columns behind the ratio: fields of a figure, for each event.
const COSTS: [(&str, &str); 4] = [
    ("wal_bytes", "WAL, bytes an event"),
    ("disk_bytes", "disk, bytes an event"),
    ("server_us", "server, µs an event"),
    ("clients_us", "clients, µs an event"),
];

pub(crate) const GOALS: [Goal; 10] = [
    Goal { what: "one event over the plain table (aim: 0.6)", wanted: AtLeast(0.5), found: |all| over(all, "one: ours", ONE) },
    Goal { what: "the same, of a known aggregate", wanted: AtLeast(0.5), found: |all| over(all, "one: ours, known", ONE) },
    Goal {
        what: "ten events of ten aggregates over the plain table (aim: 0.45)",
        wanted: AtLeast(0.35),
        found: |all| over(all, "ten: ours", TEN),
    },
    Goal { what: "the same, of known aggregates", wanted: AtLeast(0.35), found: |all| over(all, "ten: ours, known", TEN) },
    Goal {
        what: "commits of 64 writers with `listen = true` over those without",
        wanted: AtLeast(0.9),
        found: |all| Some(commits(all, "`listen = true`")? / commits(all, "`listen = false`")?),
    },
    Goal { what: "commit to sink, woken, idle, p50 in ms", wanted: AtMost(4.0), found: |all| latency(all, "woken, idle", "p50_ms") },
    Goal { what: "the same, p99 in ms", wanted: AtMost(10.0), found: |all| latency(all, "woken, idle", "p99_ms") },
    Goal { what: "woken, half load, p50 in ms", wanted: Below(10.0), found: |all| latency(all, "woken, half load", "p50_ms") },
    Goal { what: "the same, p99 in ms", wanted: AtMost(15.0), found: |all| latency(all, "woken, half load", "p99_ms") },
    Goal { what: "by polling only, idle, p99 in ms", wanted: Below(1_100.0), found: |all| latency(all, "polling, idle", "p99_ms") },
];

fn rate(figures: &[Value], writer: &str) -> Option<f64> {
    median(numbers(figures, "writer", writer, "transactions"))
}

fn over(figures: &[Value], writer: &str, plain: &str) -> Option<f64> {
    Some(rate(figures, writer)? / rate(figures, plain)?)
}

fn commits(figures: &[Value], writers: &str) -> Option<f64> {
    median(numbers(figures, "writers", writers, "rate"))
}

fn latency(figures: &[Value], name: &str, field: &str) -> Option<f64> {
    median(numbers(figures, "latency", name, field))
}

pub(crate) fn page(figures: &[Value]) -> String {
    let mut page = format!("{WHAT}\n\n{}\n{WHAT_WOKEN}\n\n", written(figures));
    if let Some(seed) = figures.iter().find_map(|figure| figure["seed"].as_u64()) {
        page = format!("The aggregates are those of `SHARDWISE_SEED={seed}`.\n\n{page}");
    }
    page += "| 64 committing writers | transactions a second |\n|---|---:|\n";
    for name in ["`listen = false`", "`listen = true`"] {
        page += &row([name.to_owned(), cell(commits(figures, name), 0)]);
    }
    page += "\n| commit to sink | events a second | p50, ms | p99, ms |\n|---|---:|---:|---:|\n";
    for name in ["woken, idle", "woken, half load", "polling, idle"] {
        let [p50, p99] = ["p50_ms", "p99_ms"].map(|field| cell(latency(figures, name, field), 1));
        page += &row([name.to_owned(), cell(latency(figures, name, "rate"), 0), p50, p99]);
    }
    page
}

/// The table of what the clients have written.
fn written(figures: &[Value]) -> String {
    let titles = ["", "transactions a second", "of the plain table"].into_iter().chain(COSTS.map(|(_, title)| title));
    let mut table = row(titles) + "|---|" + &"---:|".repeat(2 + COSTS.len()) + "\n";
    for (writer, plain, title) in CONTESTANTS {
        let Some(found) = rate(figures, writer) else { continue };
        let ratio = rate(figures, plain).map(|plain| found / plain);
        let costs = COSTS.map(|(field, _)| cell(median(numbers(figures, "writer", writer, field)), 0));
        table += &row([title.to_owned(), cell(Some(found), 0), cell(ratio, 2)].into_iter().chain(costs));
    }
    for figure in figures {
        if let (Some(name), Some(missing)) = (figure["name"].as_str(), figure["missing"].as_str()) {
            let empty = std::iter::repeat_n(String::new(), 2 + COSTS.len());
            table += &row(std::iter::once(format!("{name}: could not run: {missing}")).chain(empty));
        }
    }
    table
}

fn cell(number: Option<f64>, digits: usize) -> String {
    number.map_or_else(|| "–".to_owned(), |number| format!("{number:.digits$}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::judged::{missed, verdicts};

    fn figures(one: f64, listening: f64, p99: f64) -> Vec<Value> {
        let run = |writer: &str, transactions: f64| {
            json!({
                "writer": writer, "transactions": transactions, "wal_bytes": 400.4, "disk_bytes": 500.0, "server_us": 90.0,
                "clients_us": 60.0
            })
        };
        let took = |name: &str, p50: f64, p99: f64| json!({"latency": name, "rate": 3.0, "p50_ms": p50, "p99_ms": p99});
        let mut all = vec![json!({"seed": 7}), json!({"name": "graphile-worker", "missing": "no node"})];
        // The median of the rounds counts, and not the fastest.
        for part in [0.9, 1.0, 5.0] {
            all.extend([run(ONE, 10_000.0 * part), run("one: ours", one * part), run("one: ours, known", 6_000.0 * part)]);
            all.extend([run(TEN, 2_000.0), run("ten: ours", 700.0), run("ten: ours, known", 800.0)]);
            for (name, rate) in [("`listen = false`", 8_000.0), ("`listen = true`", listening)] {
                all.push(json!({"writers": name, "rate": rate * part}));
            }
            all.push(took("woken, half load", 2.0, p99 * part));
        }
        all.extend([took("woken, idle", 4.0, 10.0), took("polling, idle", 200.0, 900.0)]);
        all
    }

    #[test]
    fn every_figure_is_on_the_page() {
        let text = page(&figures(5_000.0, 7_200.0, 15.0));
        for line in [
            "`SHARDWISE_SEED=7`",
            "| one event: plain table | 10000 | 1.00 | 400 | 500 | 90 | 60 |\n",
            "| **our outbox**, new aggregates | 5000 | 0.50 | 400 | 500 | 90 | 60 |\n",
            "| **our outbox**, new aggregates | 700 | 0.35 | 400 | 500 | 90 | 60 |\n",
            "| our outbox, known aggregates | 800 | 0.40 | 400 | 500 | 90 | 60 |\n",
            "| graphile-worker: could not run: no node |  |  |  |  |  |  |\n",
            "| `listen = false` | 8000 |\n| `listen = true` | 7200 |\n",
            "| woken, half load | 3 | 2.0 | 15.0 |\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("all clients write the same"), "what was not run has no row: {text}");
    }

    #[test]
    fn what_misses_its_goal_or_was_not_measured_is_named() {
        let reached = figures(5_000.0, 7_200.0, 15.0);
        assert_eq!(missed(&reached, &GOALS), [""; 0], "{}", verdicts(&reached, &GOALS));
        let slow = missed(&figures(4_999.0, 7_199.0, 15.1), &GOALS);
        assert_eq!(slow, [GOALS[0].what, GOALS[4].what, GOALS[8].what]);
        assert_eq!(missed(&[], &GOALS).len(), GOALS.len());
    }
}
