//! Claims and their stores as etcd's values, and back.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use serde_json::json;
use shardwise_core::{Claim, ClaimStore, Epoch, GroupName, Holder, Incarnation, InstanceId, SLOTS_MAX};
use shardwise_discovery::{ClaimTable, RECORD_SCHEMA, RecordId, decode_claim_store};

use crate::backend::EtcdInner;
use crate::client::KeyEntry;
use crate::error::Failure;
use crate::keys::Folder;
use crate::mirror::Mirror;

/// The value of a claim. Which epoch it is under follows from the floor and from the revision that made its key.
#[derive(Deserialize)]
struct ClaimRecord {
    instance_id: InstanceId,
    incarnation: Incarnation,
    floor: u64,
}

pub(crate) fn encode_claim(record_id: &RecordId, floor: u64) -> String {
    let RecordId { group: _, instance_id, incarnation } = record_id;
    json!({ "schema": RECORD_SCHEMA, "instance_id": instance_id.as_str(), "incarnation": incarnation.to_string(), "floor": floor })
        .to_string()
}

/// The claim that an entry is, or why it is none.
pub(crate) fn decode_claim(entry: &KeyEntry) -> Result<Claim, String> {
    let ClaimRecord { instance_id, incarnation, floor } = serde_json::from_slice(&entry.value).map_err(|error| error.to_string())?;
    let number = u64::try_from(entry.created).unwrap_or_default();
    let epoch = Epoch::new(floor.saturating_add(number)).map_err(|error| error.to_string())?;
    Ok(Claim { holder: Holder { instance_id, incarnation }, epoch })
}

pub(crate) fn encode_store(store: &ClaimStore) -> String {
    json!({ "schema": RECORD_SCHEMA, "id": store.id.to_string(), "floor": store.floor }).to_string()
}

pub(crate) fn decode_store(entry: &KeyEntry) -> Result<ClaimStore, Failure> {
    let damaged = |why| Failure::DamagedStore { key: named(&entry.key), why };
    decode_claim_store(&entry.value).map_err(damaged)
}

