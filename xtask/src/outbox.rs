//! `cargo xtask bench outbox`: the program `crates/outbox/benches/outbox` prints its figures; this judges their medians and
//! writes the page.

use serde_json::Value;

use crate::judged::Limit::{Above, AtLeast};
use crate::judged::{self, Goal};
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
    (SKIP_LOCKED, "two workers with `FOR UPDATE SKIP LOCKED`"),
    (GRAPHILE, "graphile-worker"),
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
    completion. Both know no aggregates, so each is compared with an outbox of either kind. Poison: the sink refuses every event of 1 % \
    of the aggregates, for the time being; six pairs a round with and without. Each begins on a fresh copy behind a checkpoint, and is \
    connected (our publishers: registered, without slots) when its clock starts; rounds go over all in turn, every second one in the \
    opposite order. A look at the backlog for the metrics, which a publisher has every ten seconds, is in the drains of more than two \
    seconds only. The medians of the rounds are judged.";

/// Two workers with `SKIP LOCKED`, and graphile-worker.
const SKIP_LOCKED: &str = "skip locked jobs";
const GRAPHILE: &str = "graphile-worker jobs";

pub(crate) const GOALS: [Goal; 10] = [
    Goal { what: "one publisher over the ceiling", wanted: AtLeast(0.6), found: |all| over(all, "ours 1 many", "ceiling many") },
    Goal { what: "two publishers over one", wanted: Above(1.0), found: |all| over(all, "ours 2 many", "ours 1 many") },
    Goal {
        what: "one publisher over two workers with `SKIP LOCKED`",
        wanted: AtLeast(0.75),
        found: |all| over(all, "ours 1 many", SKIP_LOCKED),
    },
    Goal { what: "two publishers over them", wanted: AtLeast(1.0), found: |all| over(all, "ours 2 many", SKIP_LOCKED) },
    Goal {
        what: "one event an aggregate: two publishers over them (aim: 0.8)",
        wanted: AtLeast(0.5),
        found: |all| over(all, "ours 2 single", SKIP_LOCKED),
    },
    Goal {
        what: "one event an aggregate: one publisher over graphile-worker",
        wanted: AtLeast(1.5),
        found: |all| over(all, "ours 1 single", GRAPHILE),
    },
    Goal { what: "one publisher over graphile-worker", wanted: AtLeast(2.0), found: |all| over(all, "ours 1 many", GRAPHILE) },
    Goal {
        what: "the others' events with 1 % poison aggregates over all events without",
        wanted: AtLeast(0.95),
        found: |all| over(all, "poison 1 many", "clean 1 many"),
    },
    Goal {
        what: "into JetStream, events a second",
        wanted: AtLeast(30_000.0),
        found: |all| ["nats 1 many", "nats 2 many"].into_iter().filter_map(|run| median(all, run)).max_by(f64::total_cmp),
    },
    Goal {
        what: "one publisher into Kafka over a bare producer",
        wanted: AtLeast(0.6),
        found: |all| over(all, "kafka 1 many", "bare kafka many"),
    },
];

/// Events a second of every round of a contestant.
fn rates<'a>(figures: &'a [Value], contestant: &'a str) -> impl Iterator<Item = f64> + 'a {
    let is_of = move |figure: &&Value| contestant == format!("{} {}", text(figure, "name"), text(figure, "shape"));
    figures.iter().filter(is_of).filter_map(|figure| Some(figure["events"].as_f64()? / figure["seconds"].as_f64()?))
}

fn text<'a>(figure: &'a Value, field: &str) -> &'a str {
    figure[field].as_str().unwrap_or_default()
}

fn median(figures: &[Value], contestant: &str) -> Option<f64> {
    judged::median(rates(figures, contestant))
}

fn over(figures: &[Value], ours: &str, theirs: &str) -> Option<f64> {
    Some(median(figures, ours)? / median(figures, theirs)?)
}

