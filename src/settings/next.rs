//! A policy's table `next`: what its placement is to be changed to.

use std::fmt::Display;

use shardwise_core::{PlacementParams, Policy};

use super::keys::{self, SettingKey};
use super::origin::Origin;
use super::policy::{kind, refuse_unused};
use super::read::{Reader, ResolvedValue, SettingsTable};
use crate::Error;

/// What to do about a `next` without effect.
const NEEDED: &str = "next changes nothing; say in it what is to change, or remove it";

/// The keys of a `next`, where they are written.
struct NextKeys {
    placement: Option<ResolvedValue>,
    slots: Option<ResolvedValue>,
    virtual_nodes: Option<ResolvedValue>,
    load_margin: Option<ResolvedValue>,
}

/// Reads the `next` of the policy at `place`. What it does not name stays as `policy` has it; with another `placement` it is that one's default,
/// because the policy's numbers were chosen for something else.
pub(super) fn read(reader: &Reader, place: &SettingsTable, policy: &Policy, drives_outbox: bool) -> Result<Option<PlacementParams>, Error> {
    let place = SettingsTable { path: place.path.join("next"), inherits: None, origin: place.origin.clone() };
    let placement = reader.take_if_set(&place, &keys::NEXT_PLACEMENT)?;
    let chosen = placement.as_ref().map(|found| kind(found, drives_outbox)).transpose()?.unwrap_or(policy.placement.kind);
    let (mut next, unnamed) = if chosen == policy.placement.kind {
        (policy.placement, Origin::Policy)
    } else {
        (PlacementParams { kind: chosen, ..PlacementParams::default() }, Origin::Default)
    };
    refuse_unused(reader, &place, chosen, [&keys::NEXT_SLOTS, &keys::NEXT_VIRTUAL_NODES, &keys::NEXT_LOAD_MARGIN])?;
    let slots = reader.take_if_set(&place, &keys::NEXT_SLOTS)?;
    let virtual_nodes = reader.take_if_set(&place, &keys::NEXT_VIRTUAL_NODES)?;
    let load_margin = reader.take_if_set(&place, &keys::NEXT_LOAD_MARGIN)?;
    let written = NextKeys { placement, slots, virtual_nodes, load_margin };
    written.lay_over(&mut next)?;
    let Some(named) = written.first() else {
        let refuse = |origin: &Origin| Err(origin.fail(format_args!("{} is empty: {NEEDED}", place.path)));
        return reader.layers().names_table(&place.path).map_or(Ok(None), refuse);
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
    written.note_the_rest(reader, &place, &next, &unnamed);
    Ok(Some(next))
}

impl NextKeys {
    fn first(&self) -> Option<&ResolvedValue> {
        [&self.placement, &self.slots, &self.virtual_nodes, &self.load_margin].into_iter().flatten().next()
    }

    fn lay_over(&self, next: &mut PlacementParams) -> Result<(), Error> {
        if let Some(slots) = &self.slots {
            next.slots = slots.whole()?;
        }
        if let Some(virtual_nodes) = &self.virtual_nodes {
            next.virtual_nodes = virtual_nodes.whole()?;
        }
        if let Some(load_margin) = &self.load_margin {
            next.load_margin = load_margin.margin()?;
        }
        Ok(())
    }

    /// Keeps account of what is in force though nobody wrote it here: whoever makes `next` the policy's own has to write the same.
    fn note_the_rest(&self, reader: &Reader, place: &SettingsTable, next: &PlacementParams, unnamed: &Origin) {
        let has_slots = next.kind.by_key().is_none();
        let rest: [(bool, &Option<ResolvedValue>, &SettingKey, &dyn Display); 4] = [
            (true, &self.placement, &keys::NEXT_PLACEMENT, &next.kind.as_str()),
            (has_slots, &self.slots, &keys::NEXT_SLOTS, &next.slots),
            (next.kind.uses_virtual_nodes(), &self.virtual_nodes, &keys::NEXT_VIRTUAL_NODES, &next.virtual_nodes),
            (has_slots, &self.load_margin, &keys::NEXT_LOAD_MARGIN, &next.load_margin),
        ];
        for (_, _, key, value) in rest.into_iter().filter(|(counts, written, ..)| *counts && written.is_none()) {
            reader.note_from(place, key, value, unnamed.clone());
        }
    }
}
