//! An outbox on the page: what is stuck, and sending it again.

use serde_json::json;
use shardwise_testkit::{Browser, Look};

use crate::acting::{TOKEN, click, sign_in};
use crate::common::{Place, workers};
use crate::{Worker, http, pictures};

/// An outbox of which an event is parked. No publisher runs, so it stays as it is.
fn place() -> Place {
    let settings = workers("5s", "slots = 256")
        + "[default.outbox.orders]\npolicy = \"workers\"\nstore = \"sqlite:outbox.db\"\nsink = \"file:delivered.jsonl\"\n";
    let place = Place::with_settings(&settings);
    place.write("token", format!("{TOKEN}\n"));
    place.run(&["outbox", "init"]).well();
    let line = |n: u32| {
        json!({"id": format!("e-{n}"), "aggregatetype": "order", "aggregateid": "7", "type": "Changed", "payload": {"n": n}}).to_string()
    };
    let lines: String = (1..=3).map(|n| line(n) + "\n").collect();
    place.run_with(&["outbox", "enqueue"], lines.as_bytes()).well();
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

#[test]
fn a_parked_event_is_shown_and_sent_again_by_somebody_with_a_reason() {
    let place = place();
    let worker = Worker::start(&place, 1, &["--token-file", "token", "--outbox", "orders"]);
    http::get(worker.at, "/v1/outbox").refuses(401, "it says what events are about");
    http::post(worker.at, "/v1/outbox/replay", "Content-Type: application/json\r\n", b"{}").refuses(401, "without a token");

    let browser = Browser::start().unwrap();
    let tab = browser.open(&worker.url(), Look::DESKTOP).unwrap();
    sign_in(&tab, TOKEN);
    tab.until("the event is listed", "document.querySelectorAll('#outbox tbody tr').length === 1").unwrap();
    let told = tab.eval("document.getElementById('outbox').innerText").unwrap();
    let told = told.as_str().unwrap();
    // What the sink says is text, whatever it looks like.
    assert!(told.contains("e-2") && told.contains("order/7") && told.contains("no such <b>customer</b>"), "{told}");
    pictures(&tab, "outbox");

    click(&tab, "Replay e-2");
    tab.until("it asks", "document.getElementById('ask').open").unwrap();
    let words = |why: &str| {
        let fill =
            format!("document.querySelectorAll('#ask input').forEach((input, at) => {{ input.value = ['ann', {}][at]; }})", json!(why));
        tab.eval(&fill).unwrap();
    };
    words(" ");
    click(&tab, "Send it again");
    tab.until("it wants a reason", "document.getElementById('ask-error').innerText.includes('both are needed')").unwrap();
    words("customer mended");
    click(&tab, "Send it again");
    tab.until("nothing is stuck any more", "document.querySelectorAll('#outbox tbody tr').length === 0").unwrap();
    assert!(place.run(&["outbox", "list"]).well().contains("no dead letter"));
    let audit = place.run(&["outbox", "audit"]).well();
    assert!(audit.contains("ann") && audit.contains("customer mended") && audit.contains("e-2"), "{audit}");
    assert_eq!(tab.complaints(), Vec::<String>::new());
}

#[test]
fn an_outbox_that_is_not_there_is_told_at_once() {
    let place = Place::of_workers("5s", "");
    place.run(&["serve", "--policy", "workers", "--listen", "127.0.0.1:0", "--outbox", "orders"]).fails(2, &["orders"]);
}
