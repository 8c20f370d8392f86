//! The placement of keys, as read for a policy and for its `next`.

use shardwise_core::{LoadMargin, PlacementKind, PlacementParams, SLOTS_OUTBOX};
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

pub(super) fn kind(found: &ResolvedValue, drives_outbox: bool) -> Result<PlacementKind, Error> {
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
pub(super) fn refuse_unused(
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
