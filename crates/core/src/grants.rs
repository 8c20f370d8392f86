//! The claims of a member as its snapshot carries them: the epoch of each slot and each name.

use std::collections::BTreeMap;

use crate::{ClaimName, Epoch, Resource, SlotSet};

/// What a member holds under exclusive ownership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grants {
    /// By slot; 0 means none.
    epochs: Box<[u64]>,
    names: BTreeMap<ClaimName, Epoch>,
}

impl Grants {
    /// The held slots of a ring of `slots`, and all epochs. Slots beyond the ring are ignored.
    pub(crate) fn of<'a>(slots: u32, held: impl Iterator<Item = (&'a Resource, Epoch)>) -> (SlotSet, Self) {
        let mut set = SlotSet::empty(slots);
        let mut grants = Self { epochs: vec![0; slots as usize].into(), names: BTreeMap::new() };
        for (resource, epoch) in held {
            match resource {
                Resource::Slot(slot) => {
                    if let Some(known) = grants.epochs.get_mut(*slot as usize) {
                        *known = epoch.get();
                        set.insert(*slot);
                    }
                }
                Resource::Name(name) => {
                    grants.names.insert(name.clone(), epoch);
                }
            }
        }
        (set, grants)
    }

    #[inline]
    pub(crate) fn of_slot(&self, slot: u32) -> Option<Epoch> {
        self.epochs.get(slot as usize).and_then(|number| Epoch::new(*number).ok())
    }

    pub(crate) fn names(&self) -> &BTreeMap<ClaimName, Epoch> {
        &self.names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_its_epoch_and_others_have_none() {
        let epoch = |number| Epoch::new(number).unwrap();
        let name = ClaimName::new("singleton/a").unwrap();
        let held = [(Resource::Slot(3), epoch(7)), (Resource::Slot(9), epoch(8)), (Resource::Name(name.clone()), epoch(2))];
        let (slots, grants) = Grants::of(8, held.iter().map(|(resource, epoch)| (resource, *epoch)));
        assert_eq!(slots, SlotSet::from_slots(8, [3]));
        assert_eq!((grants.of_slot(3), grants.of_slot(2), grants.of_slot(9)), (Some(epoch(7)), None, None));
        assert_eq!(grants.names().get(&name), Some(&epoch(2)));
    }
}
