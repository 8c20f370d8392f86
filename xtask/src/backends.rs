//! `cargo xtask bench backends`: the program `benches/backends` prints its figures; this judges them and writes the page.

use serde_json::Value;

use crate::judged::Limit::{AtLeast, AtMost, Below};
use crate::judged::{Goal, median, numbers};
use crate::measured::row;

pub(crate) const NAME: &str = "backends";
pub(crate) const FIGURES: &str = "SHARDWISE_BACKENDS_FIGURES";

const WHAT: &str = "PostgreSQL, NATS and Valkey on this machine, one server each, which flushes before it acknowledges. Sixteen processes \
    (separate connections, in one process of this machine) have the members, renew them three times in a TTL of 10 s and follow the group. \
    A change: from the call of one member until the watch of another process shows it; 300 changes, seen by 15 others. Processor: of all \
    processes of the server in 30 s in which nothing changes, without connections that ended meanwhile. 1,024 claims: one call of one \
    member; fresh ones, and ones that another member has released; five rounds. NATS' writes: 4,096 a round with 256 under way, on a server \
    that does not flush, in five rounds that alternate with bare compare-and-set publishes of async-nats; medians.";

const BACKENDS: [&str; 3] = ["postgres", "nats", "valkey"];
const SEEN: &[&str] = &["p50_ms", "p99_ms", "worst_ms"];
/// The figures of a backend, the fields of each, and what these are.
const ROWS: [(&str, &[&str], &str); 8] = [
    ("record, 16 members", SEEN, "a record's change among 16 members, ms: p50 / p99 / worst"),
    ("record, 300 members", SEEN, "among 300 members"),
    ("claim, 16 members", SEEN, "a claim among 16 members, ms: p50 / p99 / worst"),
    ("claim, 300 members", SEEN, "among 300 members"),
    ("server, 16 members", &["percent"], "processor of the server with 16 members, % of one core"),
    ("server, 300 members", &["percent"], "with 300 members"),
    ("fresh claims", &["ms"], "1,024 fresh claims, median, ms"),
    ("released claims", &["ms"], "1,024 released claims, median, ms"),
];

/// Those that the design of the backends gives.
pub(crate) const GOALS: [Goal; 11] = [
    Goal { what: "PostgreSQL, record, 16 members, p99 in ms", wanted: AtMost(10.0), found: |all| p99(all, "postgres: record, 16") },
    Goal { what: "PostgreSQL, record, 300 members, p99 in ms", wanted: AtMost(100.0), found: |all| p99(all, "postgres: record, 300") },
    Goal { what: "PostgreSQL, claim, 16 members, p99 in ms", wanted: AtMost(10.0), found: |all| p99(all, "postgres: claim, 16") },
    Goal { what: "PostgreSQL, claim, 300 members, p99 in ms", wanted: AtMost(100.0), found: |all| p99(all, "postgres: claim, 300") },
    Goal {
        what: "PostgreSQL, processor of the server with 300 members, % of one core",
        wanted: Below(5.0),
        found: |all| of(all, "postgres: server, 300 members", "percent"),
    },
    Goal { what: "PostgreSQL, 1,024 fresh claims, ms", wanted: AtMost(300.0), found: |all| of(all, "postgres: fresh claims", "ms") },
    Goal { what: "PostgreSQL, 1,024 released claims, ms", wanted: AtMost(300.0), found: |all| of(all, "postgres: released claims", "ms") },
    Goal { what: "NATS, renewals over bare publishes", wanted: AtLeast(0.8), found: |all| over_bare(all, "nats: renewals") },
    Goal { what: "NATS, claims over bare publishes", wanted: AtLeast(0.8), found: |all| over_bare(all, "nats: claims") },
    Goal { what: "Valkey, record, 16 members, p99 in ms", wanted: AtMost(3.0), found: |all| p99(all, "valkey: record, 16") },
    Goal { what: "Valkey, record, 300 members, p99 in ms", wanted: AtMost(3.0), found: |all| p99(all, "valkey: record, 300") },
];

