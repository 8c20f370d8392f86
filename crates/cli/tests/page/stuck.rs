//! An outbox on the page: stuck events, and replaying them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::json;
use shardwise_testkit::{Browser, PageView, Tab};

use crate::acting::{TOKEN, click, sign_in};
use crate::common::process::Process;
use crate::common::{PATIENCE, Place, eventually, workers};
use crate::{Worker, http, pictures};

/// An outbox with a parked event. No publisher runs, so nothing changes.
fn place() -> Place {
    let settings = workers("5s", "slots = 256")
        + "[default.resilience.sharding.policies.publishers]\ngroup_name = \"publishers\"\nslots = 256\n"
        + "[default.outbox.orders]\npolicy = \"publishers\"\nstore = \"sqlite:outbox.db\"\nsink = \"file:delivered.jsonl\"\n";
    let place = Place::with_settings(&settings);
    place.write("token", format!("{TOKEN}\n"));
    three_events(&place);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = shardwise_outbox::SqliteStore::open(place.path("outbox.db")).await.unwrap();
        let mut tx = store.begin().await.unwrap();
        let park = "UPDATE outbox SET parked_at = 0, parked_error = '422 no such <b>customer</b>' WHERE id = 'e-2'";
        sqlx::raw_sql(park).execute(&mut *tx).await.unwrap();
        store.commit(tx).await.unwrap();
        store.close().await;
    });
    place
}

fn three_events(place: &Place) {
    place.run(&["outbox", "init"]).well();
    let line = |n: u32| {
        json!({"id": format!("e-{n}"), "aggregatetype": "order", "aggregateid": "7", "type": "Changed", "payload": {"n": n}}).to_string()
    };
    let lines: String = (1..=3).map(|n| line(n) + "\n").collect();
    place.run_with(&["outbox", "enqueue"], lines.as_bytes()).well();
}

/// Answers the questions before a replay.
fn words(tab: &Tab<'_>, why: &str) {
    let fill = format!("document.querySelectorAll('#ask input').forEach((input, at) => {{ input.value = ['ann', {}][at]; }})", json!(why));
    tab.eval(&fill).unwrap();
}

#[test]
fn a_parked_event_is_shown_and_sent_again_by_an_operator_with_a_reason() {
    let place = place();
    let worker = Worker::start(&place, 1, &["--token-file", "token", "--outbox", "orders"]);
    http::get(worker.at, "/v1/outbox").refuses(401, "it says what events are about");
    http::post(worker.at, "/v1/outbox/replay", "Content-Type: application/json\r\n", b"{}").refuses(401, "without a token");

    let browser = Browser::start().unwrap();
    let tab = browser.open(&worker.url(), PageView::DESKTOP).unwrap();
    sign_in(&tab, TOKEN);
    tab.until("the event is listed", "document.querySelectorAll('#outbox tbody tr').length === 1").unwrap();
    let shown = tab.eval("document.getElementById('outbox').innerText").unwrap();
    let shown = shown.as_str().unwrap();
    // The sink's message is shown as text, whatever it contains.
    assert!(shown.contains("e-2") && shown.contains("order/7") && shown.contains("no such <b>customer</b>"), "{shown}");
    waiting(&tab, &place);
    pictures(&tab, "outbox");

    click(&tab, "Replay e-2");
    tab.until("it asks", "document.getElementById('ask').open").unwrap();
    words(&tab, " ");
    click(&tab, "Send it again");
    tab.until("it wants a reason", "document.getElementById('ask-error').innerText.includes('both are needed')").unwrap();
    words(&tab, "customer mended");
    click(&tab, "Send it again");
    tab.until("nothing is stuck any more", "document.querySelectorAll('#outbox tbody tr').length === 0").unwrap();
    assert!(place.run(&["outbox", "list"]).well().contains("no dead letter"));
    let audit = place.run(&["outbox", "audit"]).well();
    assert!(audit.contains("ann") && audit.contains("customer mended") && audit.contains("e-2"), "{audit}");
    assert_eq!(tab.complaints(), Vec::<String>::new());
}

