//! What a caller knows of its group at one moment: the sets of all destinations, with what the core's table does not have.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use shardwise_core::routing::{MemberSet, NoRoute, RouteTable};
use shardwise_core::{Claim, ClaimName, Epoch, Holders, Resource, ShardKey, View, slot_of};

use crate::error::locked;

/// The most labels whose members are kept with one table.
const LABELS_MAX: usize = 16;

/// The sets of all destinations. Immutable but for the labels that were asked for; another one follows each change.
pub(super) struct RouteState {
    pub(super) table: RouteTable,
    /// Under exclusive ownership the epoch of each slot; 0 if it is free.
    epochs: Box<[u64]>,
    names: BTreeMap<ClaimName, Claim>,
    labels: Mutex<Vec<LabelledMembers>>,
}

/// The members with a label, as indices into the view of the table.
struct LabelledMembers {
    name: Box<str>,
    value: Box<str>,
    members: Arc<[u32]>,
}

/// The set of one destination. Copying one allocates nothing.
#[derive(Clone)]
pub(super) enum RouteSet {
    Few(MemberSet),
    Active,
    Labelled(Arc<[u32]>),
}

impl RouteSet {
    pub(super) fn as_slice<'a>(&'a self, table: &'a RouteTable) -> &'a [u32] {
        match self {
            Self::Few(set) => set.as_slice(),
            Self::Active => table.active().unwrap_or_default(),
            Self::Labelled(members) => members,
        }
    }
}

impl RouteState {
    pub(super) fn eventual(table: RouteTable) -> Self {
        Self { table, epochs: Box::default(), names: BTreeMap::new(), labels: Mutex::default() }
    }

    /// The table of a view under exclusive ownership; `before` is the one that this one replaces.
    pub(super) fn exclusive(view: Arc<View>, slots: u32, holders: &Holders, before: &RouteTable) -> Self {
        let table = RouteTable::exclusive(view, slots, holders, Some(before));
        let (mut epochs, mut names) = (vec![0; slots as usize], BTreeMap::new());
        for (resource, held) in holders.iter() {
            match resource {
                Resource::Slot(slot) => {
                    if let Some(epoch) = epochs.get_mut(*slot as usize) {
                        *epoch = held.claim.epoch.get();
                    }
                }
                Resource::Name(name) => drop(names.insert(name.clone(), held.claim.clone())),
            }
        }
        Self { table, epochs: epochs.into(), names, labels: Mutex::default() }
    }

    /// The epoch under which a key's slot is held.
    pub(super) fn epoch_of<K: ShardKey + ?Sized>(&self, key: &K) -> Option<Epoch> {
        let slots = u32::try_from(self.epochs.len()).ok().filter(|slots| *slots > 0)?;
        let epoch = self.epochs.get(slot_of(key.key_hash(), slots) as usize)?;
        Epoch::new(*epoch).ok()
    }

    /// The claim on a name.
    pub(super) fn claim_of(&self, name: &ClaimName) -> Option<&Claim> {
        self.names.get(name)
    }

    /// The active members with a label. Their records are read once for each label.
    pub(super) fn labelled(&self, name: &str, value: &str) -> Result<RouteSet, NoRoute> {
        let mut labels = locked(&self.labels);
        let known = labels.iter().find(|known| *known.name == *name && *known.value == *value).map(|known| Arc::clone(&known.members));
        let members = known.unwrap_or_else(|| {
            let members: Arc<[u32]> = self.table.labelled(name, value).into();
            if labels.len() >= LABELS_MAX {
                labels.remove(0);
            }
            labels.push(LabelledMembers { name: name.into(), value: value.into(), members: Arc::clone(&members) });
            members
        });
        drop(labels);
        if members.is_empty() { Err(NoRoute::NoMembers) } else { Ok(RouteSet::Labelled(members)) }
    }
}

#[cfg(test)]
mod tests {
    use shardwise_core::{Holder, Incarnation, InstanceId, Member, Moment};

    use super::*;

    fn view() -> Arc<View> {
        let member = |id: &str, zone: &str| Member {
            incarnation: Incarnation::new(u64::from(id.as_bytes()[0])),
            metadata: BTreeMap::from([("zone".to_owned(), zone.to_owned())]),
            ..Member::named(InstanceId::new(id).unwrap())
        };
        Arc::new(View::new(1, vec![member("a", "north"), member("b", "south"), member("c", "north")]))
    }

    #[test]
    fn claims_have_epochs() {
        let mut holders = Holders::default();
        let claim = |epoch| Claim {
            holder: Holder { instance_id: InstanceId::new("b").unwrap(), incarnation: Incarnation::new(98) },
            epoch: Epoch::new(epoch).unwrap(),
        };
        let name = ClaimName::new("singleton/x").unwrap();
        let slot = slot_of("key".key_hash(), 4);
        holders.on_all(Moment::ZERO, [(Resource::Slot(slot), claim(7)), (Resource::Name(name.clone()), claim(8))]);
        let before = RouteTable::eventual(Arc::default(), None, None, None);
        let state = RouteState::exclusive(view(), 4, &holders, &before);
        assert_eq!((state.epoch_of("key").map(Epoch::get), state.claim_of(&name).map(|claim| claim.epoch.get())), (Some(7), Some(8)));
        let free = (0..100_u32).find(|key| slot_of(key.key_hash(), 4) != slot).unwrap();
        assert_eq!(state.epoch_of(&free), None);
        assert_eq!(RouteState::eventual(before).epoch_of("key"), None);
    }

    #[test]
    fn members_with_a_label_are_found_once_for_each_table() {
        let state = RouteState::eventual(RouteTable::eventual(view(), None, None, None));
        let find = |value: &str| state.labelled("zone", value).map(|set| set.as_slice(&state.table).to_vec());
        assert_eq!((find("north"), find("south"), find("east")), (Ok(vec![0, 2]), Ok(vec![1]), Err(NoRoute::NoMembers)));
        for value in 0..100 {
            assert!(find(&value.to_string()).is_err());
        }
        assert_eq!((find("north"), locked(&state.labels).len()), (Ok(vec![0, 2]), LABELS_MAX));
    }
}
