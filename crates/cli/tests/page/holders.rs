//! Who holds what, and workers that do not work.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use shardwise_testkit::{Browser, PageView, Tab};
use sqlx::Connection as _;

use crate::common::Place;
use crate::common::lease::Lease;
use crate::{Worker, pictures};

pub(crate) fn says(tab: &Tab<'_>, id: &str, part: &str) {
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
    let said = tab.eval("document.getElementById('members').innerHTML.includes('operator')").unwrap();
    assert_eq!(said, false, "no operator has drained it");
    let button = "[...document.querySelectorAll('#members button')].some((button) => button.textContent === 'Drain worker-3')";
    assert_eq!(tab.eval(button).unwrap(), true, "an operator may drain it as well");
    pictures(&tab, "holders");
    assert_eq!(tab.complaints(), Vec::<String>::new());
}

/// The health address of workers whose checks succeed as long as `works` says so.
fn health_of_all(works: &Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (url, works) = (format!("http://{}/healthz", listener.local_addr().unwrap()), Arc::clone(works));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let status = if works.load(Ordering::SeqCst) { "200 OK" } else { "503 Service Unavailable" };
            let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    url
}

#[test]
fn workers_that_keep_their_shares_because_too_many_fail_are_shown() {
    let place = Place::of_workers("5s", "slots = 64");
    let works = Arc::new(AtomicBool::new(true));
    let health = health_of_all(&works);
    let fleet = [1, 2, 3].map(|number| Worker::start(&place, number, &["--worker-health", &health]));
    fleet[0].sees(3);
    let browser = Browser::start().unwrap();
    let tab = browser.open(&fleet[0].url(), PageView::DESKTOP).unwrap();
    says(&tab, "verdict", "All is well");

    works.store(false, Ordering::SeqCst);
    says(&tab, "verdict", "The checks of so many workers fail that these keep their shares: worker-");
    says(&tab, "verdict", "Their workers' checks fail, so they own nothing: worker-");
    tab.until("it is red", "document.getElementById('verdict').dataset.state === 'bad'").unwrap();
    pictures(&tab, "spared");
    tab.set_view(PageView::DESKTOP).unwrap();
    works.store(true, Ordering::SeqCst);
    says(&tab, "verdict", "All is well");
    assert_eq!(tab.complaints(), Vec::<String>::new());
}

/// Runs statements on the file in which the workers meet.
fn sql(place: &Place, statements: &'static str) {
    let store = format!("sqlite:{}", place.path("shardwise.db").display());
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let mut store = sqlx::SqliteConnection::connect(&store).await.unwrap();
        sqlx::raw_sql(statements).execute(&mut store).await.unwrap();
        store.close().await.unwrap();
    });
}

/// Regression: while the view did not change, the page did not look at the claims again, and said that all was well.
#[test]
fn holders_that_cannot_be_read_any_more_are_shown_as_old() {
    let place = Place::of_workers("5s", "slots = 64\nownership = \"exclusive\"");
    let one = Worker::start(&place, 1, &[]);
    let _lease = Lease::kept(one.at, 10_000);
    one.sees(1);
    let browser = Browser::start().unwrap();
    let tab = browser.open(&one.url(), PageView::DESKTOP).unwrap();
    says(&tab, "verdict", "All is well");
    says(&tab, "members", "Holds");
    // The name of this claim is too long, so the claims cannot be read. The view is not affected.
    sql(
        &place,
        "INSERT INTO claim (group_id, resource, holder, number, epoch) \
         SELECT g.id, printf('%0300d', 0), m.joined, s.counter + 1, s.counter + 1 FROM store AS s, claim_group AS g, member AS m",
    );
    says(&tab, "verdict", "Who holds what cannot be read");
    says(&tab, "holders-old", "These are the holders as of");
    tab.until("the column of holders is gone", "!document.getElementById('members').innerText.includes('Holds')").unwrap();
    sql(&place, "DELETE FROM claim WHERE length(resource) = 300");
    says(&tab, "verdict", "All is well");
    tab.until("they are current", "document.getElementById('holders-old').hidden").unwrap();
    says(&tab, "members", "Holds");
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
