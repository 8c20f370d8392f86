//! Failures: the page never shows that all is well during one.

use nix::sys::signal::Signal;
use serde_json::json;
use shardwise_testkit::{Browser, PageView, Tab};

use crate::acting::click;
use crate::common::Place;
use crate::{Worker, pictures};

const VERDICT: &str = "document.getElementById('verdict')";

/// Waits until the verdict has that colour and text.
fn verdict(tab: &Tab<'_>, state: &str, part: &str) {
    let what = format!("the verdict is {state} and says {part:?}");
    tab.until(&what, &format!("{VERDICT}.dataset.state === {} && {VERDICT}.innerText.includes({})", json!(state), json!(part))).unwrap();
}

#[test]
fn who_vanished_is_reported_until_it_is_acknowledged_and_who_left_is_not() {
    let place = Place::of_workers("3s", "slots = 64");
    let mut workers: Vec<_> = (1..=3).map(|n| Worker::start(&place, n, &[])).collect();
    workers[0].sees(3);
    let browser = Browser::start().unwrap();
    let tab = browser.open(&workers[0].url(), PageView::DESKTOP).unwrap();
    verdict(&tab, "good", "All is well");
    let mut left = workers.pop().unwrap();
    left.process.signal(Signal::SIGTERM);
    assert_eq!(left.process.ends("after SIGTERM").code, Some(0));
    tab.until("it drains", "document.getElementById('timeline').innerText.includes('worker-3 drains: it leaves')").unwrap();
    workers[0].sees(2);
    verdict(&tab, "good", "All is well");
    workers[1].process.signal(Signal::SIGKILL);
    verdict(&tab, "warn", "Vanished without leaving within the last hour: worker-2 (");
    tab.until("it has vanished", "document.getElementById('timeline').innerText.includes('worker-2 vanished')").unwrap();
    pictures(&tab, "vanished");
    tab.set_view(PageView::DESKTOP).unwrap();
    // With date and zone, as in logs of other machines.
    let times = "/\\d{4}, \\d\\d:\\d\\d:\\d\\d [A-Z]/";
    assert_eq!(tab.eval(&format!("{times}.test({VERDICT}.innerText)")).unwrap(), true);
    click(&tab, "I know of the workers that vanished");
    verdict(&tab, "good", "All is well");
    tab.eval("window.former = true; location.reload()").unwrap();
    tab.until("it is loaded again", "window.former === undefined && document.body.dataset.ready === 'yes'").unwrap();
    verdict(&tab, "good", "All is well");
    assert_eq!(tab.complaints(), Vec::<String>::new());
}

/// A worker's weight is fixed when it starts, and a restarted worker is a new member, so only a record that is changed by hand shows this.
#[test]
fn what_changed_of_a_worker_is_reported_with_before_and_after() {
    let place = Place::of_workers("5s", "slots = 64");
    let worker = Worker::start(&place, 1, &[]);
    worker.sees(1);
    let browser = Browser::start().unwrap();
    let tab = browser.open(&worker.url(), PageView::DESKTOP).unwrap();
    verdict(&tab, "good", "All is well");
    let mut event = worker.get("rebalances")["rebalances"][0].clone();
    event["id"] = "0-changed".into();
    event["cause"] = "members_changed".into();
    event["members_joined"] = json!([]);
    event["joined"] = 0.into();
    event["members_changed"] = json!([
        {"instance_id": "worker-2", "state": null, "weight": [1, 3]},
        {"instance_id": "worker-3", "state": ["draining", "active"], "weight": null},
        {"instance_id": "worker-4", "state": ["draining", "active"], "weight": [2, 1]},
    ]);
    tab.eval(&format!("import('/assets/timeline.js').then((timeline) => timeline.add({event}))")).unwrap();
    let words = "worker-2: weight 1 → 3; worker-3: draining → active; worker-4: draining → active, weight 2 → 1";
    tab.until("it says which", &format!("document.getElementById('timeline').innerText.includes({})", json!(words))).unwrap();
}

#[test]
fn a_sidecar_that_hangs_is_not_live() {
    let place = Place::of_workers("20s", "slots = 64");
    let workers: Vec<_> = (1..=2).map(|n| Worker::start(&place, n, &[])).collect();
    workers[0].sees(2);
    let browser = Browser::start().unwrap();
    let tab = browser.open(&workers[0].url(), PageView::DESKTOP).unwrap();
    verdict(&tab, "good", "All is well");
    tab.until("both have said when they renewed", "document.querySelectorAll('#members [data-age]').length === 2 && !document.getElementById('members').innerText.includes('less than')").unwrap();
    workers[1].process.signal(Signal::SIGSTOP);
    verdict(&tab, "warn", "No renewal for more than half the TTL: worker-2");
    assert_eq!(tab.eval("document.querySelector('#members .late').dataset.age").unwrap(), "worker-2");
    workers[1].process.signal(Signal::SIGCONT);
    workers[0].process.signal(Signal::SIGSTOP);
    verdict(&tab, "bad", "Not known: the sidecar has not answered since");
    assert_eq!(tab.eval("document.getElementById('fresh').innerText").unwrap(), "old");
    workers[0].process.signal(Signal::SIGCONT);
    tab.until("it answers again", "document.getElementById('fresh').dataset.state !== 'old'").unwrap();
}

#[test]
fn a_worker_has_one_colour_on_every_page() {
    let place = Place::of_workers("5s", "slots = 64");
    let mut workers: Vec<_> = (1..=3).map(|n| Worker::start(&place, n, &[])).collect();
    let browser = Browser::start().unwrap();
    let colours = |worker: &Worker, count: usize| {
        worker.sees(count as u64);
        let tab = browser.open(&worker.url(), PageView::DESKTOP).unwrap();
        tab.until("all are drawn", &format!("document.querySelectorAll('#ring .arc').length === {count}")).unwrap();
        let read = "JSON.stringify(Object.fromEntries([...document.querySelectorAll('#ring .arc')].map((arc) => [arc.dataset.member, arc.querySelector('path').getAttribute('fill')])))";
        let text = tab.eval(read).unwrap();
        serde_json::from_str::<serde_json::Value>(text.as_str().unwrap()).unwrap()
    };
    let all = colours(&workers[1], 3);
    let mut first = workers.remove(0);
    first.process.signal(Signal::SIGTERM);
    assert_eq!(first.process.ends("after SIGTERM").code, Some(0));
    let rest = colours(&workers[1], 2);
    for id in ["worker-2", "worker-3"] {
        assert_eq!(rest[id], all[id], "{id} has another colour on another page");
    }
    assert_eq!(
        all.as_object()
            .unwrap()
            .values()
            .collect::<Vec<_>>()
            .iter()
            .map(ToString::to_string)
            .collect::<std::collections::BTreeSet<_>>()
            .len(),
        3,
        "{all}"
    );
}
