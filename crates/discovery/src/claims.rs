//! The second, optional part of the contract: claims on slots and names, for exclusive ownership.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use serde::Deserialize;
use shardwise_core::{AcquireOutcome, Claim, ClaimStore, Epoch, GroupName, Moment, Resource, StoreId, side_by_side};

use crate::{Discovery, RecordId, Result};

/// A change to one claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimChange {
    /// The resource.
    pub resource: Resource,
    /// The present claim; `None` if the resource is free.
    pub claim: Option<Claim>,
}

/// Every claim of a group at one moment: resources that are missing here are free.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClaimTable(pub BTreeMap<Resource, Claim>);

impl ClaimTable {
    /// The changes from this table to a later one.
    pub fn changes_to(&self, later: &Self) -> Vec<ClaimChange> {
        let both = side_by_side(&self.0, &later.0, |(resource, _)| *resource);
        let changes = both.filter_map(|(before, now)| {
            let (resource, _) = now.or(before)?;
            let claim = now.map(|(_, claim)| claim);
            (before.map(|(_, claim)| claim) != claim).then(|| ClaimChange { resource: resource.clone(), claim: claim.cloned() })
        });
        changes.collect()
    }
}

/// A store of claims from the JSON that backends keep: `id` and `floor`.
///
/// # Errors
/// What is wrong with it.
pub fn decode_claim_store(json: &[u8]) -> std::result::Result<ClaimStore, String> {
    #[derive(Deserialize)]
    struct StoreRecord {
        id: String,
        floor: u64,
    }
    let StoreRecord { id, floor } = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let id = StoreId::from_hex(&id).ok_or("its id is not sixteen hexadecimal digits")?;
    if floor > ClaimStore::FLOOR_MAX {
        return Err(format!("its floor is {floor}, at most {} is allowed", ClaimStore::FLOOR_MAX));
    }
    Ok(ClaimStore { id, floor })
}

/// An event from [`Claims::watch_claims`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClaimsEvent {
    /// Every claim of the group, at the beginning and wherever changes may have been missed: resources that are not listed are free.
    All {
        /// The claims, each resource once.
        claims: Vec<(Resource, Claim)>,
        /// When the request that read them began.
        proven: Moment,
    },
    /// The changes since the last event.
    Changed {
        /// The changes; of several to one resource at least the last.
        changes: Vec<ClaimChange>,
        /// When the request that proved them began.
        proven: Moment,
    },
    /// Nothing has changed; the last state was still current at this moment.
    Proven(Moment),
}

/// Events of a group's claims. An error says that they could not be read just now; the
/// stream goes on by itself unless the error is permanent.
pub type ClaimsStream = BoxStream<'static, Result<ClaimsEvent>>;

/// Where members claim slots and names: at most one holds each, and an epoch orders its holders.
///
/// A member that claims registers with [`Registration::claims`](crate::Registration::claims), so that the backend binds its claims to its
/// record. A call may be dropped at any point and repeated without harm.
///
/// The clauses, each with cases in the `conformance` module:
///
/// 1. At most one record holds a resource. Of many that ask for it at once one is granted it; asking for what is held takes nothing away.
/// 2. A grant's epoch is above every epoch granted before in the group, on whatever resource; one call may grant several resources under
///    one epoch. It never falls or repeats for a resource, over releases, deaths, restarts of the backend and floors.
/// 3. Only a living record claims: [`ErrorKind::Lost`](crate::ErrorKind::Lost) for a member that is not registered, has expired, or is
///    another incarnation's. What the same member already holds is granted again, under the same epoch or a higher one that replaces it.
/// 4. Claims end with the record: when it expires, within TTL plus [`Capabilities::margin`](crate::Capabilities), and when it is
///    deregistered. Renewing the record is all that keeps them. A new life of the same member does not hold what the former one held.
/// 5. Only the holder releases, and only under the epoch it holds. Releasing what is gone, or what another member holds, changes nothing
///    and is no error. What was released can be acquired by any member at once.
/// 6. `watch_claims` begins with everything and loses no change; silence is proven at least every `prove_every`. For one resource it never
///    goes back to an older holder.
/// 7. A group's store of claims has a random id, made once. A grant under another store than the one in force, or under a floor that was
///    raised since, is refused with [`ErrorKind::OtherStore`](crate::ErrorKind::OtherStore) and grants nothing.
/// 8. Any number of resources up to [`SLOTS_MAX`](shardwise_core::SLOTS_MAX) can be asked for or released in one call; it is not atomic
///    over them. One that is held does not keep the others from being granted.
#[async_trait]
pub trait Claims: Discovery {
    /// The group's store of claims, made if there is none. A `floor` above the store's raises it; a lower one changes nothing.
    async fn claim_store(&self, group: &GroupName, floor: u64) -> Result<ClaimStore>;

    /// Asks for resources in the name of `record_id`, under the store that
    /// [`Claims::claim_store`] gave. The answer has each of `wanted` once, in any order.
    async fn acquire(&self, record_id: &RecordId, store: &ClaimStore, wanted: &[Resource]) -> Result<Vec<(Resource, AcquireOutcome)>>;

    /// Gives resources back, each with the epoch it is held under.
    async fn release(&self, record_id: &RecordId, held: &[(Resource, Epoch)]) -> Result<()>;

    /// Follows the group's claims. Dropping the stream ends it.
    fn watch_claims(&self, group: &GroupName, prove_every: Duration) -> ClaimsStream;
}
