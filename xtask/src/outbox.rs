//! `cargo xtask bench outbox`: the program `crates/outbox/benches/outbox` prints its figures; this judges them and writes the page.

use serde_json::Value;

use crate::judged::Goal;
use crate::judged::Limit::{Above, AtLeast};
use crate::measured::row;

pub(crate) const NAME: &str = "outbox";
pub(crate) const FIGURES: &str = "SHARDWISE_OUTBOX_FIGURES";

/// The contestants, in the order of the page: the name and the shape that the program prints, and their titles.
const CONTESTANTS: [(&str, &str); 16] = [
    ("ceiling many", "the ceiling, 10 events an aggregate"),
    ("ours 1 many", "one publisher"),
    ("ours 2 many", "two publishers"),
    ("clean 1 many", "one publisher, in turn with the next"),
    ("poison 1 many", "one publisher, one aggregate in a hundred poison: the others' events"),
    ("ceiling single", "the ceiling, one event an aggregate"),
    ("ours 1 single", "one publisher"),
    ("ours 2 single", "two publishers"),
    ("skip locked jobs", "two workers with `FOR UPDATE SKIP LOCKED`"),
    ("graphile-worker jobs", "graphile-worker"),
    ("nats 1 many", "one publisher into JetStream"),
    ("nats 2 many", "two publishers into JetStream"),
    ("bare kafka many", "a bare rdkafka producer that reads the same rows and marks nothing, into librdkafka's mock cluster"),
    ("bare kafka, read before many", "the same, with the rows in memory"),
    ("kafka 1 many", "one publisher into that cluster"),
    ("kafka 2 many", "two publishers into that cluster"),
];

const WHAT: &str = "Events a second from a full outbox in PostgreSQL (default durability, on the same machine) into a sink that takes \
    everything at once, each publisher a process. The ceiling: one connection that reads rows of the same table in order and marks them \
    with `UPDATE … = ANY` in batches of 1,000, without fence and sequence. `SKIP LOCKED`: two workers on a plain table, batches of 100, \
    deleted in the transaction that locks them, without order. graphile-worker: jobs that do nothing, local queue of 500, batched \
    completion. Poison: the sink refuses every event of 1 % of the aggregates, for the time being; ten pairs a round with and without, \
    judged by their medians, because single drains vary by more than what is to be seen. Each begins on a fresh copy behind a checkpoint, \
    and is connected (our publishers: registered, without slots) when its clock starts; rounds go over all in turn. A look at the backlog \
    for the metrics, which a publisher has every ten seconds, is in the drains of more than two seconds only. The fastest \
    rounds are judged.";

pub(crate) const GOALS: [Goal; 7] = [
    Goal { what: "one publisher over the ceiling", wanted: AtLeast(0.6), found: |all| over(all, "ours 1 many", "ceiling many") },
    Goal { what: "two publishers over one", wanted: Above(1.0), found: |all| over(all, "ours 2 many", "ours 1 many") },
    Goal {
        what: "the others' events with 1 % poison aggregates over all events without, by the medians",
        wanted: AtLeast(0.95),
        found: |all| Some(median(all, "poison 1 many")? / median(all, "clean 1 many")?),
    },
    Goal {
        what: "one publisher over graphile-worker",
        wanted: AtLeast(2.0),
        found: |all| over(all, "ours 1 many", "graphile-worker jobs"),
    },
    Goal {
        what: "two publishers over two workers with `SKIP LOCKED`",
        wanted: AtLeast(1.0),
        found: |all| over(all, "ours 2 many", "skip locked jobs"),
    },
    Goal {
        what: "into JetStream, events a second",
        wanted: AtLeast(30_000.0),
        found: |all| ["nats 1 many", "nats 2 many"].into_iter().filter_map(|run| fastest(all, run)).max_by(f64::total_cmp),
    },
    Goal {
        what: "one publisher into Kafka over a bare producer",
        wanted: AtLeast(0.6),
        found: |all| over(all, "kafka 1 many", "bare kafka many"),
    },
];

/// Events a second of every round of a contestant, sorted.
fn rates(figures: &[Value], contestant: &str) -> Vec<f64> {
    let is_of = |figure: &&Value| contestant == format!("{} {}", text(figure, "name"), text(figure, "shape"));
    let rate = |figure: &Value| Some(figure["events"].as_f64()? / figure["seconds"].as_f64()?);
    let mut rates: Vec<f64> = figures.iter().filter(is_of).filter_map(rate).collect();
    rates.sort_by(f64::total_cmp);
    rates
}

fn text<'a>(figure: &'a Value, field: &str) -> &'a str {
    figure[field].as_str().unwrap_or_default()
}

/// The fastest round: under other load it is more reliable than the mean.
fn fastest(figures: &[Value], contestant: &str) -> Option<f64> {
    rates(figures, contestant).last().copied()
}

fn median(figures: &[Value], contestant: &str) -> Option<f64> {
    let rates = rates(figures, contestant);
    rates.get(rates.len() / 2).copied()
}

fn over(figures: &[Value], ours: &str, theirs: &str) -> Option<f64> {
    Some(fastest(figures, ours)? / fastest(figures, theirs)?)
}

pub(crate) fn page(figures: &[Value]) -> String {
    let mut page = format!("{WHAT}\n\n| | fastest round | median |\n|---|---:|---:|\n");
    for (contestant, title) in CONTESTANTS {
        if let (Some(fastest), Some(median)) = (fastest(figures, contestant), median(figures, contestant)) {
            page += &row([title, &format!("{fastest:.0}"), &format!("{median:.0}")]);
        }
    }
    for missing in figures.iter().filter(|figure| figure["missing"].is_string()) {
        page += &row([&*format!("{}: could not run: {}", text(missing, "name"), text(missing, "missing")), "", ""]);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judged::verdicts;

    #[test]
    fn goals_are_judged_by_the_fastest_rounds_and_poison_by_the_median() {
        let run =
            |name: &str, shape: &str, seconds: f64| serde_json::json!({"name": name, "shape": shape, "events": 1_000, "seconds": seconds});
        let figures = [
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
            serde_json::json!({"name": "graphile-worker", "missing": "no node"}),
        ];
        let page = page(&figures) + &verdicts(&figures, &GOALS);
        assert!(page.contains("| one publisher | 62500 | 62500 |\n"), "{page}");
        assert!(page.contains("over the ceiling | 0.6 or more | 0.62 | reached |\n"), "{page}");
        assert!(page.contains("over one | more than 1 | 0.94 | missed |\n"), "{page}");
        assert!(page.contains("all events without, by the medians | 0.95 or more | 0.94 | missed |\n"), "{page}");
        assert!(page.contains("graphile-worker | 2 or more | – | not measured |\n"), "{page}");
        assert!(page.contains("graphile-worker: could not run: no node"), "{page}");
    }
}
