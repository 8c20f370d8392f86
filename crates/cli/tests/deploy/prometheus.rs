//! `deploy/prometheus`: the metrics in the alerts exist, and the alerts fire exactly when they should.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;
use shardwise::metrics::{METRICS, MetricKind};

use crate::common::run;
use crate::{file, text, yaml};

/// Labels that Prometheus itself adds.
const SCRAPED: [&str; 2] = ["job", "instance"];

/// Every possible series: its name and its labels.
pub(crate) fn series() -> Vec<(String, Vec<String>)> {
    let mut series = Vec::new();
    let mut add = |name: &str, is_histogram: bool, labels: &[&str]| {
        let labels: Vec<_> = labels.iter().copied().chain(SCRAPED).map(str::to_owned).collect();
        if is_histogram {
            series.extend(["_sum", "_count"].map(|end| (format!("{name}{end}"), labels.clone())));
        } else {
            series.push((name.to_owned(), labels));
        }
    };
    for metric in METRICS {
        add(metric.name, metric.kind == MetricKind::Histogram, metric.labels);
    }
    // A separate test generates the outbox's page from its table as well.
    let page = include_str!("../../../outbox/metrics.md");
    for item in page.lines().filter(|line| line.starts_with("- `shardwise_outbox_")) {
        let (name, kind) = item.trim_start_matches("- `").split_once("` (").unwrap();
        add(name, kind == "histogram):", &["sink"]);
    }
    assert!(series.len() > 35, "{series:?}");
    series
}

/// The words of an expression, without quoted text.
fn words(expression: &str) -> Vec<&str> {
    let outside = expression.split('"').step_by(2);
    outside.flat_map(|part| part.split(|each: char| !each.is_ascii_alphanumeric() && each != '_')).filter(|word| !word.is_empty()).collect()
}

/// Checks that every metric in the expression exists, and has every label used with it.
pub(crate) fn names_what_is_counted(what: &str, expression: &str) {
    let series = series();
    let words = words(expression);
    let metrics: Vec<_> = words.iter().filter(|word| word.starts_with("shardwise_")).collect();
    assert!(!metrics.is_empty(), "{what} looks at nothing: {expression}");
    let mut labels = BTreeSet::new();
    for metric in metrics {
        let known = series.iter().find(|(name, _)| name == metric).unwrap_or_else(|| panic!("{what}: {metric} is not counted"));
        labels.extend(known.1.clone());
    }
    let known = ["policy", "cause", "state", "kind", "sink", "job", "instance", "member", "key", "pod", "worker", "group", "zone"];
    for label in words.iter().filter(|word| known.contains(word)) {
        assert!(labels.contains(*label), "{what}: nothing there has the label {label}: {expression}");
    }
}

fn rules() -> Vec<Value> {
    let groups = yaml("prometheus/alerts.yaml").remove(0);
    groups["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

#[test]
fn alerts_name_what_is_counted() {
    let rules = rules();
    assert!(rules.len() >= 15);
    for rule in &rules {
        let name = rule["alert"].as_str().unwrap();
        names_what_is_counted(name, rule["expr"].as_str().unwrap());
        assert!(["page", "ticket"].contains(&rule["labels"]["severity"].as_str().unwrap()), "{name}");
        for text in ["summary", "description"] {
            assert!(rule["annotations"][text].as_str().is_some_and(|text| text.len() > 15), "{name} has no {text}");
        }
    }
}

#[test]
fn each_alert_is_seen_to_fire_and_to_be_silent() {
    let tests = yaml("prometheus/alerts_test.yaml").remove(0);
    let cases: Vec<_> = tests["tests"].as_array().unwrap().iter().flat_map(|test| test["promql_expr_test"].as_array().unwrap()).collect();
    for rule in rules() {
        let firing = format!("ALERTS{{alertname={}, alertstate=\"firing\"}}", rule["alert"]);
        let expected = |is_silent: bool| {
            cases.iter().any(|case| case["expr"] == *firing && case["exp_samples"].as_array().unwrap().is_empty() == is_silent)
        };
        assert!(expected(false) && expected(true), "{firing} is not tried");
    }
}

#[test]
fn promtool_takes_the_rules_and_their_tests() {
    let promtool = shardwise_testkit::servers::program("promtool").unwrap();
    for arguments in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]] {
        let mut command = Command::new(&promtool);
        command.args(arguments).current_dir(file("prometheus"));
        let ran = run(command, b"");
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    assert!(!text("prometheus/alerts.yaml").contains('\t'));
}
