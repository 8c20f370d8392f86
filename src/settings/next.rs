//! A policy's table `next`: the placement to change to.

use std::fmt::Display;

use shardwise_core::{LoadMargin, PlacementParams, Policy};
use shardwise_settings::{Error, Origin, ResolvedValue, SettingKey, SettingsTable};

use super::keys;
use super::placement::{kind, refuse_unused};

const NEEDED: &str = "next changes nothing; set the keys that change, or remove it";

/// The keys of a `next`, where they are set.
struct NextKeys {
    placement: Option<ResolvedValue>,
    slots: Option<ResolvedValue>,
    virtual_nodes: Option<ResolvedValue>,
    load_margin: Option<ResolvedValue>,
}

/// Reads the `next` of the policy in `table`. Keys that it does not set keep the value of `policy`; with another `placement` they have
/// that one's default, because the policy's numbers were chosen for a different algorithm.
pub(super) fn read(table: &SettingsTable<'_>, policy: &Policy, drives_outbox: bool) -> Result<Option<PlacementParams>, Error> {
    let table = table.table("next");
    let placement = table.take_if_set(&keys::NEXT_PLACEMENT)?;
    let chosen = placement.as_ref().map(|found| kind(found, drives_outbox)).transpose()?.unwrap_or(policy.placement.kind);
    let (mut next, unnamed) = if chosen == policy.placement.kind {
        (policy.placement, Origin::Policy)
    } else {
        (PlacementParams { kind: chosen, ..PlacementParams::default() }, Origin::Default)
    };
    refuse_unused(&table, chosen, [&keys::NEXT_SLOTS, &keys::NEXT_VIRTUAL_NODES, &keys::NEXT_LOAD_MARGIN])?;
    let slots = table.take_if_set(&keys::NEXT_SLOTS)?;
    let virtual_nodes = table.take_if_set(&keys::NEXT_VIRTUAL_NODES)?;
    let load_margin = table.take_if_set(&keys::NEXT_LOAD_MARGIN)?;
    let written = NextKeys { placement, slots, virtual_nodes, load_margin };
    written.lay_over(&mut next)?;
    let Some(named) = written.first() else {
        let refuse = |origin: Origin| Err(origin.fail(format_args!("{} is empty: {NEEDED}", table.path())));
        return table.named_at().map_or(Ok(None), refuse);
    };
    if let Some(slots) = written.slots.as_ref().filter(|_| drives_outbox && next.slots != policy.placement.slots) {
        return Err(slots.refuse(
            "an outbox uses this policy and fences each slot in its database, so slots cannot change while publishers run; \
             remove this, stop all publishers, change the policy's own slots, start them again",
        ));
    }
    let mut changed = policy.clone();
    changed.placement = next;
    if changed.fingerprint() == policy.fingerprint() {
        return Err(named.refuse(NEEDED));
    }
    written.note_the_rest(&table, &next, &unnamed);
    Ok(Some(next))
}

impl NextKeys {
    fn first(&self) -> Option<&ResolvedValue> {
        [&self.placement, &self.slots, &self.virtual_nodes, &self.load_margin].into_iter().flatten().next()
    }

    fn lay_over(&self, next: &mut PlacementParams) -> Result<(), Error> {
        if let Some(slots) = &self.slots {
            next.slots = slots.parse(str::parse)?;
        }
        if let Some(virtual_nodes) = &self.virtual_nodes {
            next.virtual_nodes = virtual_nodes.parse(str::parse)?;
        }
        if let Some(load_margin) = &self.load_margin {
            next.load_margin = load_margin.parse(LoadMargin::parse)?;
        }
        Ok(())
    }

    /// Records values that are not set here: to make `next` the policy's own placement, the same values must be set there.
    fn note_the_rest(&self, table: &SettingsTable<'_>, next: &PlacementParams, unnamed: &Origin) {
        let has_slots = next.kind.by_key().is_none();
        let rest: [(bool, &Option<ResolvedValue>, &SettingKey, &dyn Display); 4] = [
            (true, &self.placement, &keys::NEXT_PLACEMENT, &next.kind.as_str()),
            (has_slots, &self.slots, &keys::NEXT_SLOTS, &next.slots),
            (next.kind.uses_virtual_nodes(), &self.virtual_nodes, &keys::NEXT_VIRTUAL_NODES, &next.virtual_nodes),
            (has_slots, &self.load_margin, &keys::NEXT_LOAD_MARGIN, &next.load_margin),
        ];
        for (_, _, key, value) in rest.into_iter().filter(|(counts, written, ..)| *counts && written.is_none()) {
            table.note_from(key, value, unnamed.clone());
        }
    }
}
