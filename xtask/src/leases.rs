//! `cargo xtask bench leases`: the program `crates/cli/benches/leases` and the client's benchmark in Python print their figures; this
//! judges them and writes the page.

use std::process::Command;

use serde_json::Value;
use shardwise_testkit::python_with;

use crate::context::TaskContext;
use crate::failure::TaskFailure;
use crate::judged::Limit::{AtLeast, AtMost, Below};
use crate::judged::{Goal, numbers};
use crate::measured::row;

pub(crate) const NAME: &str = "leases";
pub(crate) const FIGURES: &str = "SHARDWISE_LEASES_FIGURES";

/// What the client in Python needs, its peer, and the package that makes its hash faster.
const PACKAGES: [&str; 4] = ["anyio==4.12.0", "httpx==0.28.1", "uhashring==2.4", "xxhash==3.6.0"];

const WHAT: &str = "A real `shardwise serve`, alone in its group under exclusive ownership on the backend `local` (TTL 3 s), whose worker \
    has a lease of 5 s and all 1,024 slots. Another process asks it over loopback, over 16 blocking connections that are kept open, and \
    shares the cores with it: 1,000 requests a second, each of one key of 1,000, for 20 s in turns of 5 s. Each request has a moment that \
    is fixed in advance, and its time counts from there, so it includes any wait for a free connection. Sent late: how much of that the \
    asking process itself needed until it sent. Processor: time that each of the two processes used for a request. `owner` answers from \
    memory, `livez` looks up no key.";
const WHAT_OWNED: &str = "`lease.owned` of the client in Python, which holds a third of 16,384 slots, and uhashring, which gives the node \
    of each key among three, in one process; medians. New keys: keys whose slots the client has not kept from an earlier call.";

const ROUTES: [&str; 3] = ["enter", "owner", "livez"];
/// The figures of a route, what each is, and its digits behind the point.
const OF_A_ROUTE: [(&str, &str, usize); 9] = [
    ("p50_ms", "p50, ms", 2),
    ("p99_ms", "p99, ms", 2),
    ("p999_ms", "p99.9, ms", 2),
    ("worst_ms", "worst, ms", 2),
    ("failures", "failures", 0),
    ("rate", "answered a second", 1),
    ("late_p99_ms", "sent late, p99, ms", 2),
    ("sidecar_us", "processor of the sidecar, µs", 0),
    ("client_us", "of the asking process, µs", 0),
];
/// The figures of a run in Python.
const OF_OWNED: [(&str, &str, usize); 6] = [
    ("keys", "keys", 0),
    ("p50_ms", "`owned`, ms", 2),
    ("first_p50_ms", "of new keys, ms", 2),
    ("uhashring_p50_ms", "uhashring, ms", 2),
    ("ratio", "uhashring over `owned`", 1),
    ("first_ratio", "over `owned` of new keys", 1),
];

pub(crate) const GOALS: [Goal; 7] = [
    Goal { what: "`enter` at 1,000 a second, p99 in ms", wanted: AtMost(3.0), found: |all| number(all, "enter", "p99_ms") },
    Goal { what: "requests to `enter` that failed", wanted: Below(1.0), found: |all| number(all, "enter", "failures") },
    Goal { what: "requests to `enter` answered a second", wanted: AtLeast(990.0), found: |all| number(all, "enter", "rate") },
    Goal {
        what: "`owned` of 10,000 keys in Python, p50 in ms (with the slower hash)",
        wanted: AtMost(5.0),
        found: |all| numbers(all, "figure", "owned", "p50_ms").max_by(f64::total_cmp),
    },
    Goal {
        what: "uhashring over that (with the slower hash)",
        wanted: AtLeast(3.0),
        found: |all| numbers(all, "figure", "owned", "ratio").min_by(f64::total_cmp),
    },
    Goal { what: "the same of new keys with `xxhash`, p50 in ms", wanted: AtMost(5.0), found: |all| of_new_keys(all, "first_p50_ms") },
    Goal { what: "uhashring over that", wanted: AtLeast(3.0), found: |all| of_new_keys(all, "first_ratio") },
];

fn of_new_keys(figures: &[Value], field: &str) -> Option<f64> {
    figures.iter().find(|figure| figure["hashed_by"] == "xxhash").and_then(|figure| figure[field].as_f64())
}

fn number(figures: &[Value], route: &str, field: &str) -> Option<f64> {
    numbers(figures, "load", route, field).next()
}

