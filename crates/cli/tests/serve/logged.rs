//! Refusals are logged at a limited rate and without credentials; and the origin that browsers send is checked.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::common::lease::request;
use crate::{Served, TOKEN, http, place};

const WRONG: &str = "not-the-right-token-at-all";

#[test]
fn refusals_are_logged_now_and_then_and_never_with_what_was_shown() {
    let place = place();
    let mut one = Served::start(&place, &["--token-file", "token"]);
    let at = one.at;
    let asks = |method: &str, rest: &str, headers: &str| {
        let path = Served::path(rest);
        http::raw(at, format!("{method} {path} HTTP/1.1\r\n{headers}Connection: close\r\nContent-Length: 0\r\n\r\n").as_bytes()).status
    };
    let here = format!("Host: {at}\r\n");
    for _ in 0..30 {
        assert_eq!(asks("GET", "members", &format!("{here}Authorization: Bearer {WRONG}\r\n")), 401);
        assert_eq!(asks("POST", "drain", &format!("{here}Authorization: Bearer {WRONG}\r\n")), 401);
        assert_eq!(asks("GET", "members", "Host: evil-host.example\r\n"), 421);
        assert_eq!(asks("GET", "members", &format!("{here}Origin: http://evil-origin.example\r\n")), 403);
        let from_browser = format!("{here}Authorization: Bearer {TOKEN}\r\nSec-Fetch-Site: same-origin\r\n");
        assert_eq!(asks("POST", "drain", &from_browser), 403, "without the page's own token");
    }
    one.process.signal(Signal::SIGTERM);
    let log = one.process.ends("after SIGTERM").err;
    for (said, most) in [
        ("requests over HTTP had no token, or not the right one", 1),
        ("requests over HTTP that may have been actions had no token, or not the right one", 1),
        ("requests over HTTP were not for this host, or of another page", 2),
        ("an action over HTTP was refused", 1),
    ] {
        let lines = log.matches(said).count();
        assert!((1..=most).contains(&lines), "{said:?} is in {lines} lines: {log}");
    }
    assert!(!log.contains(WRONG) && !log.contains(TOKEN) && !log.contains("evil-"), "{log}");
}

/// Regression: the log said of a refusal, too, that the outcome was unknown.
#[test]
fn a_refused_action_is_logged_as_one_that_stored_nothing() {
    let place = place();
    let mut one = Served::start(&place, &["--token-file", "token"]);
    one.acts("drain", &json!({"instance_id": "worker-99"})).refuses(404, "the group has no such member");
    let put = |rest: &str, body: &Value| {
        let bearer = format!("Bearer {TOKEN}");
        request(one.at, "PUT", &Served::path(rest), &[("Authorization", &bearer)], Some(body)).0
    };
    assert_eq!(put("daemons/ingest", &json!({"count": 1})), 409, "the policy has no claims");
    one.process.signal(Signal::SIGTERM);
    let log = one.process.ends("after SIGTERM").err;
    for said in ["the drain or undrain was refused, and nothing was stored", "the number of daemons was refused, and nothing was stored"] {
        assert_eq!(log.matches(said).count(), 1, "{said:?}: {log}");
    }
    assert!(!log.contains("it is unknown whether"), "{log}");
}

#[test]
fn what_a_page_of_another_origin_makes_a_browser_ask_reaches_no_handler() {
    let place = place();
    let one = Served::start(&place, &[]);
    one.settles(1, |owned| owned == 256);
    let member = format!("instances/{}/status", one.id);
    let asks = |rest: &str, headers: &str| {
        http::raw(
            one.at,
            format!("GET {} HTTP/1.1\r\nHost: {}\r\n{headers}Connection: close\r\n\r\n", Served::path(rest), one.at).as_bytes(),
        )
    };
    for (rest, of_none) in [("members", 200), ("ownership", 200), ("owner/x", 200), ("any/status", 403), (&*member, 403)] {
        assert_eq!(asks(rest, "").status, 200, "{rest} by a program");
        assert_eq!(asks(rest, "Sec-Fetch-Site: same-origin\r\n").status, 200, "{rest} by the page");
        assert_eq!(asks(rest, "Sec-Fetch-Site: none\r\n").status, of_none, "{rest} by the address line");
        for site in ["cross-site", "same-site", "", "SAME-ORIGIN", "none, cross-site", "whatever comes next"] {
            asks(rest, &format!("Sec-Fetch-Site: {site}\r\n")).refuses(403, &format!("{rest} by {site:?}"));
        }
        let both = "Sec-Fetch-Site: same-origin\r\nSec-Fetch-Site: cross-site\r\n";
        asks(rest, both).refuses(403, rest);
    }
    for open in ["/livez", "/", "/openapi.json"] {
        let head = format!("GET {open} HTTP/1.1\r\nHost: {}\r\nSec-Fetch-Site: cross-site\r\nConnection: close\r\n\r\n", one.at);
        assert_eq!(http::raw(one.at, head.as_bytes()).status, 200, "{open} says nothing of any group");
    }
}
