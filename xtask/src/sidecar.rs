//! `cargo xtask bench sidecar`: the program `crates/cli/benches/sidecar` prints its figures; this judges them and writes the page.

use std::process::Command;

use serde_json::Value;

use crate::context::TaskContext;
use crate::judged::Limit::{Above, AtLeast, Below};
use crate::judged::{Goal, numbers};
use crate::measured::row;

pub(crate) const NAME: &str = "sidecar";
pub(crate) const FIGURES: &str = "SHARDWISE_SIDECAR_FIGURES";

/// Figures of requests that two sidecars pass on, and the rows of the page.
const FORWARDED: [(&str, &str); 4] = [
    ("GET plain", "`GET` of another member's status over 16 connections"),
    ("POST plain", "the same with `POST`"),
    ("GET tls", "the `GET` with TLS between the sidecars"),
    ("POST tls", "the `POST` with TLS between the sidecars"),
];

const MIB: f64 = 1024.0 * 1024.0;
const OPENED: usize = 5;

const WHAT: &str = "A real `shardwise serve`, alone in its group on the backend `local` (TTL 3 s), asked over loopback by one process \
    with plain blocking sockets that shares the cores with it; the load generator is our own, not `wrk`. Lists and streams come back \
    whole, because everything is the worker's own. Peak memory is the process's `VmHWM`, forgotten before each row. How late renewals are \
    is what `shardwise_deadline_margin_seconds` loses under load (16 connections that ask for owners, two that send lists) against the \
    same sidecar idle. Requests to another member go through two sidecars of one group, which answer `status` themselves. The page: a \
    release build and headless Chromium, opened anew five times.";

pub(crate) const GOALS: [Goal; 6] = [
    Goal { what: "100,000 keys in JSON, round trip in ms (fastest)", wanted: Below(60.0), found: |all| number(all, "list", "fastest_ms") },
    Goal {
        what: "1,000,000 keys as a stream of text, in ms (fastest)",
        wanted: Below(600.0),
        found: |all| number(all, "stream", "fastest_ms"),
    },
    // Less than this counts as none.
    Goal {
        what: "peak memory that four times the body takes more, in MiB",
        wanted: Below(8.0),
        found: |all| Some((number(all, "memory", "four_times")? - number(all, "memory", "once")?).max(0.0) / MIB),
    },
    Goal { what: "`owner` requests a second over 16 connections", wanted: AtLeast(15_000.0), found: |all| number(all, "owner", "best") },
    Goal {
        what: "margin of the worst renewal during a minute of load, in ms; 0 if a lease was lost",
        wanted: Above(0.0),
        found: |all| if number(all, "renewals", "lost")? > 0.0 { Some(0.0) } else { number(all, "renewals", "margin_lowest_ms") },
    },
    Goal {
        what: "the page with 200 members and 16,384 slots, in ms until it can be used (slowest of five)",
        wanted: Below(1_000.0),
        found: |all| numbers(all, "figure", "page", "usable_ms").max_by(f64::total_cmp),
    },
];

fn number(figures: &[Value], figure: &str, field: &str) -> Option<f64> {
    numbers(figures, "figure", figure, field).next()
}

/// The tests that write figures too, in the order in which they run.
pub(crate) fn page_tests(context: &TaskContext) -> impl Iterator<Item = Command> {
    (0..OPENED).map(move |_| context.cargo(&["test", "--release", "--package", "shardwise-sidecar", "--test", "page", "two_hundred"]))
}

pub(crate) fn page(figures: &[Value]) -> String {
    let number = |figure, field| number(figures, figure, field).unwrap_or(f64::NAN);
    let mut page = format!("{WHAT}\n\n| | fastest | median |\n|---|---:|---:|\n");
    for (figure, title) in [("list", "keys in JSON"), ("stream", "keys as a stream of text")] {
        let [keys, fastest, median] = ["keys", "fastest_ms", "median_ms"].map(|field| number(figure, field));
        page += &row([format!("{keys} {title}"), format!("{fastest:.1} ms"), format!("{median:.1} ms")]);
    }
    let [best, median] = ["best", "median"].map(|field| format!("{:.0} a second", number("owner", field)));
    page += &row(["`owner` over 16 connections", &best, &median]);
    for (figure, title) in FORWARDED {
        let [best, median] = ["best", "median"].map(|field| format!("{:.0} a second", number(figure, field)));
        page += &row([title, &best, &median]);
    }
    let [idle, once, more] = ["idle", "once", "four_times"].map(|field| number("memory", field) / MIB);
    let [seconds, owners, lists, late, lost] = ["seconds", "owners", "lists", "late_ms", "lost"].map(|field| number("renewals", field));
    let alone = |figure| ["alone_p50_ms", "alone_p99_ms"].map(|field| number(figure, field));
    let [[plain_p50, plain_p99], [tls_p50, tls_p99]] = [alone("POST plain"), alone("POST tls")];
    page + &format!(
        "\nA `POST` through two sidecars, one after the other: median {plain_p50:.2} ms and 99 % below {plain_p99:.2} ms without TLS between \
         them, {tls_p50:.2} ms and {tls_p99:.2} ms with it.\nPeak memory: {idle:.1} MiB idle, {once:.1} MiB with the stream, {more:.1} MiB \
         with one four times as long.\nRenewals beside {seconds:.0} s of load ({owners:.0} owners, \
         {lists:.0} lists): at worst {late:.0} ms later than idle, {lost:.0} leases lost.\n"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::judged::verdicts;

    #[test]
    fn each_wanted_figure_has_its_verdict() {
        let figures = [
            json!({"figure": "list", "keys": 100_000, "fastest_ms": 41.25, "median_ms": 70.0}),
            json!({"figure": "stream", "keys": 1_000_000, "fastest_ms": 600.0, "median_ms": 700.0}),
            json!({"figure": "memory", "idle": 20_971_520, "once": 31_457_280, "four_times": 30_408_704}),
            json!({"figure": "owner", "best": 15_000.0, "median": 14_000.0}),
            json!({"figure": "POST tls", "best": 9_000.0, "median": 8_000.0, "alone_p50_ms": 0.25, "alone_p99_ms": 1.5}),
            json!({
                "figure": "renewals", "seconds": 60.0, "owners": 9, "lists": 2, "late_ms": 12.0, "margin_lowest_ms": 1_800.0, "lost": 1
            }),
            json!({"figure": "page", "usable_ms": 480.0}),
            json!({"figure": "page", "usable_ms": 612.0}),
        ];
        let page = page(&figures) + &verdicts(&figures, &GOALS);
        for line in [
            "| 100000 keys in JSON | 41.2 ms | 70.0 ms |\n",
            "| the `POST` with TLS between the sidecars | 9000 a second | 8000 a second |\n",
            "0.25 ms and 1.50 ms with it.\n",
            "(fastest) | below 60 | 41.25 | reached |\n",
            "(fastest) | below 600 | 600 | missed |\n",
            "in MiB | below 8 | 0.00 | reached |\n",
            "over 16 connections | 15000 or more | 15000 | reached |\n",
            "if a lease was lost | more than 0 | 0.00 | missed |\n",
            "(slowest of five) | below 1000 | 612 | reached |\n",
            "20.0 MiB idle, 30.0 MiB with the stream, 29.0 MiB",
        ] {
            assert!(page.contains(line), "{line}: {page}");
        }
        assert!(verdicts(&[], &GOALS).contains("| – | not measured |"));
    }
}
