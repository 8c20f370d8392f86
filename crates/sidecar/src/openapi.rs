//! The API document of all routes (`openapi.json`).

use bytes::Bytes;
use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use crate::gate::OPEN;
use crate::problem::{PROBLEM_JSON, Problem};
use crate::{answers, daemons, drain, explain, forward, health, holders, leases, outbox, owned, plan, rebalances, slots};

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
        holders::holders,
        leases::lease::open,
        leases::lease::renew,
        leases::lease::close,
        leases::follow::grants,
        leases::follow::finished,
        leases::enter::enter,
        leases::names::offer,
        slots::policies,
        slots::drained,
        outbox::status,
        outbox::replay,
        rebalances::rebalances,
        plan::plan,
        drain::drain,
        drain::undrain,
        daemons::daemon_count,
        daemons::set_daemon_count,
        forward::one,
        forward::any,
        health::livez,
        health::readyz,
        health::metrics,
        health::document,
    ),
    components(schemas(Problem))
)]
struct Document;

/// The errors that any route may return.
const REFUSALS: [(&str, &str); 16] = [
    ("400", "The request cannot be understood"),
    ("401", "The token is missing or wrong"),
    ("403", "A page of another origin, or an action where no token is set"),
    ("404", "There is no such policy, member or path"),
    ("405", "Another method"),
    ("408", "The body did not arrive in time"),
    ("409", "The request conflicts with the policy or with the state of the group"),
    ("410", "The worker's lease is not live any more"),
    ("413", "The body is too large"),
    ("415", "The media type of the body is not supported"),
    ("421", "The request is for another host"),
    ("429", "Too many requests"),
    ("500", "The backend refuses"),
    ("502", "Another member does not answer"),
    ("503", "Not a member yet or any more, or the backend cannot be reached"),
    ("504", "Another member does not answer in time"),
];

/// The document for those policies. What routes have in common is added here: the parameters in their paths, POST to members, errors, and
/// the token.
pub(crate) fn document(policies: &[&str], has_token: bool, has_worker_token: bool) -> Bytes {
    let mut document = serde_json::to_value(Document::openapi()).unwrap_or_default();
    let path = json!({"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[A-Za-z0-9_~-][A-Za-z0-9_.~-]*$"});
    let parameters = [
        ("policy", "A policy that this sidecar serves", json!({"type": "string", "enum": policies})),
        ("key", "The key", json!({"type": "string"})),
        ("instance_id", "The member", json!({"type": "string"})),
        ("set", "The set of daemons", json!({"type": "string"})),
        ("lease", "The id of the worker's lease", json!({"type": "string", "pattern": "^[0-9a-f]{32}$"})),
        ("path", "The path of the request, such as status", path),
    ];
    for (path, operations) in document["paths"].as_object_mut().into_iter().flatten() {
        if operations["get"]["tags"][0] == "members" {
            operations["post"] = post_to_member(&operations["get"]);
        }
        for operation in operations.as_object_mut().into_iter().flat_map(Map::values_mut) {
            let in_path = parameters.iter().filter(|(name, ..)| path.contains(&format!("{{{name}}}")));
            let in_path = in_path.map(|(name, description, schema)| {
                json!({"name": name, "in": "path", "required": true, "description": description, "schema": schema})
            });
            let others = operation["parameters"].as_array().into_iter().flatten().cloned();
            operation["parameters"] = in_path.chain(others).collect();
            for (status, description) in REFUSALS {
                operation["responses"][status] =
                    json!({"description": description, "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}});
            }
            if has_token && !OPEN.contains(&path.as_str()) || has_worker_token && leases::is_for_workers(path) {
                operation["security"] = json!([{"token": []}]);
            }
        }
    }
    if has_token || has_worker_token {
        document["components"]["securitySchemes"] = json!({"token": {"type": "http", "scheme": "bearer"}});
    }
    serde_json::to_vec(&document).unwrap_or_default().into()
}

/// A POST to members, which is like a GET with a body.
fn post_to_member(get: &Value) -> Value {
    let mut post = get.clone();
    let any_type = &get["responses"]["200"]["content"]["application/octet-stream"];
    post["operationId"] = get["operationId"].as_str().map(|id| id.replace("of_", "to_")).into();
    post["summary"] = get["summary"].as_str().map(|summary| summary.replace("GET", "POST")).into();
    post["description"] = "Always needs the token.".into();
    post["requestBody"] =
        json!({"description": "Any media type, at most 1 MiB", "required": true, "content": {"application/octet-stream": any_type}});
    post
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_about_http_has_a_row_for_each_operation() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/http.md")).unwrap();
        let document: Value = serde_json::from_slice(&document(&[], false, false)).unwrap();
        let mut rows = vec!["| `GET /` |".to_owned()];
        for (path, operations) in document["paths"].as_object().unwrap() {
            rows.extend(operations.as_object().unwrap().keys().map(|method| format!("| `{} {path}` |", method.to_uppercase())));
        }
        for row in &rows {
            assert!(page.contains(row.as_str()), "docs/reference/http.md has no row {row}");
        }
        let written =
            page.lines().filter(|line| ["| `GET ", "| `POST ", "| `PUT ", "| `DELETE "].iter().any(|start| line.starts_with(start)));
        assert_eq!(written.count(), rows.len(), "docs/reference/http.md has a route that is not there");
    }
}
