//! `shardwise ring`: keys in, owners out, byte for byte; predicted moves; the explanation of a key's owner.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::common::Place;
use serde_json::{Value, json};

const OWNERS: [&str; 2] = ["ring", "owners"];

fn owners(options: &[&str], keys: &[u8]) -> crate::common::Ran {
    Place::empty().run_with(&[&OWNERS, options].concat(), keys)
}

/// A ring of the golden vectors on which every owner can be verified by hand.
const RING: &str = include_str!("../../testdata/circle.txt");

/// The slot's owner according to the ring's line.
fn golden_owner(slot: u128) -> &'static str {
    let (_, owners) = RING.split_once("owners => ").unwrap();
    let arc = owners.trim().split(", ").find(|arc| {
        let (_, slots) = arc.split_once(' ').unwrap();
        let (from, to) = slots.split_once('-').unwrap_or((slots, slots));
        (from.parse().unwrap()..=to.parse().unwrap()).contains(&slot)
    });
    arc.unwrap().split('"').nth(1).unwrap()
}

#[test]
fn the_owners_are_those_of_the_golden_vectors() {
    let keys: Vec<String> = (0..2_000).map(|n| format!("key {n}")).collect();
    let options = ["--members", "c,a,b", "--slots", "32", "--virtual-nodes", "4", "--load-margin", "0.05"];
    let output = owners(&options, keys.join("\n").as_bytes()).well();
    let expected: Vec<String> = keys
        .iter()
        .map(|key| {
            let slot = (u128::from(shardwise::core::hash_bytes(key.as_bytes())) * 32) >> 64;
            format!("{key}\t{}", golden_owner(slot))
        })
        .collect();
    assert_eq!(output.lines().collect::<Vec<_>>(), expected);
    assert_eq!(expected.iter().map(|line| line.rsplit('\t').next().unwrap()).collect::<BTreeSet<_>>(), ["a", "b", "c"].into());
}

#[test]
fn a_fleet_of_fifty_agrees_with_the_golden_owners_of_single_keys() {
    let fleet = (0..50).map(|n| format!("worker-{n}")).collect::<Vec<_>>().join(",");
    let output = owners(&["--members", &fleet], b"tenant-a\ntenant-b\norder/42\n\n").well();
    assert_eq!(output, "tenant-a\tworker-8\ntenant-b\tworker-47\norder/42\tworker-26\n\tworker-35\n");
}

#[test]
fn a_key_is_every_byte_up_to_the_line_feed() {
    let keys = b"plain\nwith cr\r\n\n tab\there \n\xff\xfe not UTF-8 \0 nor text\nno line feed at the end";
    let ran = owners(&["--members", "only"], keys);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let expected: &[u8] =
        b"plain\tonly\nwith cr\r\tonly\n\tonly\n tab\there \tonly\n\xff\xfe not UTF-8 \0 nor text\tonly\nno line feed at the end\tonly\n";
    assert_eq!(ran.out, expected);
    // The carriage return is part of the key: it decides the owner.
    let (fleet, keys) =
        (["--members", "a,b,c,d,e,f,g,h"], (0..64).flat_map(|n| [n.to_string() + "\n", n.to_string() + "\r\n"]).collect::<String>());
    let output = owners(&fleet, keys.as_bytes()).well();
    let lines: Vec<_> = output.lines().map(|line| line.rsplit_once('\t').unwrap().1).collect();
    assert!(lines.chunks(2).any(|pair| pair[0] != pair[1]), "with and without the carriage return is the same key");
    assert_eq!(owners(&["--members", "only"], b"").well(), "", "no key, no line");
}

#[test]
fn with_0_keys_end_with_nul_and_may_hold_line_feeds() {
    let ran = owners(&["-0", "--members", "only"], b"two\nlines\0\0last");
    assert_eq!((ran.code, &ran.out[..]), (Some(0), &b"two\nlines\tonly\0\tonly\0last\tonly\0"[..]));
}

