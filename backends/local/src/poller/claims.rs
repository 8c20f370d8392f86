//! Following a group's claims: the table is kept, and what has changed is read by number.
//!
//! A dead record's claims are told as free once the record is deleted, which everybody who follows sees to: until then its member might
//! yet register again and have kept them.

use std::sync::Arc;

use shardwise_core::{GroupName, Moment};
use shardwise_discovery::ClaimTable;
use shardwise_discovery::feeds::Feed;
use sqlx::sqlite::SqliteConnection;
use tokio::time::timeout;

use super::{PollerConnection, REPAIR_PAUSE, confirm};
use crate::backend::{REAP_AGAIN, REAP_PATIENCE};
use crate::claim_json::Changes;
use crate::claim_statements::ClaimsVersion;
use crate::client::{Client, OpenStore};
use crate::error::Failure;

/// A group whose claims are watched, and what is known of it.
pub(super) struct WatchedClaims {
    pub(super) feed: Feed<ClaimTable>,
    known: Option<LastClaimsPoll>,
    /// After a failure of this group alone: when to look again.
    failing_until: Option<Moment>,
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

impl WatchedClaims {
    pub(super) const fn new(feed: Feed<ClaimTable>) -> Self {
        Self { feed, known: None, failing_until: None }
    }

    /// When the next record of the group expires, unless it is renewed.
    pub(super) fn next_end(&self) -> Option<Moment> {
        self.known.as_ref()?.next_end
    }

    /// Looks at the group if that is due: the file has `changed`, or a record may have expired by `now`.
    pub(super) async fn look(&mut self, client: &Client, link: &mut PollerConnection, changed: bool, now: Moment) -> Result<(), Failure> {
        if self.failing_until.is_some_and(|until| now < until) {
            return Ok(());
        }
        let known = self.known.take().filter(|known| Arc::ptr_eq(&known.store, &link.store));
        let quiet = known.as_ref().is_some_and(|known| !changed && known.next_end.is_none_or(|end| now < end));
        if quiet {
            self.known = known;
            confirm(&self.feed, now);
            return Ok(());
        }
        let answer = self.read(client, link, known, now).await;
        match client.settle(&link.store, answer) {
            Ok(known) => {
                self.publish(&known.table, now);
                (self.known, self.failing_until) = (Some(known), None);
            }
            Err(failure @ Failure::BadClaim { .. }) => {
                self.failing_until = Some(now.plus(REPAIR_PAUSE));
                self.feed.fail(failure.during("watch_claims"));
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// The file does not exist yet: nothing is claimed.
    pub(super) fn show_nothing(&self, now: Moment) {
        self.publish(&Arc::default(), now);
    }

    fn publish(&self, table: &Arc<ClaimTable>, now: Moment) {
        if self.feed.latest().is_none_or(|shown| *shown != **table) {
            self.feed.show(Arc::clone(table), Some(now));
        } else {
            confirm(&self.feed, now);
        }
    }

    async fn read(
        &self,
        client: &Client,
        link: &mut PollerConnection,
        known: Option<LastClaimsPoll>,
        now: Moment,
    ) -> Result<LastClaimsPoll, Failure> {
        let PollerConnection { store, connection, .. } = link;
        let group = self.feed.group();
        let highest = client.known();
        let (mut at, mut mark) = store.claims_mark(connection, group).await?;
        client.check(store, &at, highest)?;
        let same_records = known.as_ref().filter(|known| known.revision == at.revision && known.next_end.is_none_or(|end| now < end));
        let next_end = if let Some(known) = same_records {
            known.next_end
        } else {
            let next_end = bury(store, connection, group, now).await?;
            (at, mark) = store.claims_mark(connection, group).await?;
            next_end
        };
        if let Some(known) = known.as_ref().filter(|known| known.mark == mark) {
            let (store, table) = (Arc::clone(store), Arc::clone(&known.table));
            return Ok(LastClaimsPoll { store, mark, table, revision: at.revision, next_end });
        }
        let reading = store.read_claims(connection, group, known.as_ref().map(|known| &known.mark)).await?;
        client.check(store, &reading.at, highest)?;
        let before = known.filter(|_| !reading.whole).map(|known| ClaimTable::clone(&known.table)).unwrap_or_default();
        let table = Arc::new(applied(before, reading.changes(store)?));
        Ok(LastClaimsPoll { store: Arc::clone(store), mark: reading.mark, table, revision: at.revision, next_end })
    }
}

/// What has changed, put into the table as it was.
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