fn named(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

/// Twice what slots there can be, so that there is room for as many names.
const CLAIMS_MAX: usize = SLOTS_MAX as usize * 2;

/// The claims of one group. A key changed by hand does not affect the others: keys that are not claims are left out, and so are claims
/// that cannot be read. An unreadable claim has no holder and is granted to no member until its key is deleted.
#[derive(Debug, Default)]
pub(crate) struct ClaimMirror(Arc<ClaimTable>);

impl Mirror for ClaimMirror {
    type Topic = ClaimTable;
    const KEYS_MAX: usize = CLAIMS_MAX;

    fn folder(inner: &EtcdInner, group: &GroupName) -> Folder {
        inner.prefix.claims(group)
    }

    fn put(&mut self, folder: &Folder, entry: &KeyEntry) -> Result<(), Failure> {
        let key = named(&entry.key);
        let Some(resource) = folder.resource(&entry.key) else {
            tracing::warn!(key, "a key among the claims in etcd is not a claim; delete it");
            return Ok(());
        };
        let claims = &mut Arc::make_mut(&mut self.0).0;
        match decode_claim(entry) {
            Ok(claim) => {
                if entry.lease == 0 {
                    tracing::warn!(key, holder = %claim.holder.instance_id, "a claim in etcd has no lease, so it does not end with its holder; delete its key if the holder is gone");
                }
                claims.insert(resource, claim);
            }
            Err(why) => {
                tracing::error!(key, why, "a claim in etcd cannot be read, so no worker can hold {resource}; delete its key");
                claims.remove(&resource);
            }
        }
        let folder = || named(&folder.key());
        if claims.len() > CLAIMS_MAX { Err(Failure::TooManyClaims { folder: folder(), max: CLAIMS_MAX }) } else { Ok(()) }
    }

    fn delete(&mut self, folder: &Folder, key: &[u8]) {
        if let Some(resource) = folder.resource(key) {
            Arc::make_mut(&mut self.0).0.remove(&resource);
        }
    }

    fn shown(&self, _revision: u64) -> Arc<ClaimTable> {
        Arc::clone(&self.0)
    }
}

/// Of so many groups the stores are remembered that were used in one era.
const STORES_MAX: usize = 1_024;

/// The stores of claims as this process has used them, and in which era of etcd's revisions.
///
/// Data restored from a backup has the store that it had, but its revisions, and with them the epochs, would begin lower. Then only another
/// floor makes the store usable again.
#[derive(Debug, Default)]
pub(crate) struct Stores(Mutex<StoreUsage>);

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

impl Stores {
    /// Refuses a store whose epochs would repeat, or may for all that is known here.
    pub(crate) fn admit(&self, group: &GroupName, store: &ClaimStore, era: u64) -> Result<(), Failure> {
        // Nothing under this lock can panic halfway through a change.
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let repeats = match used.by_group.get(group) {
            Some((known, used)) if known == store && *used == era => return Ok(()),
            Some((known, _)) => known == store,
            None => used.may_be_forgotten(store, era),
        };
        if repeats {
            return Err(Failure::OtherStore(format!(
                "etcd's data was replaced by older data, so the store of claims {} would give epochs that were given before; \
                 set epoch_floor above the highest epoch used",
                store.id
            )));
        }
        used.make_room(era);
        used.by_group.insert(group.clone(), (*store, era));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use shardwise_core::StoreId;

    use super::*;

    fn entry(value: &str) -> KeyEntry {
        KeyEntry { key: b"/p/v1/claim-stores/g".to_vec(), value: value.as_bytes().to_vec(), created: 7, modified: 9, lease: 1 }
    }

    #[test]
    fn a_claim_is_read_as_it_was_written() {
        let instance_id = InstanceId::new("a \"quoted\" / name").unwrap();
        let record_id = RecordId { group: GroupName::new("g").unwrap(), instance_id, incarnation: Incarnation::new(255) };
        let claim = decode_claim(&entry(&encode_claim(&record_id, 1_000))).unwrap();
        assert_eq!((claim.holder.instance_id, claim.holder.incarnation), (record_id.instance_id, record_id.incarnation));
        assert_eq!(claim.epoch.get(), 1_007, "the floor and the revision that made it");
    }

    #[test]
    fn what_is_no_claim_is_refused() {
        let holder = r#""instance_id":"a","incarnation":"00000000000000ff""#;
        assert!(decode_claim(&entry(&format!(r#"{{{holder},"floor":0,"colour":"red"}}"#))).is_ok(), "unknown fields are ignored");
        for value in [
            "",
            "a",
            "{}",
            &format!("{{{holder}}}"),
            &format!(r#"{{{holder},"floor":9007199254740991}}"#),
            r#"{"instance_id":"","incarnation":"00000000000000ff","floor":0}"#,
        ] {
            assert!(decode_claim(&entry(value)).is_err(), "{value}");
        }
    }

    #[test]
    fn a_store_is_read_as_it_was_written_and_a_damaged_one_is_named() {
        let store = ClaimStore { id: StoreId::new(77), floor: ClaimStore::FLOOR_MAX };
        assert_eq!(decode_store(&entry(&encode_store(&store))).unwrap(), store);
        for value in ["x", r#"{"id":"1","floor":0}"#, r#"{"id":"000000000000004d","floor":4503599627370497}"#] {
            let said = decode_store(&entry(value)).unwrap_err().to_string();
            assert!(said.contains("\"/p/v1/claim-stores/g\"") && said.contains("delete that key"), "{said}");
        }
    }

    #[test]
    fn a_store_goes_on_in_a_new_era_only_with_another_floor_or_id() {
        let (stores, group) = (Stores::default(), GroupName::new("g").unwrap());
        let store = ClaimStore { id: StoreId::new(1), floor: 0 };
        let admitted = |store, era| stores.admit(&group, &store, era).is_ok();
        assert!(admitted(store, 0) && admitted(store, 0));
        assert!(!admitted(store, 1) && !admitted(store, 1), "its revisions have begun anew");
        assert!(admitted(ClaimStore { floor: 100, ..store }, 1));
        assert!(admitted(ClaimStore { id: StoreId::new(2), ..store }, 1), "a member that knew another one refuses it by itself");
    }

    /// There was no end to what is remembered.
    #[test]
    fn however_many_groups_there_are_few_are_remembered_and_none_repeats_its_epochs() {
        let stores = Stores::default();
        let group = |n: usize| GroupName::new(format!("g{n}")).unwrap();
        let store = |n: usize| ClaimStore { id: StoreId::new(n as u64), floor: 7 };
        let admitted = |n: usize, era| stores.admit(&group(n), &store(n), era).is_ok();
        for n in 0..STORES_MAX * 2 + 10 {
            assert!(admitted(0, 0) && admitted(n, 0), "one in use and ever new ones");
        }
        assert!(stores.0.lock().unwrap().by_group.len() <= STORES_MAX);
        let (forgotten, kept) = (1, STORES_MAX * 2 + 9);
        assert!(!admitted(forgotten, 1) && !admitted(kept, 1) && !admitted(0, 1), "the revisions have begun anew");
        let raised = |n| ClaimStore { floor: 8, ..store(n) };
        for n in [forgotten, kept, 0] {
            assert!(stores.admit(&group(n), &raised(n), 1).is_ok() && stores.admit(&group(n), &raised(n), 1).is_ok());
            assert!(stores.admit(&group(n), &raised(n), 2).is_err());
        }
    }
}