#[test]
fn json_shows_the_same_and_refuses_keys_it_cannot_hold() {
    let output = owners(&["--json", "--members", "only"], "Größe 🦀\n\"\t\n".as_bytes()).well();
    let lines: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines, [json!({"key": "Größe 🦀", "owner": "only"}), json!({"key": "\"\t", "owner": "only"})]);
    owners(&["--output", "json", "--members", "only"], b"\xff\n").fails(2, &["a key is not UTF-8", "--output human"]);
}

#[test]
fn weights_stand_behind_the_last_equals_sign() {
    let keys = (0..4_000).map(|n| n.to_string() + "\n").collect::<String>();
    let output = owners(&["--members", "a,b=2,c=d=1"], keys.as_bytes()).well();
    let mut shares = BTreeMap::<&str, u32>::new();
    output.lines().for_each(|line| *shares.entry(line.rsplit_once('\t').unwrap().1).or_default() += 1);
    assert_eq!(shares.keys().copied().collect::<Vec<_>>(), ["a", "b", "c=d"]);
    assert!((1_800..2_200).contains(&shares["b"]) && (850..1_150).contains(&shares["a"]), "weight 2 is half of four: {shares:?}");
}

#[test]
fn a_members_file_takes_ids_that_a_list_cannot() {
    let place = Place::empty();
    let ids = ["🦀", "a,b", "c=2", "with space", "path/to/worker", "quote \" and \\", "-dash"];
    let lines = ids.iter().map(|id| json!({"id": id, "weight": 3}).to_string() + "\n").collect::<String>();
    place.write("members.jsonl", lines + "\n{\"id\": \"plain\"}\n");
    let keys = (0..3_000).map(|n| n.to_string() + "\n").collect::<String>();
    let output = place.run_with(&["ring", "owners", "--members-file", "members.jsonl"], keys.as_bytes()).well();
    let owners: BTreeSet<_> = output.lines().map(|line| line.split_once('\t').unwrap().1).collect();
    assert_eq!(owners, ids.into_iter().chain(["plain"]).collect());

    place.write("empty.jsonl", "");
    let nobody = ["ring", "owners", "--members-file", "empty.jsonl"];
    assert_eq!(place.run_with(&nobody, b"k\n").well(), "k\t\n", "nobody there, nobody owns");
    assert_eq!(place.run_with(&[&nobody[..], &["--json"]].concat(), b"k\n").well(), "{\"key\":\"k\",\"owner\":null}\n");

    place.write("bad.jsonl", "{\"id\":\"a\"}\n{\"id\":\"b\",\"wieght\":2}\n");
    place
        .run(&["ring", "owners", "--members-file", "bad.jsonl"])
        .fails(2, &["bad.jsonl line 2", "wieght", "{\"id\": \"worker-1\", \"weight\": 2}"]);
    place.run(&["ring", "owners", "--members-file", "none.jsonl"]).fails(3, &["none.jsonl"]);
}

#[test]
fn what_cannot_be_placed_is_refused_in_one_line() {
    let cases: [(&[&str], &[&str]); 18] = [
        (&[], &["--members"]),
        (&["--members", ""], &["empty"]),
        (&["--members", "a,"], &["empty"]),
        (&["--members", "a=0"], &["a=0", "1 to 100"]),
        (&["--members", "a=101"], &["a=101", "1 to 100"]),
        (&["--members", "a=heavy"], &["heavy", "--members-file"]),
        (&["--members", "a,b,a=2"], &["\"a\"", "twice"]),
        (&["--members", "a", "--slots", "0"], &["slots is 0", "1 to 65536"]),
        (&["--members", "a", "--slots", "65537"], &["slots is 65537", "1 to 65536"]),
        (&["--members", "a", "--virtual-nodes", "0"], &["virtual_nodes is 0"]),
        (&["--members", "a", "--load-margin", "0.0501"], &["0.0501", "three decimals"]),
        (&["--members", "a", "--load-margin", "11"], &["11", "0 to 10"]),
        (&["--members", "a", "--placement", "rendezvous"], &["rendezvous", "ring", "quota", "uhashring", "modulo", "hashring"]),
        (&["--members", "a", "--placement", "modulo", "--slots", "64"], &["placement modulo has no slots; remove it"]),
        (&["--members", "a", "--placement", "hashring", "--load-margin", "0.1"], &["placement hashring has no load_margin"]),
        (&["--members", "a", "--placement", "uhashring", "--virtual-nodes", "160"], &["placement uhashring has no virtual_nodes"]),
        (&["--members", "a", "--placement", "hashring", "--virtual-nodes", "0"], &["virtual_nodes is 0"]),
        (&["--members", "a=100,b=100,c", "--placement", "hashring", "--virtual-nodes", "30000"], &["6030000 points", "lower the weights"]),
    ];
    for (options, parts) in cases {
        owners(options, b"k\n").fails(2, parts);
    }
}

