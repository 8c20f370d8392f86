//! The parameters in a path: the policy, and a name or a key.

use std::sync::Arc;

use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;

use crate::app::{App, ServedGroup};
use crate::problem::{BAD_KEY, NOT_FOUND, Problem, Result};

/// The policy in the path.
pub(crate) struct PolicyPath(pub(crate) Arc<ServedGroup>);

/// The key or the member in the path, percent-decoded.
pub(crate) struct NamePath(pub(crate) String);

/// The key of a request to its owner, percent-decoded; empty if the path has none.
pub(crate) struct KeyPath(pub(crate) String);

async fn parameters(parts: &mut Parts) -> Result<RawPathParams> {
    let refused = |_| BAD_KEY.because("the path, percent-decoded, is not UTF-8");
    RawPathParams::from_request_parts(parts, &()).await.map_err(refused)
}

/// The parameter at that place of the path, from 0; empty if there is none.
async fn parameter(parts: &mut Parts, place: usize) -> Result<String> {
    Ok(parameters(parts).await?.iter().nth(place).map(|(_, value)| value.to_owned()).unwrap_or_default())
}

impl FromRequestParts<Arc<App>> for PolicyPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let name = parameter(parts, 0).await?;
        let known = || app.policies.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let joined = app.policies.get(&name).ok_or_else(|| {
            let name: String = name.chars().take(64).collect();
            NOT_FOUND.because(format!("this sidecar serves no policy {name:?}; it serves: {}", known()))
        })?;
        Ok(Self(Arc::clone(joined)))
    }
}

impl FromRequestParts<Arc<App>> for NamePath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self> {
        // A path that ends with the slash has the key of 0 bytes. No path is long enough for a key that is too long.
        Ok(Self(parameter(parts, 1).await?))
    }
}

impl FromRequestParts<Arc<App>> for KeyPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self> {
        let key = parameters(parts).await?.iter().find(|(name, _)| *name == "key").map(|(_, key)| key.to_owned());
        Ok(Self(key.unwrap_or_default()))
    }
}