/// The number of waiting events, and the age of the oldest.
fn waiting(tab: &Tab<'_>, place: &Place) {
    let pending = place.run(&["outbox", "status", "--json"]).json()["pending"].as_u64().unwrap();
    assert!(pending > 0, "nobody publishes");
    let tile = "[...document.querySelectorAll('#outbox .tiles > div')].find((tile) => tile.querySelector('dt').textContent === 'Pending')";
    let shown = |what: &str| tab.eval(&format!("{tile}.querySelector('dd {what}').textContent")).unwrap().as_str().unwrap().to_owned();
    assert_eq!(shown("b"), pending.to_string());
    let oldest = shown("span");
    let since = oldest.strip_prefix("the oldest for ").unwrap_or_else(|| panic!("no age: {oldest}"));
    assert!(since.starts_with(|first: char| first.is_ascii_digit()), "{oldest}");
}

/// A webhook that refuses `e-2` until it is repaired.
#[derive(Clone, Default)]
struct Hook {
    mended: Arc<AtomicBool>,
    /// The ids of the accepted events.
    taken: Arc<Mutex<Vec<String>>>,
}

impl Hook {
    fn start() -> (Self, SocketAddr) {
        let (hook, listener) = (Self::default(), TcpListener::bind("127.0.0.1:0").unwrap());
        let (at, answering) = (listener.local_addr().unwrap(), hook.clone());
        std::thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(|stream| answering.answer(stream)));
        (hook, at)
    }

    /// Reads one request to its end and answers it.
    fn answer(&self, mut stream: TcpStream) {
        let (mut text, mut bytes) = (String::new(), [0; 4_096]);
        let header = |text: &str, name: &str| {
            text.to_lowercase().lines().find_map(|line| line.strip_prefix(&format!("{name}: ")).map(|value| value.trim().to_owned()))
        };
        loop {
            let body = text.split_once("\r\n\r\n").map(|(_, body)| body.len());
            if body.is_some_and(|body| body >= header(&text, "content-length").map_or(0, |length| length.parse().unwrap())) {
                break;
            }
            match stream.read(&mut bytes) {
                Ok(read) if read > 0 => text += &String::from_utf8_lossy(&bytes[..read]),
                _ => return,
            }
        }
        let id = header(&text, "webhook-id").unwrap_or_default();
        let takes = id != "e-2" || self.mended.load(Ordering::SeqCst);
        if takes {
            self.taken.lock().unwrap().push(id);
        }
        let status = if takes { "204 No Content" } else { "422 Unprocessable Content" };
        let _ = write!(stream, "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
    }
}

#[test]
fn a_blocked_aggregate_goes_on_from_where_it_stood_once_an_operator_unblocks_it() {
    let (hook, at) = Hook::start();
    let settings = workers("5s", "slots = 256")
        + &format!(
            "[default.resilience.sharding.policies.publishers]\ngroup_name = \"publishers\"\nslots = 64\n\
             [default.outbox.orders]\npolicy = \"publishers\"\nstore = \"sqlite:outbox.db\"\nsink = \"http://{at}/hook\"\n\
             sink_private = true\npoll = \"100ms\"\n"
        );
    let place = Place::with_settings(&settings);
    place.write("token", format!("{TOKEN}\n"));
    three_events(&place);
    let mut publisher = Process::start(place.command(&["outbox", "run"]));
    let status = || place.run(&["outbox", "status", "--json"]).json();
    eventually("the publisher has blocked the aggregate", PATIENCE, || (status()["blocked_aggregates"] == 1).then_some(()));
    let worker = Worker::start(&place, 1, &["--token-file", "token", "--outbox", "orders"]);

    let browser = Browser::start().unwrap();
    let tab = browser.open(&worker.url(), PageView::DESKTOP).unwrap();
    sign_in(&tab, TOKEN);
    let row = "document.querySelector('#outbox tbody tr')?.innerText ?? ''";
    tab.until("the aggregate's head is listed", &format!("/e-2[^]*order\\/7[^]*Changed[^]*blocked[^]*422/.test({row})")).unwrap();
    let shown = || tab.eval("document.getElementById('outbox').innerText").unwrap().as_str().unwrap().to_owned();
    assert!(shown().contains("1 aggregate blocked."), "{}", shown());
    pictures(&tab, "blocked");

    hook.mended.store(true, Ordering::SeqCst);
    click(&tab, "Replay e-2");
    let asked = tab.until("it asks", "document.getElementById('ask').open && document.getElementById('ask').innerText").unwrap();
    assert!(asked.as_str().unwrap().contains("tries it again, in order"), "{asked}");
    assert_eq!(*hook.taken.lock().unwrap(), ["e-1"], "nothing has happened before somebody says why");
    words(&tab, "the hook was mended");
    click(&tab, "Send it again");
    tab.until("its row is gone", "document.querySelectorAll('#outbox tbody tr').length === 0").unwrap();
    tab.until("it is told what was done", "document.getElementById('outbox').innerText.includes('e-2: unblocked.')").unwrap();
    assert!(shown().contains("Nothing is stuck."), "{}", shown());
    eventually("all are delivered", PATIENCE, || (status()["pending"] == 0).then_some(()));
    assert_eq!(*hook.taken.lock().unwrap(), ["e-1", "e-2", "e-3"], "in order, and each once");
    let audit = place.run(&["outbox", "audit"]).well();
    assert!(audit.contains("ann") && audit.contains("the hook was mended") && audit.contains("e-2"), "{audit}");
    assert_eq!(tab.complaints(), Vec::<String>::new());
    publisher.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(publisher.ends("after SIGTERM").code, Some(0));
}

