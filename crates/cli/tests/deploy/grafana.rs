//! `deploy/grafana/dashboard.json`.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::prometheus::names_what_is_counted;
use crate::text;

fn dashboard() -> Value {
    serde_json::from_str(&text("grafana/dashboard.json")).unwrap()
}

#[test]
fn the_dashboard_shows_what_is_counted() {
    let dashboard = dashboard();
    let mut shown = 0;
    for panel in dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().unwrap();
        assert!(panel["description"].as_str().is_some_and(|text| text.len() > 10), "{title} says nothing of itself");
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title}");
        for target in targets {
            let expression = target["expr"].as_str().unwrap();
            names_what_is_counted(title, expression);
            assert_eq!(expression.matches('(').count(), expression.matches(')').count(), "{title}: {expression}");
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}: nobody else has our Prometheus");
            shown += 1;
        }
    }
    assert!(shown > 20, "{shown}");
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if let Some(query) = variable["definition"].as_str() {
            names_what_is_counted("a variable", query);
        }
    }
}

#[test]
fn panels_have_their_own_place_and_number() {
    let dashboard = dashboard();
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{}", panel["id"]);
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(w > 0 && h > 0 && x + w <= 24, "{}", panel["title"]);
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(cells.insert(cell), "{} lies over another one", panel["title"]);
        }
    }
}
