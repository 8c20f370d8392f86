//! The group's store of claims: one key, made once by compare-and-set and never deleted.

use serde_json::json;
use shardwise_core::{ClaimStore, GroupName, StoreId};

use super::keys;
use crate::api::AclPermission;
use crate::client::Client;
use crate::error::{Failure, Result};
use crate::keys::{Txn, operation};

/// How often one tries when others change the store at the same time.
const ATTEMPTS: usize = 8;

/// The store as it is now, and the index of its key.
pub(super) async fn read(client: &Client, group: &GroupName) -> Result<Option<(ClaimStore, u64)>> {
    let stored = client.key("reading the store of claims", &keys::store_key(group), &AclPermission::ReadKey).await?;
    stored.map(|stored| Ok((keys::store(&stored)?, stored.modify_index))).transpose()
}

/// The store as it is, made if there is none, and raised to a floor above its own.
pub(super) async fn keep(client: &Client, group: &GroupName, floor: u64) -> Result<ClaimStore> {
    let floor = floor.min(ClaimStore::FLOOR_MAX);
    for _ in 0..ATTEMPTS {
        let (wanted, index) = match read(client, group).await? {
            Some((store, _)) if store.floor >= floor => return Ok(store),
            Some((store, index)) => (ClaimStore { floor, ..store }, index),
            None => (ClaimStore { id: StoreId::new(rand::random()), floor }, 0),
        };
        let set = operation("cas", &keys::store_key(group), json!({ "Value": keys::store_value(&wanted), "Index": index }));
        if let Txn::Done(_) = client.txn("writing the store of claims", &[set], &AclPermission::Key).await? {
            return Ok(wanted);
        }
    }
    Err(Failure::Overtaken)
}