#[test]
fn an_outbox_that_is_not_there_is_reported_at_once() {
    let place = Place::of_workers("5s", "");
    place.run(&["serve", "--policy", "workers", "--listen", "127.0.0.1:0", "--outbox", "orders"]).fails(2, &["orders"]);
}

/// Replaces these fields in the sidecar's answers to the page.
fn answers_with(tab: &Tab<'_>, fields: &str) {
    let replace = format!(
        "window.asked ??= window.fetch; window.fetch = async (path, options) => {{\n\
           const answer = await window.asked(path, options);\n\
           if (path !== '/v1/outbox' || !answer.ok) return answer;\n\
           return new Response(JSON.stringify({{ ...(await answer.json()), ...{fields} }}));\n\
         }}; true"
    );
    tab.eval(&replace).unwrap();
}

#[test]
fn what_is_stuck_is_red_whatever_the_cause_and_never_said_to_be_nothing() {
    let place = place();
    let worker = Worker::start(&place, 1, &["--outbox", "orders"]);
    let browser = Browser::start().unwrap();
    let tab = browser.open(&worker.url(), PageView::DESKTOP).unwrap();
    let shows = |state: &str, part: &str| {
        let card = "document.querySelector('#outbox .verdict')";
        for place in [card, "document.getElementById('verdict')"] {
            let there = format!("{place}?.dataset.state === {} && {place}.innerText.includes({})", json!(state), json!(part));
            tab.until(&format!("{state}: {part}"), &there).unwrap();
            assert_eq!(tab.eval(&format!("{place}.innerText.includes('Nothing is stuck')")).unwrap(), false);
        }
    };
    let well = "publishers: 1, parked: 0, blocked_aggregates: 0, retrying_aggregates: 0, free_slots: 0, dead: []";
    answers_with(&tab, &format!("{{ {well}, stuck: undefined }}"));
    shows("warn", "not known whether events are stuck");
    answers_with(&tab, &format!("{{ {well}, stuck: [{{ cause: 'no_publisher', detail: '41 events in 7 slots wait' }}] }}"));
    shows("bad", "no living publisher: 41 events in 7 slots wait.");
    pictures(&tab, "starved");
    let old = |age: &str| {
        format!(
            "{{ {well}, stuck: [{{ cause: 'old_backlog', detail: 'the oldest event waits for minutes' }}], oldest_pending_age_ms: {age} }}"
        )
    };
    answers_with(&tab, &old("(window.age = (window.age ?? 900000) - 1000)"));
    shows("warn", "old backlog");
    answers_with(&tab, &old("(window.age = window.age + 1000)"));
    shows("bad", "old backlog");
    answers_with(&tab, &format!("{{ {well}, blocked_aggregates: 2, stuck: [] }}"));
    shows("warn", "2 aggregates blocked.");
    answers_with(&tab, &format!("{{ {well}, stuck: [] }}"));
    tab.until("nothing is stuck", "document.querySelector('#outbox .verdict').innerText === 'Nothing is stuck.'").unwrap();
    tab.until("all is well", "document.getElementById('verdict').innerText.includes('All is well')").unwrap();
}