pub(crate) fn page(figures: &[Value]) -> String {
    let mut page = format!("{WHAT}\n\n");
    let took = |run: &Value| Some(format!("{} rounds, in {:.0} minutes.\n\n", run["rounds"].as_u64()?, run["minutes"].as_f64()?));
    page += &figures.iter().find_map(took).unwrap_or_default();
    page += "| | median | slowest | fastest |\n|---|---:|---:|---:|\n";
    for (contestant, title) in CONTESTANTS {
        let rates = || rates(figures, contestant);
        let found = [judged::median(rates()), rates().min_by(f64::total_cmp), rates().max_by(f64::total_cmp)];
        if let [Some(median), Some(slowest), Some(fastest)] = found {
            page += &row([title.to_owned(), format!("{median:.0}"), format!("{slowest:.0}"), format!("{fastest:.0}")]);
        }
    }
    for missing in figures.iter().filter(|figure| figure["missing"].is_string()) {
        page += &row([&*format!("{}: could not run: {}", text(missing, "name"), text(missing, "missing")), "", "", ""]);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judged::{missed, verdicts};

    fn run(name: &str, shape: &str, seconds: f64) -> Value {
        serde_json::json!({"name": name, "shape": shape, "events": 1_000, "seconds": seconds})
    }

    #[test]
    fn goals_are_judged_by_the_medians_of_the_rounds() {
        let mut figures =
            vec![serde_json::json!({"rounds": 5, "minutes": 9.6}), serde_json::json!({"name": "graphile-worker", "missing": "no node"})];
        // By their fastest rounds two publishers would beat one.
        for (ours, two) in [(0.016, 0.001), (0.016, 0.017), (0.5, 0.018), (0.01, 0.02), (0.02, 0.017)] {
            figures.extend([run("ours 1", "many", ours), run("ours 2", "many", two), run("ceiling", "many", 0.01)]);
            figures.extend([run("clean 1", "many", ours), run("poison 1", "many", 0.017), run("ours 1", "single", 0.04)]);
        }
        let page = page(&figures) + &verdicts(&figures, &GOALS);
        for line in [
            "5 rounds, in 10 minutes.\n",
            "| one publisher | 62500 | 2000 | 100000 |\n",
            "over the ceiling | 0.6 or more | 0.62 | reached |\n",
            "over one | more than 1 | 0.94 | missed |\n",
            "over all events without | 0.95 or more | 0.94 | missed |\n",
            "one publisher over graphile-worker | 2 or more | – | not measured |\n",
            "graphile-worker: could not run: no node",
        ] {
            assert!(page.contains(line), "{line}: {page}");
        }
    }

    #[test]
    fn both_kinds_of_aggregates_are_compared_with_the_peers() {
        let figures = |one: f64, two: f64, single_one: f64, single_two: f64| {
            let ours =
                [("ours 1", "many", one), ("ours 2", "many", two), ("ours 1", "single", single_one), ("ours 2", "single", single_two)];
            // Fractions of the workers' rate; graphile-worker has a quarter of it.
            let ours = ours.into_iter().map(|(name, shape, part)| run(name, shape, 1.0 / part));
            let mut all: Vec<_> = ours.chain([run("skip locked", "jobs", 1.0), run("graphile-worker", "jobs", 4.0)]).collect();
            // The rest reaches its goal.
            for name in ["ceiling", "clean 1", "poison 1", "bare kafka", "kafka 1"] {
                all.push(run(name, "many", 1.0));
            }
            all.push(run("nats 1", "many", 0.01));
            all
        };
        assert_eq!(missed(&figures(0.76, 1.01, 0.4, 0.51), &GOALS), [""; 0]);
        let slow = missed(&figures(0.74, 0.99, 0.37, 0.49), &GOALS);
        assert_eq!(
            slow,
            [
                "one publisher over two workers with `SKIP LOCKED`",
                "two publishers over them",
                "one event an aggregate: two publishers over them (aim: 0.8)",
                "one event an aggregate: one publisher over graphile-worker"
            ]
        );
    }
}
