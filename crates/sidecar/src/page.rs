//! The operators' page: files in this binary, security headers for browsers, and the CSRF token of its actions.
//!
//! The files contain no data of any group, so they are open like the probes. The page gets its data by the same routes as every other
//! client.

use axum::extract::Path;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use subtle::ConstantTimeEq;

use crate::problem::{NOT_FOUND, Result};

/// The log target for operators' actions.
pub(crate) const LOG: &str = "shardwise::operator";
pub(crate) const ROOT: &str = "/";
pub(crate) const ASSETS: &str = "/assets/";
/// The header with the CSRF token, which an action of the page sends besides the operator's token.
const CSRF: HeaderName = HeaderName::from_static("x-shardwise-csrf");
/// A header that browsers send with every request of a page, and other clients do not.
pub(crate) const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The placeholder for the token in the file.
const MARK: &str = "{csrf}";

/// Nothing from other origins, nothing inline, no frame, no form, and no text that is executed.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
);
/// The policy of answers that are not pages.
const NO_PAGE: HeaderValue = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");

const HTML: &str = include_str!("../page/index.html");
const SCRIPT: &str = "text/javascript; charset=utf-8";
const FILES: [(&str, &str, &str); 21] = [
    ("page.css", "text/css; charset=utf-8", include_str!("../page/page.css")),
    ("icon.svg", "image/svg+xml", include_str!("../page/icon.svg")),
    ("main.js", SCRIPT, include_str!("../page/main.js")),
    ("api.js", SCRIPT, include_str!("../page/api.js")),
    ("dom.js", SCRIPT, include_str!("../page/dom.js")),
    ("colours.js", SCRIPT, include_str!("../page/colours.js")),
    ("ring.js", SCRIPT, include_str!("../page/ring.js")),
    ("shares.js", SCRIPT, include_str!("../page/shares.js")),
    ("agree.js", SCRIPT, include_str!("../page/agree.js")),
    ("holders.js", SCRIPT, include_str!("../page/holders.js")),
    ("members.js", SCRIPT, include_str!("../page/members.js")),
    ("timeline.js", SCRIPT, include_str!("../page/timeline.js")),
    ("requests.js", SCRIPT, include_str!("../page/requests.js")),
    ("owner.js", SCRIPT, include_str!("../page/owner.js")),
    ("whatif.js", SCRIPT, include_str!("../page/whatif.js")),
    ("outbox.js", SCRIPT, include_str!("../page/outbox.js")),
    ("summary.js", SCRIPT, include_str!("../page/summary.js")),
    ("changes.js", SCRIPT, include_str!("../page/changes.js")),
    ("others.js", SCRIPT, include_str!("../page/others.js")),
    ("troubles.js", SCRIPT, include_str!("../page/troubles.js")),
    ("vanished.js", SCRIPT, include_str!("../page/vanished.js")),
];

/// The page, with this process's CSRF token in it.
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

    pub(crate) fn root(&self) -> Response {
        file("text/html; charset=utf-8", self.html.clone())
    }

    /// Whether these headers have the page's token of this life of the sidecar.
    pub(crate) fn has_sent(&self, headers: &HeaderMap) -> bool {
        let shown = headers.get(CSRF).map(HeaderValue::as_bytes);
        shown.is_some_and(|shown| self.csrf.as_bytes().ct_eq(shown).into())
    }
}

/// Whether the request is for these files, which are open.
pub(crate) fn is_file(path: &str) -> bool {
    path == ROOT || path.starts_with(ASSETS)
}

pub(crate) async fn asset(Path(name): Path<String>) -> Result<Response> {
    let found = FILES.iter().find(|(known, ..)| *known == name);
    let (_, kind, text) = found.ok_or_else(|| NOT_FOUND.because("the page has no such file"))?;
    Ok(file(kind, Bytes::from_static(text.as_bytes())))
}

fn file(kind: &'static str, body: Bytes) -> Response {
    // A restart changes the token, and an update changes the files.
    ([(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-store")], [(CONTENT_SECURITY_POLICY, POLICY)], body).into_response()
}

/// Sets the headers that restrict what a page can do with an answer.
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
