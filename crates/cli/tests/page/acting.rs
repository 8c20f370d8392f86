//! The actions of the page, and their authorization.

use serde_json::json;
use shardwise_testkit::{Browser, PageView, Tab};

use crate::common::{PATIENCE, Place, eventually};
use crate::{Worker, http};

pub(crate) const TOKEN: &str = "correct-horse-battery-staple";
const DRAIN: &str = "/v1/policies/workers/drain";

/// The status of an action sent from the page's own origin with these headers.
fn sent(tab: &Tab<'_>, headers: &serde_json::Value) -> serde_json::Value {
    let body = json!({"instance_id": "worker-1"}).to_string();
    let options = json!({"method": "POST", "headers": headers, "body": body});
    tab.eval(&format!("fetch('{DRAIN}', {options}).then((answer) => answer.status)")).unwrap()
}

pub(crate) fn click(tab: &Tab<'_>, text: &str) {
    let button = format!(
        "[...document.querySelectorAll('button')].find((button) => button.textContent.startsWith({}) && !button.disabled)",
        json!(text)
    );
    tab.until(text, &format!("Boolean({button})")).unwrap();
    tab.eval(&format!("{button}.click()")).unwrap();
}

#[test]
fn without_a_token_no_action_passes_and_with_one_the_page_asks_first() {
    let place = Place::of_workers("5s", "slots = 256");
    place.write("token", format!("{TOKEN}\n"));
    let (open, mut locked) = (Worker::start(&place, 1, &[]), Worker::start(&place, 2, &["--token-file", "token"]));
    let _third = Worker::start(&place, 3, &[]);
    let browser = Browser::start().unwrap();

    let tab = browser.open(&open.url(), PageView::DESKTOP).unwrap();
    tab.until("the workers are listed", "document.querySelectorAll('#members tbody tr').length === 3").unwrap();
    let enabled = tab.eval("[...document.querySelectorAll('#members button')].filter((button) => !button.disabled).length").unwrap();
    assert_eq!(enabled, 0, "without a token there is nothing to press");
    let said = tab.eval("document.body.innerText.split('started without --token-file').length - 1").unwrap();
    assert_eq!(said, 1, "why is said once for the page, however many workers there are");
    assert_eq!(sent(&tab, &json!({"Content-Type": "application/json"})), 403);

    let tab = browser.open(&locked.url(), PageView::DESKTOP).unwrap();
    tab.until("it asks for the token", "!document.getElementById('sign-in').hidden").unwrap();
    sign_in(&tab, "not-the-right-token-at-all");
    tab.until("the wrong one is refused", "document.getElementById('sign-in-error').innerText.includes('not the token')").unwrap();
    sign_in(&tab, TOKEN);
    tab.until("the workers are listed", "document.querySelectorAll('#members tbody tr').length === 3").unwrap();
    assert_eq!(tab.eval("[location.href, document.cookie].join().includes('correct')").unwrap(), false);

    // The operator's token alone is not enough for a request from a browser, and neither is another page's CSRF token.
    let bearer = format!("Bearer {TOKEN}");
    assert_eq!(sent(&tab, &json!({"Content-Type": "application/json"})), 401);
    assert_eq!(sent(&tab, &json!({"Content-Type": "application/json", "Authorization": bearer})), 403);
    let stale = json!({"Content-Type": "application/json", "Authorization": bearer, "X-Shardwise-CSRF": "0".repeat(32)});
    assert_eq!(sent(&tab, &stale), 403);
    let program = format!("Content-Type: application/json\r\nAuthorization: {bearer}\r\n");
    http::post(locked.at, DRAIN, &program, b"{\"instance_id\":\"nobody\"}").refuses(404, "a program needs no token of the page");

    drain(&tab, &open);
    locked.process.signal(nix::sys::signal::Signal::SIGTERM);
    let log = locked.process.ends("after SIGTERM").err;
    assert!(log.contains("a drain or undrain was requested over HTTP") && log.contains("worker-1") && log.contains("was refused"), "{log}");
    assert!(!log.contains(TOKEN), "{log}");
}

pub(crate) fn sign_in(tab: &Tab<'_>, token: &str) {
    tab.until("the form is there", "!document.getElementById('sign-in').hidden").unwrap();
    let fill = format!("document.getElementById('token').value = {}; document.getElementById('sign-in').requestSubmit()", json!(token));
    tab.eval(&fill).unwrap();
}

/// Nothing happens before the confirmation or after a refusal; after the confirmation it does.
pub(crate) fn drain(tab: &Tab<'_>, worker: &Worker) {
    let slots = || worker.get("ownership")["slots_owned"].clone();
    assert_ne!(slots(), 0);
    click(tab, "Drain worker-1");
    tab.until(
        "it asks and says what would move",
        "document.getElementById('ask').open && document.getElementById('ask').innerText.includes('of all keys')",
    )
    .unwrap();
    click(tab, "Leave it as it is");
    tab.until("the question is gone", "!document.getElementById('ask').open").unwrap();
    assert_ne!(slots(), 0);
    click(tab, "Drain worker-1");
    tab.until("it asks again", "document.getElementById('ask').open").unwrap();
    click(tab, "Drain it");
    eventually("the worker owns nothing", PATIENCE, || (slots() == 0).then_some(()));
    tab.until("the page says so", "document.getElementById('members').innerText.includes('drained')").unwrap();
    click(tab, "Take back worker-1");
    tab.until("it asks", "document.getElementById('ask').open").unwrap();
    click(tab, "Take it back");
    eventually("the worker owns its share again", PATIENCE, || (slots() != 0).then_some(()));
}
