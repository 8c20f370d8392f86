//! Where requests of a key go now, and the operator's routes of single keys.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, RawQuery, Request, State};
use axum::http::{HeaderMap, Uri};
use serde::{Deserialize, Serialize};
use shardwise::core::routing::{KeyHash, KeyRoute, RoutesError, Width};
use shardwise::requests::{Route, To};
use shardwise::{Epoch, InstanceId, ServiceState, ShardKey as _};
use utoipa::ToSchema;

use crate::actions::may_act;
use crate::app::{App, ServedGroup};
use crate::ask::checked;
use crate::body::{self, Whole};
use crate::page::LOG;
use crate::path_parameters::{NamePath, PolicyPath};
use crate::problem::{BAD_KEY, BAD_REQUEST, BAD_WIDTH, NOT_HANDLED, Problem, Result, UNKNOWN_INSTANCE};

/// U+FFFD in a query. Decoding puts it in the place of bytes that are no UTF-8.
const REPLACEMENT: &str = "%EF%BF%BD";

/// Where a request to a key would go now, as this sidecar knows it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeyTarget {
    key: String,
    /// The hash by which routes name it: sixteen hexadecimal digits.
    key_hash: String,
    /// The members that may serve it, its owner first.
    set: Vec<String>,
    /// The member that was chosen from them; a request chooses again.
    pick: String,
    /// That member's incarnation.
    incarnation: String,
    /// Why it has this set: claim, placement, spread or operator.
    why: &'static str,
    /// The epoch of the claim on the key's slot; null under eventual ownership.
    epoch: Option<u64>,
}

#[derive(Deserialize)]
struct KeyQuery {
    key: String,
}

/// Where does a request to this key go?
///
/// From memory. The member that gets the request decides by its own clock and claims. 503 while no member serves the key.
#[utoipa::path(
    get, path = "/v1/policies/{policy}/route", tag = "requests",
    params(("key" = String, Query, description = "The key")),
    responses((status = 200, description = "Its set, and the member that was chosen", body = KeyTarget))
)]
pub(crate) async fn route(
    State(app): State<Arc<App>>,
    PolicyPath(joined): PolicyPath,
    RawQuery(query): RawQuery,
) -> Result<Json<KeyTarget>> {
    let key = key_in(query.as_deref().unwrap_or_default())?;
    let route = route_of(&app, &joined, checked(&key)?).await?;
    Ok(Json(KeyTarget {
        key_hash: hash_of(&key).to_string(),
        set: route.set().map(|id| id.as_str().to_owned()).collect(),
        pick: route.member().as_str().to_owned(),
        incarnation: route.incarnation().to_string(),
        why: route.cause().as_str(),
        epoch: route.epoch().map(Epoch::get),
        key,
    }))
}

async fn route_of(app: &App, joined: &ServedGroup, key: &str) -> Result<Route> {
    let to = To::owner(key);
    let route = if joined.only_observes { joined.router(app).await?.route(&to) } else { joined.service.route(&to) };
    route.map_err(|no_route| {
        // An active member that owns nothing at all names the cause, which is the same for all keys.
        let cause = joined.not_owning().filter(|cause| cause.state == ServiceState::Active).map(|cause| cause.hint);
        NOT_HANDLED.because(cause.unwrap_or_else(|| no_route.to_string()))
    })
}

/// The key in a query, decoded.
fn key_in(query: &str) -> Result<String> {
    let uri = format!("/?{query}").parse::<Uri>().ok();
    let found = uri.and_then(|uri| Query::<KeyQuery>::try_from_uri(&uri).ok());
    let Query(KeyQuery { key }) = found.ok_or_else(|| BAD_REQUEST.because("name one key: ?key=tenant-7"))?;
    if key.contains(char::REPLACEMENT_CHARACTER) && !query.to_ascii_uppercase().contains(REPLACEMENT) {
        return Err(BAD_KEY.because("the key, percent-decoded, is not UTF-8"));
    }
    Ok(key)
}

fn hash_of(key: &str) -> KeyHash {
    KeyHash::new(key.key_hash())
}

/// The operator's route of a key.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ShownRoute {
    /// The key's hash: sixteen hexadecimal digits.
    key_hash: String,
    /// Over how many members its requests are spread.
    width: u8,
    /// The members that its requests avoid, if others can serve it.
    skip: Vec<String>,
}

/// The operator's routes.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RouteList {
    /// At most 64, by hash.
    routes: Vec<ShownRoute>,
}

/// Which routes have operators set?
///
/// 409 under exclusive ownership and under a key placement, where only the owner serves a key.
#[utoipa::path(
    get, path = "/v1/policies/{policy}/routes", tag = "operator",
    responses((status = 200, description = "The routes", body = RouteList))
)]
pub(crate) async fn routes(State(app): State<Arc<App>>, PolicyPath(joined): PolicyPath) -> Result<Json<RouteList>> {
    let policy = joined.service.policy().name.to_string();
    let routes = app.call(|factory| async move { factory.routes(&policy).await }).await?;
    Ok(Json(RouteList { routes: routes.iter().map(shown).collect() }))
}

fn shown(route: &KeyRoute) -> ShownRoute {
    ShownRoute {
        key_hash: route.key().to_string(),
        width: route.width().get(),
        skip: route.skip().iter().map(|id| id.as_str().to_owned()).collect(),
    }
}

