//! Who holds what: a key for each resource, locked by the holder's session. Why no two members overlap is in `docs.md`.

mod acquire;
pub(crate) mod keys;
mod session;

use shardwise_core::{ClaimStore, GroupName, StoreId};

pub(crate) use self::acquire::{AcquireCall, release, release_all};
pub(crate) use self::session::{LockSession, SHARE, check_ttl};
use crate::api::READ_KEYS;
use crate::client::Client;
use crate::error::{Failure, Result};

/// How often one tries when others change the store of claims at the same time.
const ATTEMPTS: usize = 8;

/// The group's store of claims as it is now, and the index of its key: one key, made once and never deleted.
async fn read_store(client: &Client, group: &GroupName) -> Result<Option<(ClaimStore, u64)>> {
    let stored = client.key("reading the store of claims", &keys::store_key(group), READ_KEYS).await?;
    stored.map(|stored| Ok((keys::store(&stored)?, stored.modify_index))).transpose()
}

/// The store as it is, made if there is none, and raised to a floor above its own.
pub(crate) async fn keep_store(client: &Client, group: &GroupName, floor: u64) -> Result<ClaimStore> {
    let floor = floor.min(ClaimStore::FLOOR_MAX);
    for _ in 0..ATTEMPTS {
        let (wanted, index) = match read_store(client, group).await? {
            Some((store, _)) if store.floor >= floor => return Ok(store),
            Some((store, index)) => (ClaimStore { floor, ..store }, index),
            None => (ClaimStore { id: StoreId::new(rand::random()), floor }, 0),
        };
        let (key, value) = (keys::store_key(group), keys::store_value(&wanted));
        if client.compare_and_set("writing the store of claims", &key, &value, 0, index).await?.is_some() {
            return Ok(wanted);
        }
    }
    Err(Failure::Overtaken)
}
