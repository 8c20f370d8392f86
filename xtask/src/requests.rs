//! `cargo xtask bench requests`: the program `crates/cli/benches/requests` prints a figure for each round; this judges their medians and
//! writes the page.

use std::fmt::Write as _;

use serde_json::Value;

use crate::judged::Limit::{AtLeast, AtMost, Below};
use crate::judged::{Goal, median, numbers};
use crate::measured::row;

pub(crate) const NAME: &str = "requests";
pub(crate) const FIGURES: &str = "SHARDWISE_REQUESTS_FIGURES";

const WHAT: &str = "Medians of the rounds, which alternate between what is compared; all processes share the cores of this machine. `ask` \
    between two members in two processes, beside a client and a server of hyper's HTTP/2 and nothing else, with bodies of 100 bytes: `GET` \
    without a token, and `POST` with one, where every record of the connection is proven. Through two sidecars: a client with blocking \
    sockets and HTTP/1.1 asks one of two `shardwise serve` for the other's status.";
const WHAT_HOT: &str = "Eight members in one process, each with eight handlers at once of 20 ms, and 1,600 requests a second by a caller \
    that is not a member. Hot: fifty keys with equal load, and one with a hundred times that of each, `max_width` 4 and `saturated_at` 4. \
    Even: the same load over 150 keys. A request's time counts from the moment at which it was due; the first half of each turn does not \
    count.";

const WAYS: [&str; 4] = ["bare GET", "ask GET", "bare POST", "ask POST"];
const IN_FLIGHT: [u64; 2] = [1, 64];
const FORWARDED: [(&str, &str); 4] = [
    ("GET plain", "`GET` through two sidecars"),
    ("POST plain", "`POST` through two sidecars"),
    ("GET tls", "the `GET` with TLS between them"),
    ("POST tls", "the `POST` with TLS between them"),
];

pub(crate) const GOALS: [Goal; 14] = [
    Goal { what: "`ask` over bare HTTP/2, `GET`, 1 in flight, p50", wanted: AtMost(1.25), found: |all| over_bare(all, "GET", 1, "p50_us") },
    Goal { what: "the same, p99", wanted: AtMost(1.5), found: |all| over_bare(all, "GET", 1, "p99_us") },
    Goal { what: "64 in flight, p50", wanted: AtMost(1.25), found: |all| over_bare(all, "GET", 64, "p50_us") },
    Goal { what: "the same, p99", wanted: AtMost(1.5), found: |all| over_bare(all, "GET", 64, "p99_us") },
    Goal {
        what: "a `POST` through two sidecars over bare HTTP/2, p50",
        wanted: AtMost(3.0),
        found: |all| Some(of(all, "POST plain", "alone_p50_ms")? * 1e3 / way(all, "bare POST", 1, "p50_us")?),
    },
    Goal {
        what: "`POST` with TLS through two sidecars, a second, over the version named by SHARDWISE_BENCH_BEFORE",
        wanted: AtLeast(10.0),
        found: |all| Some(of(all, "POST tls", "median")? / of(all, "before: POST tls", "median")?),
    },
    Goal {
        what: "`route` a second among 1,000 members, in millions",
        wanted: AtLeast(10.0),
        found: |all| Some(of(all, "route", "rate")? / 1e6),
    },
    Goal {
        what: "p99 with a hot key over the p99 of the same load spread evenly",
        wanted: AtMost(2.0),
        found: |all| Some(load(all, "hot", "p99_ms")? / load(all, "even", "p99_ms")?),
    },
    Goal { what: "members over which the hot key was spread", wanted: AtMost(4.0), found: |all| load(all, "hot", "width") },
    Goal { what: "requests with a hot key that failed", wanted: Below(1.0), found: |all| most(all, "hot", "failures") },
    Goal {
        what: "`ask` over bare HTTP/2, proven `POST`, 1 in flight, p50",
        wanted: AtMost(1.25),
        found: |all| over_bare(all, "POST", 1, "p50_us"),
    },
    Goal { what: "the same, p99", wanted: AtMost(1.5), found: |all| over_bare(all, "POST", 1, "p99_us") },
    Goal { what: "64 in flight, p50", wanted: AtMost(1.25), found: |all| over_bare(all, "POST", 64, "p50_us") },
    Goal { what: "the same, p99", wanted: AtMost(1.5), found: |all| over_bare(all, "POST", 64, "p99_us") },
];

fn of(figures: &[Value], figure: &str, field: &str) -> Option<f64> {
    median(numbers(figures, "figure", figure, field))
}

fn load(figures: &[Value], load: &str, field: &str) -> Option<f64> {
    median(numbers(figures, "load", load, field))
}

fn most(figures: &[Value], load: &str, field: &str) -> Option<f64> {
    numbers(figures, "load", load, field).max_by(f64::total_cmp)
}

fn way(figures: &[Value], way: &str, in_flight: u64, field: &str) -> Option<f64> {
    let of_way = figures.iter().filter(|figure| figure["way"] == way && figure["in_flight"] == in_flight);
    median(of_way.filter_map(|figure| figure[field].as_f64()))
}

