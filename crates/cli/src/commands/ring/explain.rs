//! `shardwise ring explain`: explains a key's owner.

use clap::Args;
use serde_json::{Map, Value, json};
use shardwise::core::{Explanation, KeyExplanation, ViewPlacement, WalkStep, WeightClassLoad};
use shardwise::{InstanceId, KeyOwners, PlacementKind};

use super::{Placement, RingMembers, place};
use crate::common::Common;
use crate::exit::{Code, Result};
use crate::output::{count, table};

#[derive(Debug, Args)]
pub(crate) struct RingExplain {
    /// Explain the owner of this key
    key: String,
    #[command(flatten)]
    members: RingMembers,
    #[command(flatten)]
    placement: Placement,
}

impl RingExplain {
    pub(super) fn run(&self, common: &Common) -> Result<Code> {
        print(&place(self.members.read()?, self.placement.params()?)?, &self.key, Map::new(), None, common)?;
        Ok(Code::Ok)
    }
}

/// Prints why `key` has its owner under that placement. In a live group JSON has these fields of the holder too, and the text the holder.
pub(crate) fn print(placed: &ViewPlacement, key: &str, fields: Map<String, Value>, holder: Option<&str>, common: &Common) -> Result<()> {
    let with_holder = |mut json: Value| {
        if let Some(json) = json.as_object_mut() {
            json.extend(fields);
        }
        json
    };
    match placed {
        ViewPlacement::Slots(owners) => {
            let explained = owners.explain(key);
            let json = with_holder(as_json(key, owners.params().kind, &explained));
            common.print(&json, || in_words(&explained, owners.params().slots, holder))
        }
        ViewPlacement::Keys(owners) => {
            let explained = owners.explain(key);
            common.print(&with_holder(key_as_json(key, &explained, owners)), || key_in_words(&explained, owners))
        }
    }
}

fn key_as_json(key: &str, explained: &KeyExplanation, owners: &KeyOwners) -> Value {
    let KeyExplanation { hash, point, position, owner, next } = explained;
    let owner = owner.as_ref().map(|id| json!({"id": id, "position": position, "point": point}));
    json!({
        "key": key, "placement": owners.placement().as_str(), "hash": hash, "members": owners.members().len(), "owner": owner, "next": next,
    })
}

/// Positions on the ring are text: they are 64-bit numbers, and many JSON readers keep only 53 bits.
fn as_json(key: &str, kind: PlacementKind, explained: &Explanation) -> Value {
    let stop = |stop: &WalkStep| {
        let mut json = json!({
            "id": stop.instance_id, "point": stop.point, "place": format!("{:016x}", stop.place),
            "slots": stop.slots, "capacity": stop.capacity,
        });
        if let Some(WeightClassLoad { slots, most }) = stop.together {
            json["weight_slots"] = json!(slots);
            json["weight_capacity"] = json!(most);
        }
        json
    };
    let mut json = json!({
        "key": key, "placement": kind.as_str(), "hash": format!("{:016x}", explained.hash), "slot": explained.slot,
        "start": format!("{:016x}", explained.start), "passed": explained.passed.iter().map(stop).collect::<Vec<_>>(),
        "owner": explained.owner.as_ref().map(stop), "next": explained.next,
    });
    if kind == PlacementKind::Quota {
        json["before"] = json!(explained.before.as_ref().map(stop));
    }
    json
}

fn in_words(explained: &Explanation, slots: u32, holder: Option<&str>) -> String {
    let Explanation { hash, slot, start, passed, owner, before, next } = explained;
    let head = format!("hash   {hash:016x}\nslot   {slot} of {slots}, from {start:016x}\nowner  ");
    let Some(owner) = owner else {
        return head + "none: there are no members\n";
    };
    let next = next_in_words(next.as_ref());
    let holder = holder.map_or_else(String::new, |holder| format!("holder {holder}\n"));
    let row =
        |stop: &WalkStep, verdict| vec![stop.instance_id.to_string(), stop.point.to_string(), format!("{:016x}", stop.place), verdict];
    let full = |stop: &WalkStep| match stop.together {
        Some(WeightClassLoad { slots, most }) if slots >= most => {
            row(stop, format!("passed over: all of its weight are full with {} together", count(u64::from(most), "slot")))
        }
        _ => row(stop, format!("passed over: full with {}", count(u64::from(stop.capacity), "slot"))),
    };
    let had = |stop: &WalkStep| format!("had {} of at most {}", stop.slots, stop.capacity);
    let takes = match before {
        None => vec![row(owner, format!("takes it: {}", had(owner)))],
        Some(before) => vec![
            row(before, format!("is given it first: {}", had(before))),
            row(owner, format!("takes it instead: the members of its weight had less than their share: {}", had(owner))),
        ],
    };
    let way: Vec<_> = passed.iter().map(full).chain(takes).collect();
    format!("{head}{}\nnext   {next}\n{holder}\n{}", owner.instance_id, table(&["member", "point", "position", ""], &way))
}

fn next_in_words(next: Option<&InstanceId>) -> String {
    next.map_or_else(|| "none: there is no other member".into(), InstanceId::to_string)
}

fn key_in_words(explained: &KeyExplanation, owners: &KeyOwners) -> String {
    let KeyExplanation { hash, point, position, owner, next } = explained;
    let head = format!("hash   {hash}\n");
    let (Some(owner), Some(position)) = (owner, position) else {
        return head + "owner  none: there are no members\n";
    };
    let members = owners.members().len();
    let modulo = || {
        let place =
            format!("place  {position} of {}, from 0 and in order of id: the hash modulo {members}", count(members as u64, "member"));
        (place, if members > 1 { "; most other keys would move as well" } else { "" })
    };
    let (way, others) = point.as_ref().map_or_else(modulo, |point| (format!("point  {point}, the next one clockwise"), ""));
    format!("{head}{way}\nowner  {owner}\nnext   {}{others}\n", next_in_words(next.as_ref()))
}