/// A plan agrees with the output of `owners` before and after, key by key.
#[test]
fn a_plan_shows_what_moves() {
    let constants = ["--slots", "1000", "--virtual-nodes", "64"];
    let plan = |format: &[&str]| {
        let change = ["ring", "plan", "--members", "a,b=2,c", "--join", "d,e=3", "--leave", "a"];
        Place::empty().run(&[&change, &constants[..], format].concat())
    };
    // A key for every slot, found by hashing.
    let slot_of = |key: &str| (u128::from(shardwise::core::hash_bytes(key.as_bytes())) * 1_000) >> 64;
    let keys: BTreeMap<u128, String> = (0..40_000).map(|n| n.to_string()).map(|key| (slot_of(&key), key)).collect();
    assert_eq!(keys.len(), 1_000);
    let asked = keys.into_values().collect::<Vec<_>>().join("\n");
    let of = |members| owners(&[&["--members", members], &constants[..]].concat(), asked.as_bytes()).well();
    let (before, after) = (of("a,b=2,c"), of("b=2,c,d,e=3"));
    let owner = |line: &str| line.split_once('\t').unwrap().1.to_owned();
    let mut moves = BTreeMap::<(String, String), u64>::new();
    for (from, to) in before.lines().map(owner).zip(after.lines().map(owner)).filter(|(from, to)| from != to) {
        *moves.entry((from, to)).or_default() += 1;
    }

    let output = plan(&["--json"]).json();
    let pairs = output["moves"].as_array().unwrap().iter();
    let pairs: BTreeMap<_, _> = pairs
        .map(|pair| ((pair["from"].as_str().unwrap().into(), pair["to"].as_str().unwrap().into()), pair["slots"].as_u64().unwrap()))
        .collect();
    assert_eq!(pairs, moves);
    let moved = moves.values().sum::<u64>();
    assert_eq!((&output["slots"], &output["moved"]), (&json!(1_000), &json!(moved)));
    // Shares are slots over all slots: in each pair, in total, and between exact shares, where four sevenths of the weight are new.
    let is_share = |share: &Value, slots: f64| assert!((share.as_f64().unwrap() - slots / 1_000.0).abs() < 1e-9, "{share} for {slots}");
    output["moves"].as_array().unwrap().iter().for_each(|pair| is_share(&pair["share"], pair["slots"].as_f64().unwrap()));
    is_share(&output["moved_share"], moved as f64);
    is_share(&output["exact_share"], output["exact"].as_f64().unwrap());
    is_share(&output["exact_share"], 4_000.0 / 7.0);
    assert_eq!((&output["before"]["members"], &output["after"]["members"]), (&json!(3), &json!(4)));

    let words = plan(&[]).well();
    let first = words.lines().next().unwrap();
    assert!(
        first.starts_with(&format!("{} of 1000 slots move: ", output["moved"]))
            && first.ends_with("between exact shares it would be 57.14 %"),
        "{words}"
    );
    for ((from, to), slots) in &moves {
        let row = words.lines().find(|line| line.split_whitespace().take(2).eq([from, to]));
        assert!(row.is_some_and(|row| row.split_whitespace().nth(2) == Some(&slots.to_string())), "{from} to {to}: {words}");
    }
    assert!(words.contains(&format!("after   4        {:.3}", output["after"]["peak"].as_f64().unwrap())), "{words}");
}

