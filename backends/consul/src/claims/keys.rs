//! Where claims stand in Consul and what is written there (`docs.md`). A wire format: every version of every worker must write alike. The
//! key of a claim that ends stays, so that its numbers go on rising.

use serde::Deserialize;
use serde_json::json;
use shardwise_core::{Claim, ClaimName, ClaimStore, Epoch, GroupName, Holder, Incarnation, InstanceId, Resource, SLOTS_MAX};
use shardwise_discovery::{RecordId, decode_claim_store, one_line};

use crate::error::{Failure, Result};
use crate::keys::{KvPair, encoded};
use crate::names::{key_part, key_text};

/// How all keys of the group's claims begin.
pub(crate) fn prefix(group: &GroupName) -> String {
    format!("shardwise/claims/{}/", key_part(group.as_str()))
}

pub(crate) fn store_key(group: &GroupName) -> String {
    format!("{}store", prefix(group))
}

pub(crate) fn claim_key(prefix: &str, resource: &Resource) -> String {
    match resource {
        Resource::Slot(slot) => format!("{prefix}slot/{slot}"),
        Resource::Name(name) => format!("{prefix}name/{}", key_part(name.as_str())),
    }
}

/// What a key under the prefix is the claim on.
pub(crate) fn resource(prefix: &str, key: &str) -> Option<Resource> {
    let resource = match key.strip_prefix(prefix)?.split_once('/')? {
        ("slot", slot) => Resource::Slot(slot.parse().ok().filter(|slot| *slot < SLOTS_MAX)?),
        ("name", name) => Resource::Name(ClaimName::new(key_text(name)?).ok()?),
        _ => return None,
    };
    // Another spelling of it would be a second key for one resource.
    (claim_key(prefix, &resource) == key).then_some(resource)
}

pub(crate) fn store_value(store: &ClaimStore) -> String {
    encoded(json!({ "id": store.id.to_string(), "floor": store.floor }).to_string().as_bytes())
}

pub(crate) fn store(stored: &KvPair) -> Result<ClaimStore> {
    let remedy = "put back what stood there, or delete it and set epoch_floor above the highest epoch used";
    let unreadable = |why: String| Failure::BadClaim { key: stored.key.clone(), why: one_line(&why), remedy };
    decode_claim_store(&stored.value()).map_err(unreadable)
}

/// The holder's data in a claim's key, in addition to the incarnation.
#[derive(Deserialize)]
struct HolderValue {
    id: InstanceId,
    floor: u64,
}

pub(crate) fn claim_value(record_id: &RecordId, store: &ClaimStore) -> String {
    encoded(json!({ "id": record_id.instance_id.as_str(), "floor": store.floor }).to_string().as_bytes())
}

/// The claim that a key shows; `None` if the key is free or is not ours.
pub(crate) fn claim(prefix: &str, stored: &KvPair) -> Result<Option<(Resource, Claim)>> {
    if stored.session.is_none() {
        return Ok(None);
    }
    let unreadable = |why: &str| Failure::BadClaim {
        key: stored.key.clone(),
        why: one_line(why),
        remedy: "another process has changed a locked key; its holder locks it again; if the holder no longer claims anything, delete the key",
    };
    let resource = resource(prefix, &stored.key).ok_or_else(|| unreadable("it is on no slot and no name"))?;
    let HolderValue { id, floor } = serde_json::from_slice(&stored.value()).map_err(|error| unreadable(&error.to_string()))?;
    let epoch = Epoch::new(floor.saturating_add(stored.modify_index)).map_err(|error| unreadable(&error.to_string()))?;
    let holder = Holder { instance_id: id, incarnation: Incarnation::new(stored.flags) };
    Ok(Some((resource, Claim { holder, epoch })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written_and_nothing_else_is() {
        let prefix = prefix(&GroupName::new(".").unwrap());
        assert_eq!(prefix, "shardwise/claims/%2E/", "Consul's paths know no dots");
        let name = |name: &str| Resource::Name(ClaimName::new(name).unwrap());
        for (on, key) in [
            (Resource::Slot(0), "slot/0"),
            (Resource::Slot(SLOTS_MAX - 1), "slot/65535"),
            (name("slot/7"), "name/slot%2F7"),
            (name("A b"), "name/A%20b"),
            (name("é%2F"), "name/%C3%A9%252F"),
        ] {
            let key = format!("{prefix}{key}");
            assert_eq!(claim_key(&prefix, &on), key);
            assert_eq!(resource(&prefix, &key), Some(on));
        }
        for wrong in ["store", "slot/007", "slot/65536", "slot/-1", "name/a/b", "name/%2f", "name/%", "name/%C3", "name/", "other/1"] {
            assert_eq!(resource(&prefix, &format!("{prefix}{wrong}")), None, "{wrong}");
        }
    }
}
