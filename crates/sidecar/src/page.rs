//! The page: files of this binary, what browsers are told about them, and the token that its actions carry.
//!
//! The files say nothing of any group, so they are open like the probes. What they show comes by the same routes as for everybody else.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use subtle::ConstantTimeEq;

use crate::app::App;
use crate::problem::{Problem, Result};

/// Under this name the log has what operators do.
pub(crate) const LOG: &str = "shardwise::operator";
/// Where the page is.
pub(crate) const ROOT: &str = "/";
/// Where its files are.
pub(crate) const ASSETS: &str = "/assets/";
/// What an action of the page carries beside the operator's token.
const CSRF: HeaderName = HeaderName::from_static("x-shardwise-csrf");
/// What browsers send with every request of a page, and other clients do not.
pub(crate) const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// What the file has where the token belongs.
const MARK: &str = "{csrf}";

/// Nothing from elsewhere, nothing inline, no frame, no form, and no text that becomes a program.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
);
/// An answer for programs is no page at all.
const NO_PAGE: HeaderValue = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");

const HTML: &str = include_str!("../page/index.html");
const SCRIPT: &str = "text/javascript; charset=utf-8";
const FILES: [(&str, &str, &str); 19] = [
    ("page.css", "text/css; charset=utf-8", include_str!("../page/page.css")),
    ("icon.svg", "image/svg+xml", include_str!("../page/icon.svg")),
    ("main.js", SCRIPT, include_str!("../page/main.js")),
    ("api.js", SCRIPT, include_str!("../page/api.js")),
    ("dom.js", SCRIPT, include_str!("../page/dom.js")),
    ("colours.js", SCRIPT, include_str!("../page/colours.js")),
    ("ring.js", SCRIPT, include_str!("../page/ring.js")),
    ("shares.js", SCRIPT, include_str!("../page/shares.js")),
    ("agree.js", SCRIPT, include_str!("../page/agree.js")),
    ("members.js", SCRIPT, include_str!("../page/members.js")),
    ("timeline.js", SCRIPT, include_str!("../page/timeline.js")),
    ("owner.js", SCRIPT, include_str!("../page/owner.js")),
    ("whatif.js", SCRIPT, include_str!("../page/whatif.js")),
    ("outbox.js", SCRIPT, include_str!("../page/outbox.js")),
    ("summary.js", SCRIPT, include_str!("../page/summary.js")),
    ("news.js", SCRIPT, include_str!("../page/news.js")),
    ("others.js", SCRIPT, include_str!("../page/others.js")),
    ("troubles.js", SCRIPT, include_str!("../page/troubles.js")),
    ("vanished.js", SCRIPT, include_str!("../page/vanished.js")),
];

/// The page with this life's token in it.
pub(crate) struct Page {
    csrf: String,
    html: Bytes,
}

impl Page {
    pub(crate) fn new() -> Self {
        let random = || shardwise::discovery::random_incarnation();
        let csrf = format!("{}{}", random(), random());
        Self { html: HTML.replace(MARK, &csrf).into(), csrf }
    }
}

/// Whether these files, which are for everybody, are asked for.
pub(crate) fn is_file(path: &str) -> bool {
    path == ROOT || path.starts_with(ASSETS)
}

pub(crate) async fn root(State(app): State<Arc<App>>) -> Response {
    file("text/html; charset=utf-8", app.page.html.clone())
}

pub(crate) async fn asset(Path(name): Path<String>) -> Result<Response> {
    let found = FILES.iter().find(|(known, ..)| *known == name);
    let (_, kind, text) = found.ok_or_else(|| Problem::not_found("the page has no such file"))?;
    Ok(file(kind, Bytes::from_static(text.as_bytes())))
}

fn file(kind: &'static str, body: Bytes) -> Response {
    // Another life has another token, and another release other files.
    ([(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-store")], [(CONTENT_SECURITY_POLICY, POLICY)], body).into_response()
}

/// Says to browsers what no page of anybody's may do with an answer.
pub(crate) fn guard(headers: &mut HeaderMap) {
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(NO_PAGE);
    for (name, value) in [
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// Whether an action may be done at all; the token itself was seen at the gate. A request that a browser sent shows that it is of our page.
///
/// # Errors
///
/// Where no token is set, and where another page may have sent it.
pub(crate) fn may_act(app: &App, headers: &HeaderMap) -> Result<()> {
    let refused = |why: &'static str| {
        if let Some(count) = app.refused.another(why) {
            tracing::warn!(target: LOG, why, count, "an action over HTTP was refused; one line a minute at most");
        }
        Err(Problem::forbidden(why))
    };
    if app.token.is_none() {
        return refused("without a token nobody may act: start it with --token-file");
    }
    let by_browser = headers.contains_key(ORIGIN) || headers.contains_key(FETCH_SITE);
    let shown = headers.get(CSRF).map(HeaderValue::as_bytes);
    if by_browser && !shown.is_some_and(|shown| app.page.csrf.as_bytes().ct_eq(shown).into()) {
        return refused("an action from a browser needs the page's token of this life of the sidecar: load the page again");
    }
    Ok(())
}
