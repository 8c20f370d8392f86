//! The page's display of a group that changes while the page is open.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use shardwise_testkit::{Browser, Lag, PageView, Tab};

use crate::common::Place;
use crate::{Worker, http, pictures};

/// How long after the takeover the page may still show the former owner.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);
/// The colours of the outer band, as a share of it; and those of the arcs.
const COLOURS: &str = "(() => {
    const band = document.getElementById('slots-band'), pen = band.getContext('2d');
    const [middle, radius, steps, seen] = [band.width / 2, (233 * band.width) / 520, 2000, {}];
    for (let step = 0; step < steps; step += 1) {
        const angle = (step * 2 * Math.PI) / steps;
        const dot = pen.getImageData(middle + Math.cos(angle) * radius, middle + Math.sin(angle) * radius, 1, 1).data;
        const colour = dot.slice(0, 3).join(' ');
        seen[colour] = (seen[colour] ?? 0) + 1 / steps;
    }
    const arcs = [...document.querySelectorAll('#ring .arc')].map((arc) => {
        const colour = arc.querySelector('path').getAttribute('fill').match(/\\d+/g).join(' ');
        return { member: arc.dataset.member, slots: Number(arc.dataset.slots), drawn: seen[colour] ?? 0 };
    });
    return arcs;
})()";

fn text(tab: &Tab<'_>, of: &str) -> String {
    tab.eval(&format!("document.querySelector({}).innerText", json!(of))).unwrap().as_str().unwrap().to_owned()
}

/// The cells under these headings in each row of a table.
fn cells(tab: &Tab<'_>, of: &str, heads: &[&str]) -> Vec<Vec<String>> {
    let (rows, heads) = (json!(format!("{of} tbody tr")), json!(heads));
    let cell = "row.querySelector(`[data-label=\"${head}\"]`).textContent";
    let script = format!("[...document.querySelectorAll({rows})].map((row) => {heads}.map((head) => {cell}))");
    serde_json::from_value(tab.eval(&script).unwrap()).unwrap()
}

#[test]
fn the_page_shows_the_group_and_what_becomes_of_it() {
    let place = Place::of_workers("2s", "slots = 256");
    let mut workers: Vec<_> = (1..=3).map(|number| Worker::start(&place, number, &[])).collect();
    for worker in &workers {
        worker.sees(3);
    }
    let browser = Browser::start().unwrap();
    let tab = browser.open(&workers[0].url(), PageView::DESKTOP).unwrap();
    tab.until("three workers are on the ring", "document.querySelectorAll('#ring .arc').length === 3").unwrap();

    ring(&tab, &workers[0]);
    let agree = "document.getElementById('agree-said').innerText.startsWith('Yes: 3 workers')";
    tab.until("all three were asked and see the same", agree).unwrap();
    shares(&tab, &workers[0]);
    members(&tab);
    views(&tab, &workers[0]);
    keyboard(&tab);
    one_key(&tab, &place);
    what_if(&tab, &place);
    tab.eval("document.getElementById('ring-pick').focus()").unwrap();
    tab.press("Escape").unwrap();
    tab.eval("document.activeElement.blur()").unwrap();
    pictures(&tab, "group");
    tab.set_view(PageView::DESKTOP).unwrap();
    killed(&tab, &mut workers);
    from_here_alone(&tab, &workers[0]);
    gone(&tab, &mut workers);
}

/// A key placement has no slots: there is no ring, and everything else is shown.
#[test]
fn a_group_without_slots_says_why_there_is_no_ring() {
    let place = Place::of_workers("5s", "placement = \"modulo\"");
    let worker = Worker::start(&place, 1, &[]);
    worker.sees(1);
    assert_eq!(worker.get("slots")["owners"], Value::Null);
    let browser = Browser::start().unwrap();
    let tab = browser.open(&worker.url(), PageView::PHONE).unwrap();
    tab.until("it says why", "document.getElementById('ring-said').innerText.includes('modulo has no slots')").unwrap();
    assert_eq!(tab.eval("document.querySelectorAll('#ring .arc').length").unwrap(), 0);
    tab.until("all is well", "document.getElementById('verdict').innerText.includes('All is well')").unwrap();
    tab.eval("document.getElementById('key').value = 'tenant-a'; document.getElementById('owner-form').requestSubmit()").unwrap();
    tab.until("the owner is told", "document.getElementById('owner').innerText.includes('FNV-1a')").unwrap();
    assert_eq!(tab.complaints(), Vec::<String>::new());
}

