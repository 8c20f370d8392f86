//! `rejoin_grace` and `shardwise end-absence` with real workers.

use crate::common::Place;
use crate::join;
use nix::sys::signal::Signal;

#[test]
fn an_away_member_that_will_not_return_is_removed_when_the_operator_says_so() {
    let place = Place::of_workers("1s", "slots = 64\nrejoin_grace = \"60s\"");
    let (mut stays, mut leaves) = (join(&place, "stays"), join(&place, "leaves"));
    let shared = stays.prints("they share", |line| line["members"].as_array().unwrap().len() == 2 && line["slots_owned"] != 64);
    let end = |id: &str| place.run(&["end-absence", "--policy", "workers", id]);
    end("leaves").fails(4, &["\"leaves\" is not away but active; to remove it, stop that worker"]);

    leaves.signal(Signal::SIGTERM);
    leaves.ends("it leaves");
    let away = stays.prints("it is away", |line| line["away"][0]["instance_id"] == "leaves");
    let within = away["away"][0]["within_ms"].as_u64().unwrap();
    assert!((1..=60_000).contains(&within) && away["slots_owned"] == shared["slots_owned"], "{away}");

    let keys = (0..64).map(|n| format!("key-{n}"));
    let waits = keys.map(|key| place.run(&["owner", &key])).find(|owner| owner.text() == "leaves\n").expect("it has keys");
    assert!(waits.err.contains("leaves is away") && waits.err.contains("shardwise end-absence leaves --policy workers"), "{waits:?}");

    let ended = end("leaves");
    assert_eq!((ended.code, ended.text().as_str()), (Some(0), "workers: leaves is removed; its slots are free for the others\n"));
    stays.prints("it takes over", |line| line["slots_owned"] == 64 && line["away"].as_array().unwrap().is_empty());
    let again = end("leaves");
    assert_eq!((again.code, again.text().as_str()), (Some(1), "workers: no member is called leaves\n"));
    stays.signal(Signal::SIGTERM);
    stays.ends("it leaves");
}
