//! The API document of all routes (`openapi.json`).

use bytes::Bytes;
use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use crate::connections::OPEN;
use crate::options::Options;
use crate::problem::{PROBLEM_JSON, Problem};
use crate::{
    answers, ask, cancels, daemons, drain, explain, forward, health, holders, key_routes, lease_routes, leases, outbox_routes, owned, plan,
    rebalances, slots,
};

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
        lease_routes::lease::open,
        lease_routes::lease::renew,
        lease_routes::lease::close,
        lease_routes::follow::grants,
        lease_routes::follow::finished,
        lease_routes::enter::enter,
        lease_routes::names::offer,
        slots::policies,
        slots::drained,
        outbox_routes::status,
        outbox_routes::replay,
        rebalances::rebalances,
        plan::plan,
        drain::drain,
        drain::undrain,
        daemons::daemon_count,
        daemons::set_daemon_count,
        forward::one,
        forward::any,
        ask::to_owner,
        ask::to_holder,
        ask::to_session,
        cancels::cancel,
        key_routes::route,
        key_routes::routes,
        key_routes::set_route,
        key_routes::clear_route,
        health::livez,
        health::readyz,
        health::metrics,
        health::document,
    ),
    components(schemas(Problem))
)]
struct Document;

/// The errors that any route may return.
const REFUSALS: [(&str, &str); 17] = [
    ("400", "The request cannot be understood"),
    ("401", "The token is missing or wrong"),
    ("403", "A page of another origin, or an action where no token is set"),
    ("404", "There is no such policy, member, name or path"),
    ("405", "Another method"),
    ("408", "The body did not arrive in time"),
    ("409", "The request conflicts with the policy or with the state of the group"),
    ("410", "The worker's lease is not live any more, or the session has ended"),
    ("413", "The body is too large"),
    ("415", "The media type of the body is not supported"),
    ("421", "The request is for another host"),
    ("422", "A number is out of range"),
    ("429", "Too many requests"),
    ("500", "The backend refuses"),
    ("502", "Another member does not answer"),
    ("503", "Not a member yet or any more, the backend cannot be reached, or no member has taken the request"),
    ("504", "Another member does not answer in time"),
];

/// Which tokens a sidecar has.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TokensSet {
    operator: bool,
    worker: bool,
    caller: bool,
}

impl TokensSet {
    pub(crate) const fn of(options: &Options) -> Self {
        Self { operator: options.token.is_some(), worker: options.worker_token.is_some(), caller: options.caller_token.is_some() }
    }

    /// Whether the route needs one of them.
    fn keep(self, path: &str) -> bool {
        let of_others = self.worker && leases::is_for_workers(path) || self.caller && ask::is_for_callers(path);
        self.operator && !OPEN.contains(&path) || of_others
    }
}

/// The document for those policies. What routes have in common is added here: the parameters in their paths, POST to members, errors, and
/// the token.
pub(crate) fn document(policies: &[&str], tokens: TokensSet) -> Bytes {
    let mut document = serde_json::to_value(Document::openapi()).unwrap_or_default();
    let path = json!({"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[A-Za-z0-9_~-][A-Za-z0-9_.~-]*$"});
    let parameters = [
        ("policy", "A policy that this sidecar serves", json!({"type": "string", "enum": policies})),
        ("key", "The key", json!({"type": "string"})),
        ("instance_id", "The member", json!({"type": "string"})),
        ("set", "The set of daemons", json!({"type": "string"})),
        ("name", "The full name, such as singleton/leader", json!({"type": "string"})),
        ("id", "The id of the session, or of the request", json!({"type": "string"})),
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
            if tokens.keep(path) {
                operation["security"] = json!([{"token": []}]);
            }
        }
    }
    if tokens.operator || tokens.worker || tokens.caller {
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
        let document: Value = serde_json::from_slice(&document(&[], TokensSet::default())).unwrap();
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
