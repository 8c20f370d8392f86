//! What must hold for any claim and any store of claims that is read: see `crate::fuzzing`.

use serde_json::json;
use shardwise_core::{ClaimName, ClaimStore, GroupName, Holder, Resource, StoreId};
use shardwise_discovery::RecordId;

use super::keys;
use crate::keys::KvPair;

/// As the store answers it.
fn stored(key: &str, flags: u64, index: u64, value: &str) -> Option<KvPair> {
    serde_json::from_value(json!({"Key": key, "Flags": flags, "ModifyIndex": index, "Session": "s", "Value": value})).ok()
}

/// What a key is read as is written as the same key, and any name is read back from its key.
pub(crate) fn check_key(text: &str) {
    let Ok(group) = GroupName::new("a group/.") else { return };
    let prefix = keys::prefix(&group);
    let key = format!("{prefix}{text}");
    if let Some(resource) = keys::resource(&prefix, &key) {
        assert_eq!(keys::claim_key(&prefix, &resource), key);
    }
    if let Ok(name) = ClaimName::new(text) {
        let resource = Resource::Name(name);
        assert_eq!(keys::resource(&prefix, &keys::claim_key(&prefix, &resource)), Some(resource));
    }
}

/// What is read is written so that it is read again.
pub(crate) fn check_stored(given: &KvPair) {
    let Ok(group) = GroupName::new("g") else { return };
    if let Ok(store) = keys::store(given) {
        let again = stored("store", 0, 1, &keys::store_value(&store));
        assert_eq!(again.and_then(|again| keys::store(&again).ok()), Some(store));
    }
    // Keys of the samples are without their prefix.
    if let Ok(Some((resource, claim))) = keys::claim("", given) {
        assert_eq!(keys::claim_key("", &resource), given.key);
        let Holder { instance_id, incarnation } = claim.holder.clone();
        let record_id = RecordId { group, instance_id, incarnation };
        let floor = ClaimStore { id: StoreId::new(1), floor: claim.epoch.get() };
        let again = stored(&given.key, incarnation.get(), 0, &keys::claim_value(&record_id, &floor));
        assert_eq!(again.and_then(|again| keys::claim("", &again).ok()), Some(Some((resource, claim))));
    }
}
