//! The sidecar's own metrics, besides those of its services, through the facade of the crate `metrics`. One table holds their names and
//! texts for the code and for the page `metrics.md`.

use shardwise::metrics::{Metric, MetricKind};

pub(crate) const REQUESTS: Metric = Metric {
    name: "shardwise_sidecar_requests_total",
    kind: MetricKind::Counter,
    unit: "requests",
    help: "Requests that were answered or refused, by status and by route as in `/openapi.json` (`none` if there is none)",
    labels: &["route", "status"],
};
pub(crate) const CONNECTIONS: Metric = Metric {
    name: "shardwise_sidecar_connections",
    kind: MetricKind::Gauge,
    unit: "connections",
    help: "Connections that are open, counted when `/metrics` is read",
    labels: &[],
};
pub(crate) const FORWARDS: Metric = Metric {
    name: "shardwise_sidecar_forwards_total",
    kind: MetricKind::Counter,
    unit: "requests",
    help: "Requests at `instances/` and `any/` by outcome: answered, unknown, unreachable, no_worker, busy, barred, broken, late",
    labels: &["outcome"],
};

/// Describes each metric of a sidecar to the installed exporter, as `shardwise::metrics::describe` does for those of the services.
pub fn describe_metrics() {
    for Metric { name, help, .. } in [REQUESTS, FORWARDS] {
        ::metrics::describe_counter!(name, help);
    }
    ::metrics::describe_gauge!(CONNECTIONS.name, CONNECTIONS.help);
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    const METRICS: [Metric; 3] = [REQUESTS, CONNECTIONS, FORWARDS];
    const BEGINNING: &str = "# Metrics of a sidecar

Generated from the table in `crates/sidecar/src/metrics.rs`;
`SHARDWISE_WRITE_PAGES=1 cargo test -p shardwise-sidecar --lib metrics` writes it.

`shardwise serve` serves these at `/metrics` in Prometheus' form, beside those of its services
(`docs/reference/metrics.md`). No label carries a key or the name of a member.

";

    #[test]
    fn the_page_is_the_table() {
        let mut page = BEGINNING.to_owned();
        for Metric { name, kind, unit, help, labels } in METRICS {
            let labels = labels.iter().map(|label| format!(", by `{label}`")).collect::<Vec<_>>().concat();
            writeln!(page, "- `{name}` ({}, unit {unit}{labels}):\n  {}", kind.as_str(), help.replace("; ", ";\n  ")).unwrap();
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/metrics.md");
        if std::env::var_os("SHARDWISE_WRITE_PAGES").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), page, "metrics.md is not the table's: SHARDWISE_WRITE_PAGES=1 writes it");
    }

    #[test]
    fn names_say_what_they_are() {
        for Metric { name, kind, help, .. } in METRICS {
            assert!(name.starts_with("shardwise_sidecar_") && !help.ends_with('.'), "{name}");
            assert_eq!(name.ends_with("_total"), kind == MetricKind::Counter, "{name}");
        }
    }
}
