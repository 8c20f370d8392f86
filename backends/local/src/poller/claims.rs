//! Following a group's claims: the table is kept in memory, and changes are read by number.
//!
//! A dead record's claims count as free only once the record is deleted, which every follower sees to: until then its member might
//! register again and keep them.

use std::sync::Arc;

use shardwise_core::{GroupName, Moment};
use shardwise_discovery::ClaimTable;
use sqlx::sqlite::SqliteConnection;

use super::{PolledGroup, PolledState, PollerConnection};
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
    /// The revision of the records for which the next end was read.
    revision: u64,
}

impl PolledGroup for PolledClaims {
    type Shown = ClaimTable;

    /// Reads the changes since the last known state.
    async fn read(
        &mut self,
        client: &Client,
        link: &mut PollerConnection,
        group: &GroupName,
        mut next_end: Option<Moment>,
        now: Moment,
    ) -> Result<Option<PolledState<ClaimTable>>, Failure> {
        let PollerConnection { store, connection, .. } = link;
        let known = self.known.as_ref().filter(|known| Arc::ptr_eq(&known.store, store));
        let highest = client.known();
        let (mut at, mut mark) = store.claims_mark(connection, group).await?;
        client.check(store, &at, highest)?;
        let same_records = known.is_some_and(|known| known.revision == at.revision) && next_end.is_none_or(|end| now < end);
        if !same_records {
            next_end = bury(store, connection, group, now).await?;
            (at, mark) = store.claims_mark(connection, group).await?;
        }
        let table = if let Some(known) = known.filter(|known| known.mark == mark) {
            Arc::clone(&known.table)
        } else {
            let reading = store.read_claims(connection, group, known.map(|known| &known.mark)).await?;
            client.check(store, &reading.at, highest)?;
            mark = reading.mark;
            let before = known.filter(|_| !reading.whole).map(|known| ClaimTable::clone(&known.table)).unwrap_or_default();
            Arc::new(applied(before, reading.changes))
        };
        self.known = Some(LastClaimsPoll { store: Arc::clone(store), mark, table: Arc::clone(&table), revision: at.revision });
        Ok(Some((table, next_end)))
    }
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
async fn bury(store: &OpenStore, connection: &mut SqliteConnection, group: &GroupName, now: Moment) -> sqlx::Result<Option<Moment>> {
    let mut ends = store.ends(connection, group, now).await?;
    if ends.dead && store.reap(group, now).await {
        ends = store.ends(connection, group, now).await?;
    }
    Ok(ends.next)
}
