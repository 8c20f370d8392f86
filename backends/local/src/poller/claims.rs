//! Following a group's claims: the table is kept in memory, and changes are read by number.
//!
//! A dead record's claims count as free only once the record is deleted, which every follower sees to: until then its member might
//! register again and keep them.

use std::sync::Arc;

use shardwise_core::{GroupName, Moment};
use shardwise_discovery::ClaimTable;
use sqlx::sqlite::SqliteConnection;
use tokio::time::timeout;

use super::{PolledGroup, PollerConnection};
use crate::backend::{REAP_AGAIN, REAP_PATIENCE};
use crate::claim_json::Changes;
use crate::claim_statements::ClaimsVersion;
use crate::client::{Client, OpenStore};
use crate::error::Failure;

/// The last known claims of a group.
#[derive(Default)]
pub(crate) struct PolledClaims {
    known: Option<LastClaimsPoll>,
}

struct LastClaimsPoll {
    /// In which file that is: its numbers mean nothing in another one.
    store: Arc<OpenStore>,
    mark: ClaimsVersion,
    table: Arc<ClaimTable>,
    /// The revision of the records for which `next_end` was read.
    revision: u64,
    next_end: Option<Moment>,
}

impl PolledGroup for PolledClaims {
    type Shown = ClaimTable;

    fn without_file(&mut self, _client: &Client, _group: &GroupName) -> Arc<ClaimTable> {
        Arc::default()
    }

    async fn read(
        &mut self,
        client: &Client,
        link: &mut PollerConnection,
        group: &GroupName,
        changed: bool,
        now: Moment,
    ) -> Result<Option<Arc<ClaimTable>>, Failure> {
        let known = self.known.as_ref().filter(|known| Arc::ptr_eq(&known.store, &link.store));
        if known.is_some_and(|known| !changed && known.next_end.is_none_or(|end| now < end)) {
            return Ok(None);
        }
        let answer = read(client, link, group, known, now).await;
        let read = client.settle(&link.store, answer)?;
        Ok(Some(Arc::clone(&self.known.insert(read).table)))
    }

    fn next_end(&self) -> Option<Moment> {
        self.known.as_ref()?.next_end
    }

    fn is_same(shown: &ClaimTable, read: &ClaimTable) -> bool {
        shown == read
    }
}

/// Reads the changes since the last known state.
async fn read(
    client: &Client,
    link: &mut PollerConnection,
    group: &GroupName,
    known: Option<&LastClaimsPoll>,
    now: Moment,
) -> Result<LastClaimsPoll, Failure> {
    let PollerConnection { store, connection, .. } = link;
    let highest = client.known();
    let (mut at, mut mark) = store.claims_mark(connection, group).await?;
    client.check(store, &at, highest)?;
    let same_records = known.filter(|known| known.revision == at.revision && known.next_end.is_none_or(|end| now < end));
    let next_end = if let Some(known) = same_records {
        known.next_end
    } else {
        let next_end = bury(store, connection, group, now).await?;
        (at, mark) = store.claims_mark(connection, group).await?;
        next_end
    };
    if let Some(known) = known.filter(|known| known.mark == mark) {
        let (store, table) = (Arc::clone(store), Arc::clone(&known.table));
        return Ok(LastClaimsPoll { store, mark, table, revision: at.revision, next_end });
    }
    let reading = store.read_claims(connection, group, known.map(|known| &known.mark)).await?;
    client.check(store, &reading.at, highest)?;
    let before = known.filter(|_| !reading.whole).map(|known| ClaimTable::clone(&known.table)).unwrap_or_default();
    let table = Arc::new(applied(before, reading.changes(store)?));
    Ok(LastClaimsPoll { store: Arc::clone(store), mark: reading.mark, table, revision: at.revision, next_end })
}

/// The changes, applied to the previous table.
fn applied(ClaimTable(mut table): ClaimTable, changes: Changes) -> ClaimTable {
    for resource in &changes.ended {
        table.remove(resource);
    }
    table.extend(changes.held);
    ClaimTable(table)
}

/// Deletes the group's dead records, and with them their claims. Answers when to look again.
async fn bury(store: &OpenStore, connection: &mut SqliteConnection, group: &GroupName, now: Moment) -> Result<Option<Moment>, Failure> {
    let mut ends = store.ends(connection, group, now).await?;
    if ends.dead {
        match timeout(REAP_PATIENCE, store.reap(group, now)).await {
            Ok(Ok(())) => ends = store.ends(connection, group, now).await?,
            Ok(Err(failure)) => tracing::debug!(%failure, "the claims of expired records stay for now"),
            Err(_) => tracing::debug!("the claims of expired records stay, deleting these has to wait"),
        }
    }
    let again = ends.dead.then(|| now.plus(REAP_AGAIN));
    Ok(ends.next.into_iter().chain(again).min())
}