#[test]
fn a_plan_for_nothing_and_without_members() {
    let plan = |options: &[&str]| Place::empty().run(&[&["ring", "plan", "--slots", "10"], options].concat());
    assert!(plan(&["--members", "a,b"]).well().starts_with("0 of 10 slots move: 0.00 %; between exact shares it would be 0.00 %\n"));
    let gone = plan(&["--members", "a", "--leave", "a", "--json"]).json();
    assert_eq!(gone["moves"], json!([{"from": "a", "to": null, "slots": 10, "share": 1.0}]));
    plan(&["--members", "a", "--leave", "b"]).fails(2, &["--leave b: no member is called b", "--members"]);
    plan(&["--members", "a,b", "--leave", "a,a"]).fails(2, &["--leave a"]);
    plan(&["--members", "a", "--join", "a=2"]).fails(2, &["--join a", "already"]);
    plan(&["--members", "a", "--join", "b=0"]).fails(2, &["b=0", "1 to 100"]);
    plan(&["--members", "a", "--settings", "x.toml"]).fails(2, &["--settings has no use here"]);
}

#[test]
fn ids_with_commas_join_and_leave() {
    let place = Place::empty();
    place.write("now.jsonl", "{\"id\":\"a,b\"}\n{\"id\":\"a\"}\n{\"id\":\"c\"}\n");
    place.write("new.jsonl", "{\"id\":\"d,e\",\"weight\":2}\n");
    let plan = |options: &[&str]| place.run(&[&["ring", "plan", "--slots", "10", "--members-file", "now.jsonl"], options].concat());
    let whole = plan(&["--leave", "a,b", "--leave", "a", "--leave", "c", "--join-file", "new.jsonl", "--json"]).json();
    let pairs = whole["moves"].as_array().unwrap();
    assert_eq!(pairs.iter().map(|pair| pair["from"].as_str().unwrap()).collect::<BTreeSet<_>>(), ["a", "a,b", "c"].into());
    assert!(pairs.iter().all(|pair| pair["to"] == "d,e"), "{whole}");
    assert_eq!(plan(&["--leave", "a,c", "--json"]).json()["after"]["members"], 1, "no member is called a,c: they are two");
    plan(&["--leave", "b"]).fails(2, &["--leave b"]);
    plan(&["--join-file", "now.jsonl"]).fails(2, &["--join a,b", "already"]);
}

/// A plan for another placement agrees with the output of `owners` under both, within the precision of this number of keys.
#[test]
fn a_plan_for_another_placement_shows_the_share_that_moves() {
    let fleet = "a,b=2,c";
    let asked = (0..40_000).map(|n| n.to_string()).collect::<Vec<_>>().join("\n");
    let of = |members: &str, constants: &[&str]| owners(&[&["--members", members], constants].concat(), asked.as_bytes()).well();
    let owner = |line: &str| line.split_once('\t').unwrap().1.to_owned();
    let old = ["--slots", "1000", "--virtual-nodes", "64"];
    let plan = |options: &[&str]| Place::empty().run(&[&["ring", "plan", "--members", fleet], &old[..], options].concat());

    let output = plan(&["--to", "slots=768,virtual_nodes=32", "--to", "load_margin=none", "--join", "d", "--json"]).json();
    let (before, after) = (of(fleet, &old), of("a,b=2,c,d", &["--slots", "768", "--virtual-nodes", "32", "--load-margin", "none"]));
    let mut moves = BTreeMap::<(String, String), f64>::new();
    for pair in before.lines().map(owner).zip(after.lines().map(owner)).filter(|(from, to)| from != to) {
        *moves.entry(pair).or_default() += 1.0 / 40_000.0;
    }
    let near = |output: &Value, share: f64| assert!((output.as_f64().unwrap() - share).abs() < 0.01, "{output} for {share}");
    near(&output["moved_share"], moves.values().sum());
    near(&output["exact_share"], 0.2);
    let mut total = 0.0;
    for pair in output["moves"].as_array().unwrap() {
        near(&pair["share"], *moves.get(&(pair["from"].as_str().unwrap().into(), pair["to"].as_str().unwrap().into())).unwrap_or(&0.0));
        total += pair["share"].as_f64().unwrap();
    }
    assert!((total - output["moved_share"].as_f64().unwrap()).abs() < 1e-9);
    let side = |side: &Value| ["placement", "slots", "virtual_nodes", "load_margin", "members"].map(|key| side[key].clone());
    assert_eq!(side(&output["before"]), [json!("ring"), json!(1_000), json!(64), json!("0.05"), json!(3)]);
    assert_eq!(side(&output["after"]), [json!("ring"), json!(768), json!(32), json!("none"), json!(4)]);

    let words = plan(&["--to", "slots=2000"]).well();
    assert!(words.lines().next().unwrap().ends_with(" of the keys move; between exact shares it would be 0.00 %"), "{words}");
    assert!(words.contains("ring       2000   64             0.05\n"), "{words}");
    assert!(plan(&["--to", "slots=1000"]).well().starts_with("0.00 % of the keys move;"), "nothing changes");
}

