//! `max_loss` and `shardwise confirm-loss` with real workers and SIGKILL.

use crate::common::Place;
use crate::join;
use nix::sys::signal::Signal;

#[test]
fn the_survivors_take_over_only_when_the_operator_says_so() {
    let place = Place::of_workers("3s", "slots = 64\nmax_loss = \"50%\"");
    let mut survivor = join(&place, "survivor");
    let victims: Vec<_> = ["a", "b", "c"].iter().map(|id| join(&place, id)).collect();
    survivor.prints("four members", |line| line["members"].as_array().unwrap().len() == 4);
    let nothing = place.run(&["confirm-loss", "--policy", "workers"]);
    assert_eq!((nothing.code, nothing.text().as_str()), (Some(1), "workers: no member is waiting for confirmation\n"));

    for victim in &victims {
        victim.signal(Signal::SIGKILL);
    }
    // They expire one after another, so some of their slots may be taken over before too many members are gone.
    let still = survivor.prints("it waits for the confirmation", |line| line["stands_still"] == true);
    assert!(still["slots_owned"].as_u64().unwrap() < 64 && still["state"] == "active", "{still}");

    // A vanished member's keys have no living owner, which the commands for people say.
    let members = place.run(&["members"]);
    assert!(
        members.code == Some(0) && members.err.starts_with("vanished: ") && members.err.contains("confirm-loss --policy workers"),
        "{members:?}"
    );
    let keys = (0..64).map(|n| format!("key-{n}"));
    let orphan = keys.map(|key| (place.run(&["owner", &key]), key)).find(|(owner, _)| owner.text() != "survivor\n");
    let (owner, key) = orphan.expect("a vanished member has keys");
    assert!(owner.err.contains("has vanished, and because of max_loss no member takes over its keys"), "{owner:?}");
    assert_eq!(place.run(&["explain", &key]).err, owner.err);

    let confirmed = place.run(&["confirm-loss", "--policy", "workers", "--json"]);
    assert_eq!(confirmed.json()["members"], 1);
    survivor.prints("it takes over", |line| line["slots_owned"] == 64 && line["stands_still"] == false);
    survivor.signal(Signal::SIGTERM);
    survivor.ends("it leaves");
}