/// The benchmark of the client in Python, without the package `xxhash` and with it.
pub(crate) fn owned(context: &TaskContext) -> Result<[Command; 2], TaskFailure> {
    let with = |packages: &[&str]| -> Result<Command, TaskFailure> {
        let python = python_with(packages)?;
        let mut command = context.command(&python.to_string_lossy(), &["-B", "clients/python/benches/owned.py"]);
        command.env("PYTHONPATH", context.root().join("clients/python/src"));
        Ok(command)
    };
    Ok([with(&PACKAGES[..3])?, with(&PACKAGES)?])
}

pub(crate) fn page(figures: &[Value]) -> String {
    let mut page = format!("{WHAT}\n\n") + &head("", OF_A_ROUTE.map(|(_, title, _)| title));
    for route in ROUTES {
        page += &line(&format!("`{route}`"), &OF_A_ROUTE, |field| number(figures, route, field));
    }
    let over = |field| number(figures, "enter", field).unwrap_or(f64::NAN) / number(figures, "livez", field).unwrap_or(f64::NAN);
    let [median, p99, processor] = ["p50_ms", "p99_ms", "sidecar_us"].map(over);
    let compared = format!(
        "\n`enter` over `livez`: {median:.2} times the median, {p99:.2} times the p99, {processor:.2} times the processor time of the \
         sidecar.\n\n{WHAT_OWNED}\n\n"
    );
    page += &compared;
    page += &head("hashed by", OF_OWNED.map(|(_, title, _)| title));
    for figure in figures.iter().filter(|figure| figure["figure"] == "owned") {
        page += &line(figure["hashed_by"].as_str().unwrap_or_default(), &OF_OWNED, |field| figure[field].as_f64());
    }
    page
}

fn head<const N: usize>(first: &str, titles: [&str; N]) -> String {
    row(std::iter::once(first).chain(titles)) + "|---|" + &"---:|".repeat(N) + "\n"
}

/// One row of a table: a figure for each column.
fn line(name: &str, columns: &[(&str, &str, usize)], number: impl Fn(&str) -> Option<f64>) -> String {
    let cell = |(field, _, digits): &(&str, &str, usize)| {
        number(field).map_or_else(|| "–".to_owned(), |number| format!("{number:.prec$}", prec = *digits))
    };
    row(std::iter::once(name.to_owned()).chain(columns.iter().map(cell)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::judged::verdicts;

    fn figures(p99: f64, slower: f64) -> Vec<Value> {
        let route = |route: &str, p99: f64| {
            json!({
                "load": route, "offered": 1_000, "requests": 20_000, "failures": 0, "rate": 999.75, "p50_ms": p99 / 4.0, "p99_ms": p99,
                "p999_ms": 4.0, "worst_ms": 9.5, "late_p99_ms": 0.25, "sidecar_us": 60.0, "client_us": 40.0
            })
        };
        let owned = |by: &str, p50: f64| {
            json!({
                "figure": "owned", "keys": 10_000, "hashed_by": by, "p50_ms": p50, "first_p50_ms": p50 * 4.0, "uhashring_p50_ms": 16.0,
                "ratio": 16.0 / p50, "first_ratio": 4.0 / p50
            })
        };
        vec![route("enter", p99), route("owner", 1.5), route("livez", 1.0), owned("Python", slower), owned("xxhash", 1.0)]
    }

    #[test]
    fn every_figure_is_on_the_page() {
        let text = page(&figures(2.0, 4.0));
        for line in [
            "| `enter` | 0.50 | 2.00 | 4.00 | 9.50 | 0 | 999.8 | 0.25 | 60 | 40 |\n",
            "`enter` over `livez`: 2.00 times the median, 2.00 times the p99, 1.00 times the processor",
            "| xxhash | 10000 | 1.00 | 4.00 | 16.00 | 16.0 | 4.0 |\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(page(&[]).contains("| `enter` | – | – |"), "{}", page(&[]));
    }

    #[test]
    fn the_goals_are_judged_by_the_slower_hash() {
        let reached = verdicts(&figures(3.0, 5.0), &GOALS);
        assert_eq!(reached.matches("| reached |").count(), GOALS.len(), "{reached}");
        let missed = verdicts(&figures(3.25, 6.0), &GOALS);
        assert!(missed.contains("p99 in ms | 3 or less | 3.25 | missed |\n"), "{missed}");
        assert_eq!(missed.matches("| missed |").count(), 3, "{missed}");
        assert_eq!(verdicts(&[], &GOALS).matches("| not measured |").count(), GOALS.len());
    }
}