#[test]
fn a_plan_for_a_placement_that_cannot_be_is_refused() {
    let cases: [(&str, &[&str]); 12] = [
        ("placement=rendezvous", &["placement=rendezvous", "ring, quota, uhashring, modulo or hashring"]),
        ("placement=modulo,slots=64", &["placement modulo has no slots"]),
        ("virtual_nodes=5,placement=uhashring", &["placement uhashring has no virtual_nodes"]),
        ("slots=0", &["slots is 0", "1 to 65536"]),
        ("slots=many", &["slots=many", "whole number"]),
        ("slots=-1", &["slots=-1", "whole number"]),
        ("virtual_nodes=0", &["virtual_nodes is 0"]),
        ("load_margin=11", &["--to: load_margin is 11"]),
        ("load_margin", &["load_margin"]),
        ("slots=5,slots=6", &["--to slots=6", "twice"]),
        ("min_members=2", &["--to min_members=2", "placement, slots, virtual_nodes or load_margin"]),
        ("", &["KEY=VALUE"]),
    ];
    for (to, parts) in cases {
        Place::empty().run(&["ring", "plan", "--members", "a", "--to", to]).fails(2, parts);
    }
}

/// The fleet "Two weights" of the vectors: slots beyond the share of c, which has three times the weight, pass it over.
#[test]
fn explain_shows_that_a_weight_has_its_share() {
    let key_in = |slot: u128| {
        let hash = |key: &String| u128::from(shardwise::core::hash_bytes(key.as_bytes()));
        (0..10_000).map(|n| n.to_string()).find(|key| (hash(key) * 32) >> 64 == slot).unwrap()
    };
    let owners = [
        "c", "b", "b", "c", "c", "c", "c", "c", "c", "c", "a", "a", "a", "a", "a", "a", "b", "a", "c", "c", "c", "c", "c", "c", "c", "c",
        "c", "c", "c", "b", "b", "b",
    ];
    let mut passed = 0;
    for (slot, owner) in (0..).zip(owners) {
        let key = key_in(slot);
        let fleet = ["--members", "a,b,c=3", "--slots", "32", "--virtual-nodes", "4", "--placement", "quota"];
        let explain = |format: &[&str]| Place::empty().run(&[&["ring", "explain", &key], &fleet[..], format].concat());
        let output = explain(&["--json"]).json();
        assert_eq!((&output["placement"], &output["owner"]["id"]), (&json!("quota"), &json!(owner)), "slot {slot}");
        let full = output["passed"].as_array().unwrap().iter().find(|stop| stop["weight_slots"] == stop["weight_capacity"]);
        if let Some(full) = full {
            passed += 1;
            let (words, most) = (explain(&[]).well(), full["weight_capacity"].as_u64().unwrap());
            assert!(words.contains(&format!("passed over: all of its weight are full with {most} slots together")), "{words}");
        }
    }
    assert!(passed > 0, "no weight had its share before all slots were given");
}

