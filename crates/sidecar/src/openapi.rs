//! The API document of all routes (`openapi.json`).

use bytes::Bytes;
use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use crate::problem::{PROBLEM_JSON, Problem};
use crate::{answers, drain, explain, forward, health, outbox, owned, plan, rebalances, slots};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "shardwise sidecar",
        description = "Which keys are mine, who owns what and why, and what moves. Every error is RFC 9457's."
    ),
    paths(
        owned::owned,
        answers::owner,
        explain::explain,
        answers::ownership,
        answers::members,
        slots::slots,
        slots::policies,
        slots::drained,
        outbox::status,
        outbox::replay,
        rebalances::rebalances,
        plan::plan,
        drain::drain,
        drain::undrain,
        forward::of_one,
        forward::to_one,
        forward::of_any,
        forward::to_any,
        health::livez,
        health::readyz,
        health::metrics,
        health::document,
    ),
    components(schemas(Problem))
)]
struct Document;

/// The errors that any route may return.
const REFUSALS: [(&str, &str); 15] = [
    ("400", "The request cannot be understood"),
    ("401", "A token is set, and this one is not it"),
    ("403", "A page of another origin, or an action where no token is set"),
    ("404", "There is no such policy, member or path"),
    ("405", "Another method"),
    ("408", "The body did not come in time"),
    ("409", "It does not go with the group as it is"),
    ("413", "The body is too large"),
    ("415", "The body is of another type"),
    ("421", "A host that is not served here"),
    ("429", "Too much at once"),
    ("500", "The backend refuses"),
    ("502", "Another member gives no answer"),
    ("503", "Not a member yet, or not any more, or the backend is away"),
    ("504", "Another member gives no answer in time"),
];

/// The document for those policies. Properties common to all routes are added here.
pub(crate) fn document<'a>(policies: impl Iterator<Item = &'a str>, has_token: bool) -> Bytes {
    let mut document = serde_json::to_value(Document::openapi()).unwrap_or_default();
    let policies: Vec<_> = policies.collect();
    if let Some(paths) = document["paths"].as_object_mut() {
        paths.values_mut().filter_map(Value::as_object_mut).flat_map(Map::values_mut).for_each(|operation| complete(operation, &policies));
    }
    if has_token {
        document["components"]["securitySchemes"] = json!({"token": {"type": "http", "scheme": "bearer"}});
        for (path, operations) in document["paths"].as_object_mut().into_iter().flatten() {
            let open = path == "/livez" || path == "/readyz";
            operations.as_object_mut().into_iter().flat_map(Map::values_mut).filter(|_| !open).for_each(|operation| {
                operation["security"] = json!([{"token": []}]);
            });
        }
    }
    serde_json::to_vec(&document).unwrap_or_default().into()
}

fn complete(operation: &mut Value, policies: &[&str]) {
    for (status, description) in REFUSALS {
        operation["responses"][status] =
            json!({"description": description, "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}});
    }
    let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
    for parameter in parameters.into_iter().flatten().filter(|parameter| parameter["name"] == "policy") {
        parameter["schema"]["enum"] = json!(policies);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_about_http_has_a_row_for_each_operation() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/http.md")).unwrap();
        let document: Value = serde_json::from_slice(&document(std::iter::empty(), false)).unwrap();
        let mut rows = vec!["| `GET /` |".to_owned()];
        for (path, operations) in document["paths"].as_object().unwrap() {
            rows.extend(operations.as_object().unwrap().keys().map(|method| format!("| `{} {path}` |", method.to_uppercase())));
        }
        for row in &rows {
            assert!(page.contains(row.as_str()), "docs/reference/http.md has no row {row}");
        }
        let written = page.lines().filter(|line| ["| `GET ", "| `POST "].iter().any(|start| line.starts_with(start)));
        assert_eq!(written.count(), rows.len(), "docs/reference/http.md has a route that is not there");
    }
}
