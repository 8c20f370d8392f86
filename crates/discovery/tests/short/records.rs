//! Replays `testdata/records.json`: what docs/reference/protocol.md says of records, fingerprints, who is placed and who owns. The page's
//! own Python replays it too (`docs/reference/protocol_check.py`).

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use shardwise_core::{
    GroupName, InstanceId, LoadMargin, OwnershipMode, PlacementKind, PlacementParams, Policy, PolicyName, VersionRule, View, ViewPlacement,
};
use shardwise_discovery::Record;

fn vectors() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/records.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn number<T: TryFrom<u64, Error: std::fmt::Debug>>(value: &Value) -> T {
    T::try_from(value.as_u64().unwrap()).unwrap()
}

#[test]
fn fingerprints() {
    let vectors = vectors();
    let cases = vectors["fingerprints"].as_array().unwrap();
    assert!(cases.len() >= 7);
    for case in cases {
        let mut policy = Policy::new(PolicyName::new("p").unwrap(), GroupName::new("g").unwrap());
        policy.placement = PlacementParams {
            kind: PlacementKind::named(case["placement"].as_str().unwrap()).unwrap(),
            slots: number(&case["slots"]),
            virtual_nodes: number(&case["virtual_nodes"]),
            load_margin: match case["load_margin"].as_str().unwrap() {
                "none" => LoadMargin::None,
                "0.05" => LoadMargin::Thousandths(50),
                "1.5" => LoadMargin::Thousandths(1_500),
                other => unreachable!("no such margin here: {other}"),
            },
        };
        policy.ownership = OwnershipMode::named(case["ownership"].as_str().unwrap()).unwrap();
        policy.min_members = number(&case["min_members"]);
        policy.rejoin_grace = Duration::from_millis(number(&case["rejoin_grace_ms"]));
        policy.version_rule = VersionRule::named(case["versions"].as_str().unwrap()).unwrap();
        assert_eq!(json!(policy.fingerprint().to_string()), case["is"], "{case}");
    }
}

#[test]
fn who_is_placed() {
    let vectors = vectors();
    let cases = vectors["views"].as_array().unwrap();
    assert!(cases.len() >= 40);
    for case in cases {
        let members: Result<Vec<_>, _> = case["members"].as_array().unwrap().iter().map(read).collect();
        let Ok(members) = members else {
            assert!(["placed", "ring", "quota"].iter().all(|name| case[*name].is_null()), "cannot be read: {case}");
            continue;
        };
        let view = View::new(1, members);
        assert_eq!(json!(view.group_fingerprint().map(|group| group.to_string())), case["group"], "{case}");
        let placed = ViewPlacement::of_view(&view, PlacementParams::default()).unwrap();
        let placed: Vec<_> = placed.members().iter().map(|(id, weight)| json!([id.as_str(), weight.get()])).collect();
        assert_eq!(json!(placed), case["placed"], "{case}");
    }
}

#[test]
fn who_owns() {
    let vectors = vectors();
    let (asked, keys) = (&vectors["owners"], vectors["owners"]["keys"].as_array().unwrap());
    let mut differ = 0;
    for case in vectors["views"].as_array().unwrap().iter().filter(|case| !case["placed"].is_null()) {
        let members = case["members"].as_array().unwrap().iter().map(read).collect::<Result<Vec<_>, _>>();
        let view = View::new(1, members.unwrap());
        for name in ["ring", "quota"] {
            let params = PlacementParams {
                kind: PlacementKind::named(name).unwrap(),
                slots: number(&asked["slots"]),
                virtual_nodes: number(&asked["virtual_nodes"]),
                load_margin: LoadMargin::Thousandths(number(&asked["load_margin_thousandths"])),
            };
            let placed = ViewPlacement::of_view(&view, params).unwrap();
            let owners: Vec<_> = keys.iter().map(|key| placed.owner(key.as_str().unwrap()).map(InstanceId::as_str)).collect();
            assert_eq!(json!(owners), case[name], "{name}: {case}");
        }
        differ += usize::from(case["ring"] != case["quota"]);
    }
    assert!(differ > 1, "nothing would tell the two placements apart");
}

fn read(member: &Value) -> Result<shardwise_core::Member, shardwise_discovery::RecordError> {
    let id = InstanceId::new(member["id"].as_str().unwrap()).unwrap();
    Record::decode(id, number(&member["joined"]), member["record"].as_str().unwrap())
}