/// The worked example of docs/reference/placement.md: slots 24 to 27 pass over c, which is full.
#[test]
fn explain_shows_who_was_passed_over_and_why() {
    let key =
        (0..10_000).map(|n| n.to_string()).find(|key| (u128::from(shardwise::core::hash_bytes(key.as_bytes())) * 32) >> 64 == 24).unwrap();
    let explain = |format: &[&str]| {
        let ring = ["ring", "explain", &key, "--members", "a,b,c", "--slots", "32", "--virtual-nodes", "4"];
        Place::empty().run(&[&ring, format].concat())
    };
    let output = explain(&["--json"]).json();
    assert_eq!((&output["key"], &output["slot"], &output["start"]), (&json!(key), &json!(24), &json!("c000000000000000")));
    assert_eq!(output["placement"], json!("ring"));
    assert_eq!(output["hash"], json!(format!("{:016x}", shardwise::core::hash_bytes(key.as_bytes()))));
    assert_eq!(output["passed"], json!([{"id": "c", "point": 1, "place": "d81c7381e24a051a", "slots": 12, "capacity": 12}]));
    assert_eq!(output["owner"], json!({"id": "a", "point": 2, "place": "e50c031cb81f5a0d", "slots": 7, "capacity": 12}));
    let words = explain(&[]).well();
    for part in ["slot   24 of 32, from c000000000000000", "owner  a\n", "passed over: full with 12 slots", "takes it: had 7 of at most 12"]
    {
        assert!(words.contains(part), "{part}: {words}");
    }
    // The next owner is the owner without the present one.
    let next = owners(&["--members", "b,c", "--slots", "32", "--virtual-nodes", "4"], key.as_bytes()).well();
    assert_eq!(output["next"], json!(next.trim_end().split_once('\t').unwrap().1));
}

/// Keys with their owners among worker-1, worker-2 and worker-3: as in the golden vectors of the core.
const BY_KEY: [(&[&str], [&str; 4]); 3] = [
    (&["--placement", "uhashring"], ["worker-2", "worker-3", "worker-3", "worker-3"]),
    (&["--placement", "modulo"], ["worker-1", "worker-3", "worker-2", "worker-3"]),
    (&["--placement", "hashring", "--virtual-nodes", "16"], ["worker-2", "worker-3", "worker-2", "worker-1"]),
];

#[test]
fn other_fleets_rules_have_the_owners_of_the_golden_vectors() {
    let fleet = ["--members", "worker-3,worker-1,worker-2"];
    for (placement, expected) in BY_KEY {
        let keys = ["tenant-a", "tenant-b", "", "Größe 🦀"];
        let lines: Vec<_> = keys.iter().zip(expected).map(|(key, owner)| format!("{key}\t{owner}")).collect();
        let output = owners(&[&fleet[..], placement].concat(), keys.join("\n").as_bytes()).well();
        assert_eq!(output.lines().collect::<Vec<_>>(), lines);
        for (key, owner) in keys.iter().zip(expected) {
            let explain = |format: &[&str]| Place::empty().run(&[&["ring", "explain", key], &fleet[..], placement, format].concat());
            let output = explain(&["--json"]).json();
            assert_eq!((&output["key"], &output["placement"], &output["owner"]["id"]), (&json!(key), &json!(placement[1]), &json!(owner)));
            let position = ["worker-1", "worker-2", "worker-3"].iter().position(|id| *id == owner).unwrap();
            assert_eq!((&output["members"], &output["owner"]["position"]), (&json!(3), &json!(position)));
            // The next owner is the owner without the present one.
            let others = ["worker-1", "worker-2", "worker-3"].into_iter().filter(|id| *id != owner).collect::<Vec<_>>().join(",");
            let next = owners(&[&["--members", &others], placement].concat(), format!("{key}\n").as_bytes()).well();
            assert_eq!(output["next"], json!(next.trim_end().split_once('\t').unwrap().1));
            let (hash, words) = (output["hash"].as_str().unwrap(), explain(&[]).well());
            assert!(words.starts_with(&format!("hash   {hash}\n")) && words.contains(&format!("owner  {owner}\nnext   ")), "{words}");
            if placement[1] == "modulo" {
                assert_eq!(u64::from_str_radix(hash, 16).unwrap() % 3, position as u64);
                assert!(output["owner"]["point"].is_null() && words.contains(&format!("place  {position} of 3 members")), "{words}");
            } else {
                let point = output["owner"]["point"].as_str().unwrap();
                assert!(point.len() == hash.len() && words.contains(&format!("point  {point}")), "{words}");
            }
        }
    }
    let nobody = Place::empty();
    nobody.write("empty.jsonl", "");
    let explain = ["ring", "explain", "k", "--members-file", "empty.jsonl", "--placement", "modulo"];
    assert!(nobody.run(&explain).well().ends_with("owner  none: there are no members\n"));
    assert_eq!(nobody.run(&[&explain[..], &["--json"]].concat()).json()["owner"], Value::Null);
}