/// The wish for a route.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RouteRequest {
    /// Over how many members the requests of the key are spread: the first ones among its owner and successors.
    #[schema(value_type = u64, minimum = 1, maximum = 4)]
    width: Whole,
    /// The members that its requests avoid, if others can serve it.
    #[serde(default)]
    #[schema(max_items = 16)]
    skip: Vec<String>,
}

/// What has become of a route.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RouteChange {
    key: String,
    /// The key's hash: sixteen hexadecimal digits.
    key_hash: String,
    /// False if it was so already.
    changed: bool,
}

/// Set the route of a key.
///
/// Callers notice it within a TTL. The width overrides what the key's owner says, up to the policy's `max_width`, above which members
/// refuse requests. 409 if `max_width` is 1, where a route has no effect. The key is in the path, percent-encoded; a path that ends with
/// the slash has the key of 0 bytes.
#[utoipa::path(
    put, path = "/v1/policies/{policy}/routes/{key}", tag = "operator",
    request_body(content = RouteRequest, content_type = "application/json"),
    responses((status = 200, description = "The route is stored", body = RouteChange))
)]
pub(crate) async fn set_route(
    State(app): State<Arc<App>>,
    PolicyPath(joined): PolicyPath,
    NamePath(key): NamePath,
    request: Request,
) -> Result<Json<RouteChange>> {
    may_act(&app, request.headers())?;
    let RouteRequest { width: Whole(width), skip } = body::json(&app, request).await?;
    let route = wanted(hash_of(checked(&key)?), width, skip)?;
    let (policy, hash) = (joined.service.policy().name.to_string(), route.key());
    // The key is the user's data, and its hash is not.
    tracing::info!(target: LOG, policy, key = %hash, width, skipped = route.skip().len(), "the route of a key was requested over HTTP");
    let name = policy.clone();
    let changed = app.call(|factory| async move { factory.set_route(&name, &route).await }).await;
    let changed = changed.inspect_err(|problem| refused(&policy, hash, problem))?;
    tracing::info!(target: LOG, policy, key = %hash, changed, "the route of a key is stored");
    Ok(Json(RouteChange { key, key_hash: hash.to_string(), changed }))
}

/// The route as it is stored.
fn wanted(key: KeyHash, width: u64, skip: Vec<String>) -> Result<KeyRoute> {
    Width::new(width).map_err(|error| BAD_WIDTH.because(error.to_string()))?;
    // A text that cannot be an id names no member.
    let skip = skip.into_iter().map(InstanceId::new).collect::<std::result::Result<Vec<_>, _>>();
    let skip = skip.map_err(|error| UNKNOWN_INSTANCE.because(error.to_string()))?;
    KeyRoute::new(key, width, skip).map_err(|error: RoutesError| BAD_REQUEST.because(error.to_string()))
}

/// Clear the route of a key.
#[utoipa::path(
    delete, path = "/v1/policies/{policy}/routes/{key}", tag = "operator",
    responses((status = 200, description = "The key has no route any more", body = RouteChange))
)]
pub(crate) async fn clear_route(
    State(app): State<Arc<App>>,
    PolicyPath(joined): PolicyPath,
    NamePath(key): NamePath,
    headers: HeaderMap,
) -> Result<Json<RouteChange>> {
    may_act(&app, &headers)?;
    let (policy, hash) = (joined.service.policy().name.to_string(), hash_of(checked(&key)?));
    let name = policy.clone();
    let changed = app.call(|factory| async move { factory.clear_route(&name, hash).await }).await;
    let changed = changed.inspect_err(|problem| refused(&policy, hash, problem))?;
    tracing::info!(target: LOG, policy, key = %hash, changed, "the route of a key was cleared over HTTP");
    Ok(Json(RouteChange { key, key_hash: hash.to_string(), changed }))
}

fn refused(policy: &str, key: KeyHash, problem: &Problem) {
    let why = problem.detail();
    if problem.is_refusal() {
        tracing::warn!(target: LOG, policy, %key, why, "the change of a key's route was refused, and nothing was stored");
    } else {
        tracing::warn!(target: LOG, policy, %key, why, "it is unknown whether the change of a key's route was stored");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_one_key_in_utf8() {
        for (query, key) in
            [("key=a", "a"), ("key=", ""), ("key=gr%C3%B6%C3%9Fe%2F1+x", "größe/1 x"), ("a=1&key=b", "b"), ("key=%EF%BF%BD", "\u{fffd}")]
        {
            assert_eq!(key_in(query).map_err(|problem| problem.status()), Ok(key.to_owned()), "{query}");
        }
        for query in ["", "a=1", "key=a&key=b", "key=%ff", "key=a%c3"] {
            assert_eq!(key_in(query).map_err(|problem| problem.status()), Err(400), "{query}");
        }
    }

    #[test]
    fn a_route_has_a_width_and_names_members() {
        let status = |width, skip: &[&str]| {
            let skip = skip.iter().map(|id| (*id).to_owned()).collect();
            wanted(KeyHash::new(7), width, skip).map(|route| route.width().get()).map_err(|problem| problem.status())
        };
        assert_eq!((status(1, &[]), status(4, &["worker-1"])), (Ok(1), Ok(4)));
        for width in [0, 5, u64::MAX] {
            assert_eq!(status(width, &[]), Err(422), "{width}");
        }
        assert_eq!((status(2, &[""]), status(2, &["a"; 17])), (Err(404), Err(400)));
    }
}
