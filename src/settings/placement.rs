//! The placement of keys, as read for a policy and for its table `next`: the placement to change to.

use shardwise_core::{LoadMargin, PlacementKind, PlacementParams, Policy, SLOTS_OUTBOX};
use shardwise_settings::{Error, Origin, ResolvedValue, SettingKey, SettingsTable};

use super::keys;

pub(super) fn read(table: &SettingsTable<'_>, drives_outbox: bool, fewer_slots: bool) -> Result<PlacementParams, Error> {
    let mut params = PlacementParams { kind: kind(&table.take(&keys::PLACEMENT)?, drives_outbox)?, ..PlacementParams::default() };
    refuse_unused(table, params.kind, [&keys::SLOTS, &keys::VIRTUAL_NODES, &keys::LOAD_MARGIN])?;
    if params.kind.by_key().is_none() {
        params.slots = if fewer_slots {
            table.take_or(&keys::SLOTS, (SLOTS_OUTBOX, Origin::Default), str::parse)?
        } else {
            table.take(&keys::SLOTS)?.parse(str::parse)?
        };
        params.load_margin = table.take(&keys::LOAD_MARGIN)?.parse(LoadMargin::parse)?;
    }
    if params.kind.uses_virtual_nodes() {
        params.virtual_nodes = table.take(&keys::VIRTUAL_NODES)?.parse(str::parse)?;
    }
    Ok(params)
}

fn kind(found: &ResolvedValue, drives_outbox: bool) -> Result<PlacementKind, Error> {
    // The table of keys accepts only known names.
    let kind = PlacementKind::named(found.text()).unwrap_or_default();
    if drives_outbox && kind.by_key().is_some() {
        return Err(
            found.refuse("an outbox uses this policy and fences each slot in its database, and only \"ring\" and \"quota\" have slots; write one of these")
        );
    }
    Ok(kind)
}

/// Refuses numbers of slots, virtual nodes and the load margin that are set without an effect.
fn refuse_unused(
    table: &SettingsTable<'_>,
    kind: PlacementKind,
    [slots, virtual_nodes, load_margin]: [&SettingKey; 3],
) -> Result<(), Error> {
    let Some(placement) = kind.by_key() else { return Ok(()) };
    let unused = [Some(slots), Some(load_margin), (!kind.uses_virtual_nodes()).then_some(virtual_nodes)];
    for key in unused.into_iter().flatten() {
        if let Some(found) = table.written(key)? {
            return Err(found.refuse(format_args!("placement {placement} has no {}; remove it", key.name)));
        }
    }
    Ok(())
}

const NEEDED: &str = "next changes nothing; set the keys that change, or remove it";

/// Reads the `next` of the policy in `table`. Keys that it does not set keep the value of `policy`; with another `placement` they have
/// that one's default, because the policy's numbers were chosen for a different algorithm.
///
/// It records these values too: to make `next` the policy's own placement, the same values must be set there.
pub(super) fn next(table: &SettingsTable<'_>, policy: &Policy, drives_outbox: bool) -> Result<Option<PlacementParams>, Error> {
    let table = table.table("next");
    let mut written = Vec::new();
    for key in keys::NEXT {
        written.extend(table.written(key)?);
    }
    let Some(first) = written.first() else {
        let refuse = |origin: Origin| Err(origin.fail(format_args!("{} is empty: {NEEDED}", table.path())));
        return table.named_at().map_or(Ok(None), refuse);
    };
    let chosen = table.written(&keys::NEXT_PLACEMENT)?;
    let chosen = chosen.map_or(Ok(policy.placement.kind), |found| kind(&found, drives_outbox))?;
    let (mut next, unnamed) = if chosen == policy.placement.kind {
        (policy.placement, Origin::Policy)
    } else {
        (PlacementParams { kind: chosen, ..PlacementParams::default() }, Origin::Default)
    };
    refuse_unused(&table, chosen, [&keys::NEXT_SLOTS, &keys::NEXT_VIRTUAL_NODES, &keys::NEXT_LOAD_MARGIN])?;
    table.take_or(&keys::NEXT_PLACEMENT, (chosen.as_str().to_owned(), unnamed.clone()), str::parse)?;
    if chosen.by_key().is_none() {
        next.slots = table.take_or(&keys::NEXT_SLOTS, (next.slots, unnamed.clone()), str::parse)?;
        next.load_margin = table.take_or(&keys::NEXT_LOAD_MARGIN, (next.load_margin, unnamed.clone()), LoadMargin::parse)?;
    }
    if chosen.uses_virtual_nodes() {
        next.virtual_nodes = table.take_or(&keys::NEXT_VIRTUAL_NODES, (next.virtual_nodes, unnamed), str::parse)?;
    }
    if let Some(slots) = table.written(&keys::NEXT_SLOTS)?.filter(|_| drives_outbox && next.slots != policy.placement.slots) {
        return Err(slots.refuse(
            "an outbox uses this policy and fences each slot in its database, so slots cannot change while publishers run; \
             remove this, stop all publishers, change the policy's own slots, start them again",
        ));
    }
    let mut changed = policy.clone();
    changed.placement = next;
    if changed.fingerprint() == policy.fingerprint() {
        return Err(first.refuse(NEEDED));
    }
    Ok(Some(next))
}
