//! `docs/reference/metrics.md` is what the table of metrics says.

use std::collections::BTreeSet;
use std::path::Path;

use shardwise::metrics::{METRICS, MetricKind, page};

#[test]
fn the_page_is_what_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/metrics.md");
    if std::env::var_os("SHARDWISE_WRITE_PAGES").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page(),
        "docs/reference/metrics.md is out of date: run SHARDWISE_WRITE_PAGES=1 cargo test -p shardwise --test workspace"
    );
}

#[test]
fn names_are_as_prometheus_has_them() {
    let names: BTreeSet<_> = METRICS.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), METRICS.len(), "a name stands twice");
    for metric in METRICS {
        let name = metric.name;
        assert!(name.starts_with("shardwise_") && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
        assert_eq!(name.ends_with("_total"), metric.kind == MetricKind::Counter, "{name}");
        assert_eq!(name.ends_with("_seconds"), metric.unit == "seconds", "{name}");
        assert!(metric.help.len() > 20 && metric.labels.first() == Some(&"policy"), "{name}");
        assert!(
            metric.labels.iter().all(|label| ["policy", "cause", "state", "kind", "outcome"].contains(label)),
            "{name}: no key in a label"
        );
    }
}
