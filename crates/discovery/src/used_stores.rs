//! The stores of claims that a process has used, for backends whose store can be replaced by older data.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use shardwise_core::{ClaimStore, GroupName};

/// Of so many groups the stores are remembered that were used in one era.
const STORES_MAX: usize = 1_024;

/// The stores of claims as this process has used them, each with the era of the backend's data. The backend counts the eras: a new one
/// begins when the data was replaced by older data.
///
/// Older data has the store that it had, but its numbers, and with them the epochs, begin lower. Then only another floor makes the store
/// usable again.
#[derive(Debug, Default)]
pub struct UsedStores(Mutex<StoreUsage>);

#[derive(Debug, Default)]
struct StoreUsage {
    by_group: HashMap<GroupName, (ClaimStore, u64)>,
    /// By era, the highest floor of the stores that were used in it and are forgotten.
    forgotten: BTreeMap<u64, u64>,
}

impl StoreUsage {
    /// Makes room where there is none: forgets what was used in this era. What is still in use comes back with its next use, and what was
    /// used in an era before stays refused. There are as many eras as restores that this process has lived through.
    fn make_room(&mut self, era: u64) {
        let present = |(_, used): &&(ClaimStore, u64)| *used == era;
        let used = self.by_group.values().filter(present);
        if used.clone().count() < STORES_MAX {
            return;
        }
        if let Some(floor) = used.map(|(store, _)| store.floor).max() {
            let highest = self.forgotten.entry(era).or_default();
            *highest = floor.max(*highest);
        }
        self.by_group.retain(|_, (_, used)| *used != era);
    }

    /// Whether a store of which nothing is known may be one that was used in an era before.
    fn may_be_forgotten(&self, store: &ClaimStore, era: u64) -> bool {
        self.forgotten.range(..era).any(|(_, floor)| store.floor <= *floor)
    }
}

impl UsedStores {
    fn usage(&self) -> MutexGuard<'_, StoreUsage> {
        // Nothing under this lock can panic halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the store may be used in this era. If so it is remembered. If not, its epochs would repeat, or may for all that is known
    /// here.
    pub fn admit(&self, group: &GroupName, store: &ClaimStore, era: u64) -> bool {
        let mut used = self.usage();
        let repeats = match used.by_group.get(group) {
            Some((known, used)) if known == store && *used == era => return true,
            Some((known, _)) => known == store,
            None => used.may_be_forgotten(store, era),
        };
        if !repeats {
            used.make_room(era);
            used.by_group.insert(group.clone(), (*store, era));
        }
        !repeats
    }

    /// Whether this process is known to have used a store of the group.
    pub fn knows(&self, group: &GroupName) -> bool {
        self.usage().by_group.contains_key(group)
    }
}

#[cfg(test)]
mod tests {
    use shardwise_core::StoreId;

    use super::*;

    #[test]
    fn a_store_goes_on_in_a_new_era_only_with_another_floor_or_id() {
        let (stores, group) = (UsedStores::default(), GroupName::new("g").unwrap());
        let store = ClaimStore { id: StoreId::new(1), floor: 0 };
        let admitted = |store, era| stores.admit(&group, &store, era);
        assert!(!stores.knows(&group));
        assert!(admitted(store, 0) && admitted(store, 0));
        assert!(stores.knows(&group));
        assert!(!admitted(store, 1) && !admitted(store, 1), "its numbers have begun anew");
        assert!(admitted(ClaimStore { floor: 100, ..store }, 1));
        assert!(admitted(ClaimStore { id: StoreId::new(2), ..store }, 1), "a member that knew another one refuses it by itself");
    }

    /// There was no end to what is remembered.
    #[test]
    fn however_many_groups_there_are_few_are_remembered_and_none_repeats_its_epochs() {
        let stores = UsedStores::default();
        let group = |n: usize| GroupName::new(format!("g{n}")).unwrap();
        let store = |n: usize| ClaimStore { id: StoreId::new(n as u64), floor: 7 };
        let admitted = |n: usize, era| stores.admit(&group(n), &store(n), era);
        for n in 0..STORES_MAX * 2 + 10 {
            assert!(admitted(0, 0) && admitted(n, 0), "one in use and ever new ones");
        }
        assert!(stores.usage().by_group.len() <= STORES_MAX);
        let (forgotten, kept) = (1, STORES_MAX * 2 + 9);
        assert!(!admitted(forgotten, 1) && !admitted(kept, 1) && !admitted(0, 1), "the numbers have begun anew");
        let raised = |n| ClaimStore { floor: 8, ..store(n) };
        for n in [forgotten, kept, 0] {
            assert!(stores.admit(&group(n), &raised(n), 1) && stores.admit(&group(n), &raised(n), 1));
            assert!(!stores.admit(&group(n), &raised(n), 2));
        }
    }
}
