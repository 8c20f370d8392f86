//! Requests to the owner of a key, the holder of a name and the member of a session: they go on to the right member until their time is
//! over.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use shardwise::ClaimName;
use shardwise::core::{KEY_BYTES_MAX, OwnershipMode, Resource};
use shardwise::requests::{self, Answered, AskError, NoRoute, SessionId, To, WITHIN_DEFAULT};
use tokio::time::Instant;

use crate::app::{App, ServedGroup};
use crate::forward::{TIMEOUT, refused, suspect};
use crate::member_request::{self, sent};
use crate::path_parameters::{KeyPath, NamePath, PolicyPath};
use crate::problem::{
    BAD_GATEWAY, BAD_KEY, BAD_REQUEST, BAD_SESSION, CONFLICT, NOT_HANDLED, Problem, Result, SESSION_ENDED, TOO_LATE, TOO_MANY,
    UNKNOWN_INSTANCE, UNKNOWN_NAME, UNREACHABLE,
};
use crate::unanswered::living;

/// The first parts of the routes of requests to members, behind the policy. Their paths lead to handlers of workers.
const TO_MEMBERS: [&str; 5] = ["keys/", "names/", "sessions/", "instances/", "any/"];
/// The other routes of callers.
const OF_CALLERS: [&str; 2] = ["route", "requests/{id}"];

fn of_policy(route: &str) -> Option<&str> {
    route.strip_prefix("/v1/policies/{policy}/")
}

/// Whether what is sent to the route reaches a handler of a worker.
pub(crate) fn leads_to_handlers(route: &str) -> bool {
    of_policy(route).is_some_and(|route| TO_MEMBERS.iter().any(|begin| route.starts_with(begin)))
}

/// Whether the route is one that a caller needs.
pub(crate) fn is_for_callers(route: &str) -> bool {
    leads_to_handlers(route) || of_policy(route).is_some_and(|route| OF_CALLERS.contains(&route))
}

/// Forward a GET to the owner of a key.
///
/// The key is in the path, percent-encoded (a slash as %2F). Under exclusive ownership the request is handled under the guard of the key's
/// slot, and the worker sees the headers `shardwise-key`, `shardwise-slot` and `shardwise-epoch`. It goes on to another member, or waits
/// for one, as long as it was certainly not handled: 10 s, or as long as the header `shardwise-within-ms` says, up to 5 min.
#[utoipa::path(
    get, path = "/v1/policies/{policy}/keys/{key}/{path}", tag = "members", operation_id = "of_owner",
    responses((
        status = 200, description = "The answer of the member, of any media type",
        content((serde_json::Value = "application/json"), (String = "text/plain"), (Vec<u8> = "application/octet-stream")),
        headers(("shardwise-instance" = String, description = "The member that answered"))
    ))
)]
pub(crate) async fn to_owner(
    State(app): State<Arc<App>>,
    PolicyPath(joined): PolicyPath,
    KeyPath(key): KeyPath,
    request: Request,
) -> Result<Response> {
    let key = checked(&key)?;
    bring(&app, &joined, &To::owner(key), request).await
}

/// Forward a GET to the holder of a name.
///
/// The name is in the path, percent-encoded, such as `singleton%2Fleader`. The worker sees the headers `shardwise-name` and
/// `shardwise-epoch`. Time limits are as for keys; if no member has held the name until then, the answer is 404.
#[utoipa::path(
    get, path = "/v1/policies/{policy}/names/{name}/{path}", tag = "members", operation_id = "of_holder",
    responses((
        status = 200, description = "The answer of the member, of any media type",
        content((serde_json::Value = "application/json"), (String = "text/plain"), (Vec<u8> = "application/octet-stream")),
        headers(("shardwise-instance" = String, description = "The member that answered"))
    ))
)]
pub(crate) async fn to_holder(
    State(app): State<Arc<App>>,
    PolicyPath(joined): PolicyPath,
    NamePath(name): NamePath,
    request: Request,
) -> Result<Response> {
    let policy = joined.service.policy();
    if policy.ownership != OwnershipMode::Exclusive {
        return Err(CONFLICT.because(format!("policy {} has ownership = \"eventual\", and then no name is held", policy.name)));
    }
    // What cannot be a name is held by no member.
    let name = ClaimName::new(name.as_str()).map_err(|error| unknown_name(&joined, &error.to_string()))?;
    bring(&app, &joined, &To::Holder(&name), request).await
}

/// Forward a GET to a session.
///
/// It goes to the member that has opened the session, whose name is in the id, and to no other one. The worker sees the header
/// `shardwise-session`. 400 if the id is malformed, 410 if the session has ended.
#[utoipa::path(
    get, path = "/v1/policies/{policy}/sessions/{id}/{path}", tag = "members", operation_id = "of_session",
    responses((
        status = 200, description = "The answer of the member, of any media type",
        content((serde_json::Value = "application/json"), (String = "text/plain"), (Vec<u8> = "application/octet-stream")),
        headers(("shardwise-instance" = String, description = "The member that answered"))
    ))
)]
pub(crate) async fn to_session(
    State(app): State<Arc<App>>,
    PolicyPath(joined): PolicyPath,
    NamePath(id): NamePath,
    request: Request,
) -> Result<Response> {
    let id = id.parse::<SessionId>().map_err(|error| BAD_SESSION.because(error.to_string()))?;
    bring(&app, &joined, &To::Session(&id), request).await
}