/// Every arc represents the slots that the sidecar reports, and the band has each worker's colour on its part of the ring.
fn ring(tab: &Tab<'_>, worker: &Worker) {
    let slots = worker.get("slots");
    let owned = |id: &str| {
        let members = slots["members"].as_array().unwrap();
        let place = members.iter().position(|member| member["instance_id"] == id).unwrap();
        slots["owners"].as_array().unwrap().iter().filter(|owner| **owner == place).count()
    };
    let drawn = tab.eval(COLOURS).unwrap();
    assert_eq!(drawn.as_array().unwrap().len(), 3, "{drawn}");
    for arc in drawn.as_array().unwrap() {
        let slots = owned(arc["member"].as_str().unwrap());
        assert_eq!(arc["slots"], slots, "{drawn}");
        let (share, drawn_share) = (f64::from(u32::try_from(slots).unwrap()) / 256.0, arc["drawn"].as_f64().unwrap());
        assert!((share - drawn_share).abs() < 0.12, "{arc} ought to have {share} of the band");
    }
    let table = tab.eval("[...document.querySelectorAll('#ring-table tbody tr')].length").unwrap();
    assert_eq!(table, 3, "the picture has a table");
    tab.until("all is well", "/All is well.*256 slots/.test(document.getElementById('verdict').innerText)").unwrap();
}

/// The shares as text, as a picture with a line for an even distribution, and as a table.
fn shares(tab: &Tab<'_>, worker: &Worker) {
    let slots = worker.get("slots");
    let owners = slots["owners"].as_array().unwrap();
    let most = (0..3).map(|place: usize| owners.iter().filter(|owner| **owner == place).count()).max().unwrap();
    // Each is entitled to a third. The browser rounds, because it takes the larger of two equally close numbers.
    let peak = tab.eval(&format!("({most} / 256 / (1 / 3)).toFixed(2)")).unwrap();
    let shown = text(tab, "#shares-said");
    assert!(shown.starts_with(&format!("Peak over mean: {} (worker-", peak.as_str().unwrap())), "{shown}, with {most} slots at most");
    tab.until("there is the line where all would be even", "document.querySelector('#shares line.ideal') !== null").unwrap();
    let rows = cells(tab, "#shares-table", &["Worker", "Slots", "Ratio"]);
    assert_eq!(rows.len(), 3, "{rows:?}");
    // The worker with the largest share comes first.
    assert_eq!(rows[0][1..], [most.to_string(), peak.as_str().unwrap().to_owned()], "{rows:?}");
}

/// Each worker's zone, version and weight, as in its settings.
fn members(tab: &Tab<'_>) {
    let rows = cells(tab, "#members", &["Worker", "Weight", "Zone", "Version"]);
    assert_eq!(rows.len(), 3, "{rows:?}");
    for (id, zone) in [("worker-1", "eu-b"), ("worker-2", "eu-c"), ("worker-3", "eu-a")] {
        let row = rows.iter().find(|row| row[0].contains(id)).unwrap_or_else(|| panic!("{id} has no row: {rows:?}"));
        assert_eq!(row[1..], ["1", zone, "2.4.1"], "{id}");
    }
}

/// All three see the same view as this sidecar.
fn views(tab: &Tab<'_>, worker: &Worker) {
    let view = worker.get("ownership")["view_fingerprint"].as_str().unwrap()[..12].to_owned();
    let rows = cells(tab, "#agree", &["View", "Revision", "Same?"]);
    assert_eq!(rows.len(), 3, "{rows:?}");
    for row in &rows {
        assert!(row[0] == view && row[1].parse::<u64>().is_ok() && row[2] == "same", "{row:?} instead of {view}");
    }
}

/// The ring can be used with the keyboard, and has a text alternative.
fn keyboard(tab: &Tab<'_>) {
    tab.eval("document.getElementById('ring-pick').focus()").unwrap();
    let picked = || tab.eval("document.getElementById('ring-pick').getAttribute('aria-valuetext')").unwrap().as_str().unwrap().to_owned();
    assert_eq!(picked(), "all workers");
    for wanted in ["worker-1", "worker-2", "worker-3", "all workers"] {
        tab.press("ArrowRight").unwrap();
        assert!(picked().starts_with(wanted), "{} instead of {wanted}", picked());
    }
}

fn one_key(tab: &Tab<'_>, place: &Place) {
    let owner = place.run(&["owner", "tenant-7/ü"]).well();
    tab.eval("document.getElementById('key').value = 'tenant-7/ü'; document.getElementById('owner-form').requestSubmit()").unwrap();
    tab.until("the key's owner is explained", "document.querySelector('#owner .steps li:nth-child(4)')").unwrap();
    let shown = text(tab, "#owner");
    assert!(shown.starts_with(owner.trim()) && shown.contains("XXH3-64") && shown.contains("clockwise"), "{shown}");
    let marked = tab.eval("!document.getElementById('ring-mark').hasAttribute('hidden')").unwrap();
    assert_eq!(marked, true, "its slot is marked on the ring");
}