/// Options of a plan for a, b and c; the placement before; the members after it, and their placement.
type Planned = (&'static [&'static str], [&'static str; 2], &'static str, [&'static str; 2]);

/// A plan from, to or within a key placement agrees with the output of `owners`, within the precision of this number of keys.
#[test]
fn a_plan_without_slots_is_measured_on_a_sample_and_says_so() {
    let asked = (0..40_000).map(|n| format!("tenant {n}")).collect::<Vec<_>>().join("\n");
    let of = |members: &str, placement: &[&str]| owners(&[&["--members", members], placement].concat(), asked.as_bytes()).well();
    let (python, modulo, ring) = (["--placement", "uhashring"], ["--placement", "modulo"], ["--placement", "ring"]);
    let cases: [Planned; 4] = [
        (&["--placement", "uhashring", "--join", "d"], python, "a,b=2,c,d", python),
        (&["--placement", "modulo", "--join", "d", "--leave", "a"], modulo, "b=2,c,d", modulo),
        (&["--placement", "uhashring", "--to", "placement=ring"], python, "a,b=2,c", ring),
        (&["--to", "placement=modulo", "--leave", "c"], ring, "a,b=2", modulo),
    ];
    for (options, placement, members, next) in cases {
        let plan = |format: &[&str]| Place::empty().run(&[&["ring", "plan", "--members", "a,b=2,c"], options, format].concat());
        let output = plan(&["--json"]).json();
        let (before, after) = (of("a,b=2,c", &placement), of(members, &next));
        let moved = before.lines().zip(after.lines()).filter(|(old, new)| old != new).count() as f64 / 40_000.0;
        assert!((output["moved_share"].as_f64().unwrap() - moved).abs() < 0.015, "{output} for {moved}");
        assert_eq!(output["sample"], json!({"keys": 100_000, "seed": 0}));
        for (side, placement) in [("before", placement[1]), ("after", next[1])] {
            let slots = if placement == "ring" { json!(16_384) } else { Value::Null };
            assert_eq!((&output[side]["placement"], &output[side]["slots"]), (&json!(placement), &slots));
        }
        let words = plan(&[]).well();
        assert!(words.lines().nth(1).unwrap().starts_with("measured on a sample of 100000 keys, seed 0"), "{words}");
        assert_eq!(plan(&["--json"]).json(), output, "the sample is the same each time");
    }
    let exact = Place::empty().run(&["ring", "plan", "--members", "a,b", "--to", "slots=7", "--json"]).json();
    assert!(exact.get("sample").is_none(), "{exact}");
}

/// As in the settings' `next`: numbers chosen for another placement are not kept.
#[test]
fn a_plan_for_another_placement_begins_with_its_defaults() {
    let plan = |options: &[&str]| Place::empty().run(&[&["ring", "plan", "--members", "a,b=2,c", "--json"], options].concat()).json();
    let points = ["--placement", "hashring", "--virtual-nodes", "3"];
    let to = |change: &'static str| plan(&[&points[..], &["--to", change]].concat());
    assert_eq!(to("placement=ring"), to("virtual_nodes=1024,placement=ring"));
    assert_ne!(to("placement=ring"), to("placement=ring,virtual_nodes=3"));
    assert_eq!(to("virtual_nodes=5"), to("placement=hashring,virtual_nodes=5"), "the same placement keeps them");
}

#[test]
fn a_million_keys_stream_through() {
    let keys = (0..1_000_000).map(|n| n.to_string() + " is a tenant\n").collect::<String>();
    let started = Instant::now();
    let output = owners(&["--members", "a,b,c"], keys.as_bytes()).well();
    let took = started.elapsed();
    assert_eq!(output.lines().count(), 1_000_000);
    assert!(took < Duration::from_secs(20), "a million keys took {took:?}");
}
