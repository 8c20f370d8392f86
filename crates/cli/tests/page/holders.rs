//! Who holds what, and workers that do not work.

use serde_json::json;
use shardwise_testkit::{Browser, PageView, Tab};

use crate::common::Place;
use crate::common::lease::Lease;
use crate::{Worker, pictures};

fn says(tab: &Tab<'_>, id: &str, part: &str) {
    tab.until(&format!("#{id} says {part:?}"), &format!("document.getElementById('{id}').innerText.includes({})", json!(part))).unwrap();
}

#[test]
fn holders_are_shown_with_their_epochs_and_a_worker_that_was_never_seen_is_no_all_is_well() {
    let place = Place::of_workers("5s", "slots = 64\nownership = \"exclusive\"");
    let one = Worker::start(&place, 1, &[]);
    let two = Worker::start(&place, 2, &[]);
    let _leases = [one.at, two.at].map(|at| Lease::kept(at, 10_000));
    one.sees(2);
    let browser = Browser::start().unwrap();
    let tab = browser.open(&one.url(), PageView::DESKTOP).unwrap();
    says(&tab, "verdict", "All is well");
    says(&tab, "holders", "Each of 64 slots is held by the worker that the placement names.");
    says(&tab, "members", "Holds");
    tab.eval("document.getElementById('key').value = 'tenant-7'; document.getElementById('owner-form').requestSubmit()").unwrap();
    says(&tab, "owner", "holds it under epoch");

    let _three = Worker::start(&place, 3, &["--worker-health", "tcp://127.0.0.1:1"]);
    says(&tab, "verdict", "Their workers have not been seen or have no lease, so they own nothing: worker-3.");
    says(&tab, "members", "no worker");
    pictures(&tab, "holders");
    assert_eq!(tab.complaints(), Vec::<String>::new());
}

#[test]
fn under_eventual_ownership_nothing_is_said_of_holders() {
    let place = Place::of_workers("5s", "slots = 64");
    let worker = Worker::start(&place, 1, &[]);
    worker.sees(1);
    let browser = Browser::start().unwrap();
    let tab = browser.open(&worker.url(), PageView::DESKTOP).unwrap();
    says(&tab, "verdict", "All is well");
    assert_eq!(tab.eval("document.getElementById('holders-card').hidden").unwrap(), true);
    assert_eq!(tab.eval("document.getElementById('members').innerText.includes('Holds')").unwrap(), false);
}
