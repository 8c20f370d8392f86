//! Five sidecars, and three publishers of two outboxes with a policy each: killed, paused and starved. Meanwhile the page is never green.

use nix::sys::signal::Signal;
use serde_json::json;
use shardwise_testkit::{Browser, PageView, Tab};

use crate::acting::click;
use crate::common::process::Process;
use crate::common::{Place, workers};
use crate::{Worker, pictures};

/// Waits until the verdict contains that text, in a colour other than green.
fn says(tab: &Tab<'_>, part: &str) {
    let there = format!(
        "document.getElementById('verdict').innerText.includes({}) && document.getElementById('verdict').dataset.state",
        json!(part)
    );
    let state = tab.until(&format!("the verdict says {part:?}"), &there).unwrap();
    assert!(state == "warn" || state == "bad", "{part}: {state}");
}

/// Records every moment at which the verdict is green from here on.
fn records(tab: &Tab<'_>) {
    let record = "window.greens = []; new MutationObserver(() => { const { dataset, innerText } = document.getElementById('verdict'); \
                  if (dataset.state === 'good') window.greens.push(innerText); }).observe(document.getElementById('verdict'), \
                  { attributes: true, childList: true, characterData: true, subtree: true })";
    tab.eval(record).unwrap();
}

/// Checks that the verdict was never green since then.
fn was_never_green(tab: &Tab<'_>, during: &str) {
    assert_eq!(tab.eval("window.greens").unwrap(), json!([]), "green while {during}");
}

fn publisher(place: &Place, id: &str, outbox: &str) -> Process {
    let mut command = place.command(&["outbox", "run", "--name", outbox]);
    command.env("SHARDWISE__RESILIENCE__SHARDING__INSTANCE__ID", id);
    Process::start(command)
}

fn enqueue(place: &Place, ids: std::ops::Range<u32>) {
    let line =
        |n: u32| json!({"id": format!("e-{n}"), "aggregatetype": "order", "aggregateid": n.to_string(), "type": "Made", "payload": {}});
    let lines: String = ids.map(|n| line(n).to_string() + "\n").collect();
    place.run_with(&["outbox", "enqueue", "--name", "orders"], lines.as_bytes()).well();
}

#[test]
fn a_fleet_that_is_killed_paused_and_starved_is_not_green() {
    let outbox = |name: &str| {
        format!(
            "[default.resilience.sharding.policies.{name}]\ngroup_name = \"{name}\"\nslots = 64\n\
             [default.outbox.{name}]\npolicy = \"{name}\"\nstore = \"sqlite:{name}.db\"\nsink = \"file:{name}.jsonl\"\n"
        )
    };
    let place = Place::with_settings(&(workers("5s", "slots = 256") + &outbox("orders") + &outbox("notices")));
    for name in ["orders", "notices"] {
        place.run(&["outbox", "init", "--name", name]).well();
    }
    let publishers = [("pub-1", "orders"), ("pub-2", "orders"), ("pub-3", "notices")].map(|(id, outbox)| publisher(&place, id, outbox));
    let shows = ["--observe", "orders", "--observe", "notices", "--outbox", "orders"];
    let fleet: Vec<_> = (1..=5).map(|n| Worker::start(&place, n, if n == 1 { &shows } else { &[] })).collect();
    fleet[0].sees(5);
    enqueue(&place, 0..20);
    let browser = Browser::start().unwrap();
    let tab = browser.open(&fleet[0].url(), PageView::DESKTOP).unwrap();
    let choose = |policy: &str, members: usize| {
        let pick =
            format!("(() => {{ const group = document.getElementById('group'); group.value = {}; group.onchange(); }})()", json!(policy));
        tab.eval(&pick).unwrap();
        tab.until(policy, &format!("document.querySelectorAll('#members tbody tr').length === {members}")).unwrap();
    };
    tab.until("the groups are known", "document.getElementById('group').options.length === 3").unwrap();
    // The policies are sorted by name.
    choose("workers", 5);
    pictures(&tab, "fleet");
    tab.set_view(PageView::DESKTOP).unwrap();

    // One hangs: amber before its lease ends, and vanished after it.
    fleet[3].process.signal(Signal::SIGSTOP);
    says(&tab, "worker-4");
    records(&tab);
    says(&tab, "Vanished without leaving within the last hour: worker-4 (");
    fleet[3].process.signal(Signal::SIGCONT);
    fleet[4].process.signal(Signal::SIGKILL);
    says(&tab, "worker-5 (");
    pictures(&tab, "fleet-killed");
    tab.set_view(PageView::DESKTOP).unwrap();
    // The page of another group is not green either.
    choose("notices", 1);
    says(&tab, "Policy workers: Vanished without leaving within the last hour: worker-5 (");
    choose("workers", 4);
    was_never_green(&tab, "a worker hangs and another one is dead");
    click(&tab, "I know of the workers that vanished");

    // No publisher is left, and events wait.
    for publisher in &publishers[..2] {
        publisher.signal(Signal::SIGKILL);
    }
    enqueue(&place, 20..30);
    says(&tab, "Outbox orders: ");
    let red =
        "document.getElementById('verdict').dataset.state === 'bad' && document.querySelector('#outbox .verdict').dataset.state === 'bad'";
    tab.until("it is red on the page and in the verdict", red).unwrap();
    records(&tab);
    assert_eq!(tab.eval("document.body.innerText.includes('Nothing is stuck')").unwrap(), false);
    choose("orders", 0);
    says(&tab, "Vanished without leaving within the last hour: ");
    says(&tab, "No worker owns anything: active workers: none");
    choose("workers", 4);
    says(&tab, "Policy orders: No worker owns anything: active workers: none");
    choose("orders", 0);
    was_never_green(&tab, "nobody publishes the orders");
    // The browser logs an error for each member that did not answer, so its log is not checked here.
    pictures(&tab, "fleet-starved");
}
