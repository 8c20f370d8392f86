//! Requests on the page: the load and the refusals of workers, and hot keys.

use serde_json::json;
use shardwise_testkit::{Browser, PageView};

use crate::common::Place;
use crate::holders::says;
use crate::{Worker, pictures};

#[test]
fn the_page_shows_the_load_of_workers_and_the_keys_that_are_spread() {
    let place = Place::of_workers("5s", "slots = 64\nmax_width = 2");
    let workers = [1, 2].map(|number| Worker::start(&place, number, &[]));
    workers[0].sees(2);
    let browser = Browser::start().unwrap();
    let tab = browser.open(&workers[0].url(), PageView::DESKTOP).unwrap();
    for part in ["worker-1", "worker-2", "Load", "Refused: too many", "Sessions"] {
        says(&tab, "requests", part);
    }
    says(&tab, "hot-keys", "No key is spread over several workers");

    let set = place.run(&["routes", "set", "tenant-7", "--width", "2", "--skip", "worker-9", "--json"]).json();
    let hash = set["key_hash"].as_str().unwrap();
    for part in [hash, "Width by an operator", "worker-9"] {
        says(&tab, "hot-keys", part);
    }
    // The key itself is not stored, only its hash.
    assert_eq!(tab.eval(&format!("document.body.innerText.includes({})", json!("tenant-7"))).unwrap(), false);
    pictures(&tab, "requests");
    place.run(&["routes", "clear", "--hash", hash]).well();
    says(&tab, "hot-keys", "No key is spread over several workers");
    assert_eq!(tab.complaints(), Vec::<String>::new());
}

#[test]
fn under_exclusive_ownership_the_page_asks_for_no_routes() {
    let place = Place::of_workers("5s", "slots = 64\nownership = \"exclusive\"");
    let workers = [1, 2].map(|number| Worker::start(&place, number, &[]));
    workers[0].sees(2);
    let browser = Browser::start().unwrap();
    let tab = browser.open(&workers[0].url(), PageView::DESKTOP).unwrap();
    says(&tab, "requests", "worker-2");
    assert_eq!(tab.complaints(), Vec::<String>::new());
}