/// How many times as long `ask` takes.
fn over_bare(figures: &[Value], method: &str, in_flight: u64, field: &str) -> Option<f64> {
    let [ask, bare] = ["ask", "bare"].map(|what| way(figures, &format!("{what} {method}"), in_flight, field));
    Some(ask? / bare?)
}

fn cell(number: Option<f64>, digits: usize) -> String {
    number.map_or_else(|| "–".into(), |number| format!("{number:.digits$}"))
}

pub(crate) fn page(figures: &[Value]) -> String {
    let mut page = format!("{WHAT}\n\n| | in flight | p50, µs | p99, µs | a second |\n|---|---:|---:|---:|---:|\n");
    for in_flight in IN_FLIGHT {
        for name in WAYS {
            let [p50, p99, rate] = ["p50_us", "p99_us", "rate"].map(|field| cell(way(figures, name, in_flight, field), 0));
            page += &row([name, &in_flight.to_string(), &p50, &p99, &rate]);
        }
    }
    page += "\n| | one after the other, p50, ms | p99, ms | over 16 connections, a second |\n|---|---:|---:|---:|\n";
    let before = FORWARDED.map(|(figure, title)| ("before: ", figure, title, ", the version before"));
    let all = FORWARDED.map(|(figure, title)| ("", figure, title, "")).into_iter();
    let bare = ("bare: ", "POST tls", "`POST` through two processes of hyper with TLS between them, and nothing else", "");
    for (prefix, figure, title, version) in all.chain([bare]).chain(before) {
        let figure = format!("{prefix}{figure}");
        let [p50, p99] = ["alone_p50_ms", "alone_p99_ms"].map(|field| cell(of(figures, &figure, field), 2));
        page += &row([&format!("{title}{version}"), &p50, &p99, &cell(of(figures, &figure, "median"), 0)]);
    }
    let routed = cell(of(figures, "route", "rate").map(|rate| rate / 1e6), 1);
    let _ = write!(
        page,
        "\n`route` to the owner of a key among 1,000 members, by one thread: {routed} million a second.\n\n{WHAT_HOT}\n\n| | p50, ms | \
         p99, ms | width | failed |\n|---|---:|---:|---:|---:|\n"
    );
    for name in ["even", "hot"] {
        let [p50, p99] = ["p50_ms", "p99_ms"].map(|field| cell(load(figures, name, field), 1));
        page += &row([name, &p50, &p99, &cell(most(figures, name, "width"), 0), &cell(most(figures, name, "failures"), 0)]);
    }
    page
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::judged::verdicts;

    fn figures(ask: f64, hot: f64) -> Vec<Value> {
        let mut all = Vec::new();
        for in_flight in IN_FLIGHT {
            for name in WAYS {
                let micros = if name.starts_with("bare") { 100.0 } else { ask };
                // The median counts, and not the one slow round.
                for times in [1.0, 1.0, 9.0] {
                    let (p50, p99) = (micros * times, micros * times * 2.0);
                    all.push(json!({ "way": name, "in_flight": in_flight, "p50_us": p50, "p99_us": p99, "rate": 1e6 / micros }));
                }
            }
        }
        for (prefix, rate) in [("", 5_000.0), ("before: ", 400.0)] {
            all.extend(FORWARDED.map(|(figure, _)| {
                json!({ "figure": format!("{prefix}{figure}"), "alone_p50_ms": 0.25, "alone_p99_ms": 1.5, "median": rate, "best": rate })
            }));
        }
        all.push(json!({ "figure": "route", "members": 1_000, "rate": 12_500_000.0 }));
        all.push(json!({ "load": "even", "p50_ms": 21.0, "p99_ms": 30.0, "width": 1, "failures": 0 }));
        all.push(json!({ "load": "hot", "p50_ms": 21.5, "p99_ms": hot, "width": 4, "failures": 0 }));
        all
    }

    #[test]
    fn every_figure_is_on_the_page() {
        let text = page(&figures(120.0, 45.0));
        for line in [
            "| bare GET | 1 | 100 | 200 | 10000 |\n",
            "| ask POST | 64 | 120 | 240 | 8333 |\n",
            "| the `POST` with TLS between them | 0.25 | 1.50 | 5000 |\n",
            "| the `POST` with TLS between them, the version before | 0.25 | 1.50 | 400 |\n",
            "by one thread: 12.5 million a second",
            "| hot | 21.5 | 45.0 | 4 | 0 |\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(page(&[]).contains("| ask GET | 64 | – | – | – |"), "{}", page(&[]));
    }

    #[test]
    fn the_medians_are_judged() {
        let reached = verdicts(&figures(125.0, 60.0), &GOALS);
        assert_eq!(reached.matches("| reached |").count(), GOALS.len(), "{reached}");
        let missed = verdicts(&figures(126.0, 61.0), &GOALS);
        assert_eq!(missed.matches("| missed |").count(), 5, "the median of `ask` four times, and the hot key: {missed}");
        assert_eq!(verdicts(&[], &GOALS).matches("| not measured |").count(), GOALS.len());
    }
}