fn of(figures: &[Value], figure: &str, field: &str) -> Option<f64> {
    median(numbers(figures, "figure", figure, field))
}

fn p99(figures: &[Value], figure: &str) -> Option<f64> {
    of(figures, &format!("{figure} members"), "p99_ms")
}

fn over_bare(figures: &[Value], figure: &str) -> Option<f64> {
    Some(of(figures, figure, "ours")? / of(figures, figure, "bare")?)
}

pub(crate) fn page(figures: &[Value]) -> String {
    let cell = |number: Option<f64>, digits: usize| number.map_or_else(|| "–".to_owned(), |number| format!("{number:.digits$}"));
    let mut page = format!("{WHAT}\n\n| | PostgreSQL | NATS | Valkey |\n|---|---:|---:|---:|\n");
    for (figure, fields, title) in ROWS {
        let cells = BACKENDS.map(|backend| {
            let found = fields.iter().map(|field| cell(of(figures, &format!("{backend}: {figure}"), field), 2));
            found.collect::<Vec<_>>().join(" / ")
        });
        page += &row(std::iter::once(title.to_owned()).chain(cells));
    }
    page += "\n| NATS, writes a second | ours | bare |\n|---|---:|---:|\n";
    for what in ["renewals", "claims"] {
        let [ours, bare] = ["ours", "bare"].map(|field| cell(of(figures, &format!("nats: {what}"), field), 0));
        page += &row([what.to_owned(), ours, bare]);
    }
    page
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::judged::{missed, verdicts};

    fn figures(p99: f64, bare: f64) -> Vec<Value> {
        let of = |backend: &str| {
            let figure = |what: &str| format!("{backend}: {what}");
            let seen = ["record, 16 members", "record, 300 members", "claim, 16 members", "claim, 300 members"];
            let mut all: Vec<_> =
                seen.iter().map(|what| json!({ "figure": figure(what), "p50_ms": 1.25, "p99_ms": p99, "worst_ms": 99.0 })).collect();
            // The median of the rounds counts.
            for ms in [100.0, 100.0, 900.0] {
                all.extend(["fresh claims", "released claims"].map(|what| json!({ "figure": figure(what), "ms": ms })));
            }
            all.push(json!({ "figure": figure("server, 300 members"), "percent": 4.5 }));
            all
        };
        let compared = ["renewals", "claims"].map(|what| json!({ "figure": format!("nats: {what}"), "ours": 8_000.0, "bare": bare }));
        BACKENDS.into_iter().flat_map(of).chain(compared).collect()
    }

    #[test]
    fn every_figure_is_on_the_page() {
        let text = page(&figures(2.5, 10_000.0));
        for line in [
            "| among 300 members | 1.25 / 2.50 / 99.00 | 1.25 / 2.50 / 99.00 | 1.25 / 2.50 / 99.00 |\n",
            "| with 300 members | 4.50 | 4.50 | 4.50 |\n",
            "| processor of the server with 16 members, % of one core | – | – | – |\n",
            "| 1,024 fresh claims, median, ms | 100.00 | 100.00 | 100.00 |\n",
            "| renewals | 8000 | 10000 |\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn what_misses_its_goal_or_was_not_measured_is_named() {
        assert_eq!(missed(&figures(3.0, 10_000.0), &GOALS), [""; 0]);
        let late = missed(&figures(11.0, 10_001.0), &GOALS);
        assert_eq!(late.len(), 6, "two of PostgreSQL, two of NATS, two of Valkey: {late:?}");
        assert!(verdicts(&figures(11.0, 10_001.0), &GOALS).contains("16 members, p99 in ms | 3 or less | 11.00 | missed |\n"));
        assert_eq!(missed(&[], &GOALS).len(), GOALS.len());
    }
}