/// The key, if it is not too long.
pub(crate) fn checked(key: &str) -> Result<&str> {
    if key.len() > KEY_BYTES_MAX { Err(BAD_KEY.because(format!("a key has at most {KEY_BYTES_MAX} bytes"))) } else { Ok(key) }
}

async fn bring(app: &App, joined: &ServedGroup, to: &To<'_>, request: Request) -> Result<Response> {
    let brought = Box::pin(brought(app, joined, to, request)).await;
    brought.inspect_err(|problem| refused(app, problem, false))
}

async fn brought(app: &App, joined: &ServedGroup, to: &To<'_>, request: Request) -> Result<Response> {
    let (head, body) = request.into_parts();
    // The member's path follows "", v1, policies, the policy, the kind of the destination and the destination.
    let policy = joined.service.policy().name.as_str();
    let (request, terms, scope, _room) = member_request::taken(app, policy, &head, body, 6).await?;
    let (begun, within) = (Instant::now(), terms.within.unwrap_or(WITHIN_DEFAULT));
    let asked = scope.run(joined.ask(app, to, request, within)).await?;
    let Answered { answer, by, .. } = asked.map_err(|error| problem(joined, to, &error, begun.elapsed() >= within))?;
    // It is answered, so nothing from here on may turn it into a problem.
    let view = joined.observer.get().filter(|_| answer.status == TIMEOUT).map(shardwise::Observer::members);
    if let Some(member) = view.as_ref().and_then(|view| view.member(&by)) {
        suspect(app, joined, member).await;
    }
    Ok(sent(&by, answer))
}

impl ServedGroup {
    /// Asks as this member or, where the group is only observed, as a router.
    async fn ask(
        &self,
        app: &App,
        to: &To<'_>,
        request: requests::Request,
        within: Duration,
    ) -> Result<std::result::Result<Answered, AskError>> {
        if self.only_observes {
            return Ok(self.router(app).await?.ask(to, request, within).await);
        }
        Ok(self.service.ask(to, request, within).await)
    }

    /// The router of a group that is only observed.
    pub(crate) async fn router(&self, app: &App) -> Result<&shardwise::Router> {
        let make = || async {
            let policy = self.service.policy().name.to_string();
            let router = app.call(|factory| async move { factory.router(&policy).await }).await?;
            // With the token and certificates of this sidecar's options.
            router.set_transport(self.service.connections())?;
            Ok(router)
        };
        self.router.get_or_try_init(make).await
    }
}

/// Why there is no answer. `is_late` says that the request's deadline has passed.
fn problem(joined: &ServedGroup, to: &To<'_>, error: &AskError, is_late: bool) -> Problem {
    match error {
        AskError::NoRoute(NoRoute::UnknownMember) => UNKNOWN_INSTANCE.because(error.to_string()),
        AskError::NoRoute(NoRoute::SessionEnded) => SESSION_ENDED.because(error.to_string()),
        AskError::TooLate { .. } => match to {
            To::Holder(name) if !is_held(joined, name) => unknown_name(joined, "no member has held it until then"),
            _ => NOT_HANDLED.because(error.to_string()),
        },
        AskError::NoRoute(_) => NOT_HANDLED.because(error.to_string()),
        AskError::Busy { .. } => TOO_MANY.because(error.to_string()),
        AskError::Invalid(_) => BAD_REQUEST.because(error.to_string()),
        AskError::Barred(_) => UNREACHABLE.because(error.to_string()),
        AskError::Unknown(_) if is_late => TOO_LATE.because(error.to_string()),
        _ => BAD_GATEWAY.because(error.to_string()),
    }
}

/// Whether a member holds the name, as far as that can be read.
fn is_held(joined: &ServedGroup, name: &ClaimName) -> bool {
    let Ok(Ok(holders)) = joined.observer().map(shardwise::Observer::holders) else { return true };
    holders.iter().any(|holding| holding.held.is_some() && matches!(&holding.resource, Resource::Name(held) if held == name))
}

fn unknown_name(joined: &ServedGroup, why: &str) -> Problem {
    let living = joined.observer().map(|observer| format!("; {}", living(&observer.members(), None))).unwrap_or_default();
    UNKNOWN_NAME.because(format!("{why}{living}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_have_the_routes_of_requests_and_no_others() {
        let of = |route: &str| format!("/v1/policies/{{policy}}/{route}");
        let handlers = ["keys/{key}/{*path}", "keys//{*path}", "names/{name}/{*path}", "sessions/{id}/{*path}", "any/{*path}"];
        for route in handlers {
            assert!(leads_to_handlers(&of(route)) && is_for_callers(&of(route)), "{route}");
        }
        for route in ["route", "requests/{id}"] {
            assert!(!leads_to_handlers(&of(route)) && is_for_callers(&of(route)), "{route}");
        }
        for route in ["routes", "routes/{key}", "names", "drain", "owned", "members", "leases", "daemons/{set}"] {
            assert!(!is_for_callers(&of(route)), "{route}");
        }
        assert!(!is_for_callers("/metrics") && !is_for_callers("none"));
    }
}