fn what_if(tab: &Tab<'_>, place: &Place) {
    let members = ["--members", "worker-1,worker-2,worker-3", "--slots", "256", "--json"];
    for (change, arguments) in [
        ("document.querySelector('#leavers input[value=worker-2]').click()", &["--leave", "worker-2"][..]),
        (
            "document.getElementById('join-id').value = 'worker-9'; document.getElementById('join-weight').value = '3'; \
             document.getElementById('join-form').requestSubmit()",
            &["--leave", "worker-2", "--join", "worker-9=3"][..],
        ),
        // Without a weight the sidecar decides on it.
        (
            "document.getElementById('join-id').value = 'worker-10'; document.getElementById('join-form').requestSubmit()",
            &["--leave", "worker-2", "--join", "worker-9=3,worker-10"][..],
        ),
    ] {
        let planned = place.run(&[&["ring", "plan"], &members[..], arguments].concat()).json();
        let moved = planned["moved_share"].as_f64().unwrap();
        assert!(moved > 0.1, "{planned}");
        tab.eval(change).unwrap();
        let same = format!("Number(document.querySelector('#whatif .answer')?.dataset.moved) === {moved}");
        tab.until("the what-if says what ring plan says", &same).unwrap();
        let rows = planned["moves"].as_array().unwrap().len();
        assert_eq!(tab.eval("document.querySelectorAll('#whatif tbody tr').length").unwrap(), rows);
        let least = planned["after"]["peak"].as_f64().unwrap();
        assert!(text(tab, "#whatif").contains(&format!("peak over mean {least:.2}")), "{}", text(tab, "#whatif"));
    }
}

/// SIGKILL, lease expiry, takeover: the page must show each within a short time, without a reload.
fn killed(tab: &Tab<'_>, workers: &mut Vec<Worker>) {
    tab.eval("window.same = true").unwrap();
    let killed = workers.pop().unwrap();
    killed.process.signal(Signal::SIGKILL);
    workers[0].sees(2);
    let (lag, taken_over) = (Lag::begin(), Instant::now());
    tab.until("the killed worker's arc is gone", "document.querySelectorAll('#ring .arc').length === 2").unwrap();
    let took = taken_over.elapsed();
    println!("the page showed the takeover {took:?} after the sidecar did");
    let late = lag.allowance();
    assert!(took < SHOWN_WITHIN + late, "{took:?}, with {late:?} for this machine");
    let slots = tab.eval("[...document.querySelectorAll('#ring .arc')].reduce((sum, arc) => sum + Number(arc.dataset.slots), 0)").unwrap();
    assert_eq!(slots, 256, "nothing of it is lost");
    tab.until("it is told why", "document.getElementById('timeline').innerText.includes('worker-3 vanished')").unwrap();
    newest(tab, &workers[0]);
    assert_eq!(tab.eval("window.same").unwrap(), true, "the page was not loaded again");
}

/// The newest row agrees with the sidecar's answer about the same event.
fn newest(tab: &Tab<'_>, worker: &Worker) {
    let id = tab.eval("document.querySelector('#timeline tbody tr').dataset.event").unwrap();
    let row = cells(tab, "#timeline", &["Why", "Moved", "Took"]).swap_remove(0);
    let past = worker.get("rebalances");
    let event = past["rebalances"].as_array().unwrap().last().unwrap();
    assert_eq!(event["id"], id, "{past}");
    let (share, took) = (event["moved_share"].as_f64().unwrap(), event["took_ms"].as_u64().unwrap());
    let moved = tab.eval(&format!("`${{({share} * 100).toFixed(1)}} %`")).unwrap();
    assert!(share > 0.0 && row[0].contains("worker-3 vanished") && row[1] == moved.as_str().unwrap(), "{row:?} of {event}");
    let says_how_long = match took {
        0 => row[2] == "at once",
        1..1_000 => row[2] == format!("{took} ms"),
        _ => row[2].ends_with(" s"),
    };
    assert!(says_how_long, "{row:?} of {event}");
}

/// The page sent no request elsewhere, and its security policy forbids it.
fn from_here_alone(tab: &Tab<'_>, worker: &Worker) {
    let fetched = tab.fetched();
    assert!(fetched.len() > 15, "{fetched:?}");
    let strangers: Vec<_> = fetched.iter().filter(|url| !url.starts_with(&worker.url())).collect();
    assert!(strangers.is_empty(), "{strangers:?}");
    assert_eq!(tab.complaints(), Vec::<String>::new());
    let page = http::get(worker.at, "/");
    assert_eq!(page.status, 200);
    for (name, value) in [
        ("content-security-policy", "default-src 'none'; script-src 'self'; style-src 'self'"),
        ("content-security-policy", "frame-ancestors 'none'"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store"),
    ] {
        let header = page.head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        assert!(header.is_some_and(|header| header.contains(value)), "{name}: {value} is not in {}", page.head);
    }
    http::get(worker.at, "/assets/nothing.js").refuses(404, "no such file");
    http::get(worker.at, "/assets/..%2f..%2fCargo.toml").refuses(404, "no way out");
}

/// Without its sidecar the page shows since when its data is old, and continues to ask.
fn gone(tab: &Tab<'_>, workers: &mut Vec<Worker>) {
    workers.remove(0).process.signal(Signal::SIGKILL);
    let lost = "!document.getElementById('lost').hidden && document.getElementById('lost').innerText";
    let shown = tab.until("the page knows that it is old", lost).unwrap();
    let shown = shown.as_str().unwrap();
    assert!(shown.contains("has not answered since") && shown.contains("The page shows the last known state"), "{shown}");
    let fresh: Value = tab.eval("document.getElementById('fresh').innerText").unwrap();
    assert_eq!(fresh, "old");
}
