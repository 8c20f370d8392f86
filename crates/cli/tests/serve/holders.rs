//! Who holds what, over HTTP and on the command line.

use serde_json::{Value, json};

use crate::common::lease::Lease;
use crate::common::{PATIENCE, Place, eventually};
use crate::{Served, http, place};

fn holders(served: &Served) -> Value {
    served.get("holders").well("holders")
}

#[test]
fn the_holders_of_slots_are_shown_with_their_epochs_and_agree_with_the_placement() {
    let place = Place::of_workers("5s", "slots = 64\nownership = \"exclusive\"");
    let one = Served::start(&place, &[]);
    let _first = Lease::kept(one.at, 10_000);
    one.settles(1, |owned| owned == 64);
    let two = Served::start(&place, &[]);
    let _second = Lease::kept(two.at, 10_000);
    eventually("both hold their shares", PATIENCE, || {
        let (one, two) = (one.ownership(), two.ownership());
        let sum = one["slots_owned"].as_u64().unwrap() + two["slots_owned"].as_u64().unwrap();
        (sum == 64 && two["slots_owned"] != 0).then_some(())
    });
    let seen = eventually("both have seen it", PATIENCE, || {
        // The rate of these requests is limited.
        std::thread::sleep(std::time::Duration::from_millis(50));
        let seen = [&one, &two].map(|served| holders(served)["slots"].as_array().unwrap().clone());
        let agree = |slot: &Value| slot["why"].is_null() && slot["holder"].is_string() && slot["epoch"].as_u64().unwrap() > 0;
        seen.iter().all(|slots| slots.len() == 64 && slots.iter().all(agree)).then_some(seen)
    });
    let held = |slots: &[Value]| slots.iter().map(|slot| (slot["holder"].clone(), slot["epoch"].clone())).collect::<Vec<_>>();
    assert_eq!(held(&seen[0]), held(&seen[1]));
    let moved = |slots: &[Value]| slots.iter().filter(|slot| slot["since"].is_string()).count();
    let of_two = seen[0].iter().filter(|slot| slot["holder"] == two.id.as_str()).count();
    assert!(moved(&seen[0]) >= of_two && of_two > 0, "the first has seen what went to the second: {:?}", seen[0]);

    let owner = one.get("owner/tenant-7").well("owner");
    assert_eq!((&owner["holder"], &owner["why"], &owner["wanted"]), (&owner["owner"], &Value::Null, &Value::Null), "{owner}");
    assert_eq!(one.get("explain/tenant-7").well("explained")["epoch"], owner["epoch"]);
    let by_hand = place.run(&["owner", "tenant-7", "--json"]).json();
    assert_eq!((&by_hand["holder"], &by_hand["epoch"], &by_hand["why"]), (&owner["holder"], &owner["epoch"], &json!(null)));
    let members = place.run(&["members", "--json"]).json();
    let holds: u64 = members["members"].as_array().unwrap().iter().map(|member| member["holds"].as_u64().unwrap()).sum();
    assert_eq!(holds, 64, "{members}");
    assert!(place.run(&["members"]).well().contains("holds"));
}

#[test]
fn eventual_ownership_has_no_holders_and_says_so() {
    let place = place();
    let served = Served::start(&place, &[]);
    served.settles(1, |owned| owned == 256);
    let refused = http::get(served.at, &Served::path("holders")).refuses(409, "no claims");
    assert!(refused["detail"].as_str().unwrap().contains("ownership is eventual"), "{refused}");
    assert!(served.get("owner/tenant-7").well("owner")["holder"].is_null());
    assert!(!place.run(&["members"]).well().contains("holds"));
}
