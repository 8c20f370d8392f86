//! Which actions over HTTP are allowed.

use axum::http::HeaderMap;
use axum::http::header::ORIGIN;

use crate::app::App;
use crate::page::{FETCH_SITE, LOG};
use crate::problem::{FORBIDDEN, Result};

/// Checks whether an action is allowed; the gate has already checked the operator's token. A request from a browser must prove that it
/// comes from this page.
pub(crate) fn may_act(app: &App, headers: &HeaderMap) -> Result<()> {
    checked(app, headers, app.options.token.is_some())
}

/// The same for a request that goes to members, which a caller's token allows too.
pub(crate) fn may_send(app: &App, headers: &HeaderMap) -> Result<()> {
    checked(app, headers, app.options.token.is_some() || app.options.caller_token.is_some())
}

fn checked(app: &App, headers: &HeaderMap, has_token: bool) -> Result<()> {
    let refused = |why: &'static str| {
        if let Some(count) = app.log.refused.another(why) {
            tracing::warn!(target: LOG, why, count, "an action over HTTP was refused; one line a minute at most");
        }
        Err(FORBIDDEN.because(why))
    };
    if !has_token {
        return refused("actions need a token: start it with --token-file");
    }
    let by_browser = headers.contains_key(ORIGIN) || headers.contains_key(FETCH_SITE);
    if by_browser && !app.page.has_sent(headers) {
        return refused("an action from a browser needs the page's token of this life of the sidecar: load the page again");
    }
    Ok(())
}
