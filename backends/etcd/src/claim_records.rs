//! Claims and their stores as etcd's values, and back.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
use shardwise_core::{Claim, ClaimStore, Epoch, GroupName, Holder, Incarnation, InstanceId, SLOTS_MAX};
use shardwise_discovery::{ClaimTable, RECORD_SCHEMA, RecordId, decode_claim_store};

use crate::client::KeyEntry;
use crate::error::Failure;
use crate::inner::EtcdInner;
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
    type Shown = ClaimTable;
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
}
