//! Parses members and placements from the command line and from files. It does not depend on the rest of the command: the fuzz targets
//! include this file directly, because a binary has no library.

use serde::Deserialize;
use shardwise::{InstanceId, LoadMargin, PlacementKind, PlacementParams, Weight};

pub(crate) type MemberWeight = (InstanceId, Weight);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberLine {
    id: String,
    weight: Option<u64>,
}

/// Members separated by commas, each `id` or `id=weight`.
pub(crate) fn members_of_list(text: &str) -> Result<Vec<MemberWeight>, String> {
    text.split(',').map(listed).collect()
}

fn listed(text: &str) -> Result<MemberWeight, String> {
    let (id, weight) = match text.rsplit_once('=') {
        Some((id, weight)) => {
            let number = weight.parse().map_err(|_| {
                format!("member {text:?}: {weight:?} after = is not a weight from 1 to 100; ids with = go into --members-file")
            })?;
            (id, Some(number))
        }
        None => (text, None),
    };
    member(id, weight).map_err(|why| format!("member {text:?}: {why}"))
}

/// Parses members as JSON, one per line; an error includes its line number. Blank lines are skipped.
pub(crate) fn members_of_lines(text: &str) -> Result<Vec<MemberWeight>, (usize, String)> {
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let read = |line| {
        let MemberLine { id, weight } = serde_json::from_str(line).map_err(|error| error.to_string())?;
        member(&id, weight)
    };
    lines.map(|(number, line)| read(line).map_err(|why| (number, why))).collect()
}

fn member(id: &str, weight: Option<u64>) -> Result<MemberWeight, String> {
    let id = InstanceId::new(id).map_err(|error| error.to_string())?;
    Ok((id, Weight::try_from(weight.unwrap_or(1))?))
}

/// Sorts members by id and refuses duplicates.
pub(crate) fn in_order(mut members: Vec<MemberWeight>) -> Result<Vec<MemberWeight>, String> {
    members.sort();
    match members.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(format!("member {:?} is given twice; ids are unique in a group", pair[0].0)),
        None => Ok(members),
    }
}

/// The placement after `--to`: `KEY=VALUE`, separated by commas. As in the table `next` of the settings, missing keys keep their values;
/// with another placement they have its defaults.
pub(crate) fn placement_after(now: PlacementParams, text: &str) -> Result<PlacementParams, String> {
    let parts = || text.split(',');
    let kind = parts().find_map(|part| part.strip_prefix("placement=")).and_then(PlacementKind::named).unwrap_or(now.kind);
    let mut next = if kind == now.kind { now } else { PlacementParams { kind, ..PlacementParams::default() } };
    let mut named = Vec::new();
    for part in parts() {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        if named.contains(&key) {
            return Err(format!("--to {part}: {key} is given twice"));
        }
        named.push(key);
        let number = || value.parse().map_err(|_| format!("--to {part}: {value:?} is not a whole number that can be meant here"));
        match (key, value) {
            ("placement", _) => {
                PlacementKind::named(value).ok_or_else(|| format!("--to {part}: write ring, quota, uhashring, modulo or hashring"))?;
            }
            ("slots", _) => next.slots = number()?,
            ("virtual_nodes", _) => next.virtual_nodes = number()?,
            ("load_margin", _) => next.load_margin = LoadMargin::parse(value).map_err(|error| format!("--to: {error}"))?,
            _ => {
                let known = "write KEY=VALUE with placement, slots, virtual_nodes or load_margin, separated by commas";
                return Err(format!("--to {part}: {known}"));
            }
        }
    }
    refuse_unused(next.kind, named.iter().copied())?;
    next.validated().map_err(|error| format!("--to: {error}"))
}

/// Refuses numbers that have no effect on the placement, because the user would expect one.
pub(crate) fn refuse_unused<'a>(kind: PlacementKind, mut given: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let is_unused = |name: &str| match name {
        "virtual_nodes" => !kind.uses_virtual_nodes(),
        "slots" | "load_margin" => kind.by_key().is_some(),
        _ => false,
    };
    match given.find(|name| is_unused(name)) {
        Some(name) => Err(format!("placement {} has no {name}; remove it", kind.as_str())),
        None => Ok(()),
    }
}
