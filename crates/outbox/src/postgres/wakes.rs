//! Commit notifications: LISTEN on a separate connection. A missed notification costs at most one poll.

use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt as _};
use sqlx::postgres::PgListener;

use super::PostgresStore;
use crate::Result;
use crate::store::sql::ErrorContext;

/// The interval between connection attempts.
const AGAIN: Duration = Duration::from_secs(2);

/// Makes the trigger notify of each transaction, or stop. Writes nothing if nothing changes.
pub(super) const SET_NOTIFY: &str = "UPDATE outbox_meta SET notify = $1 WHERE notify <> $1";
/// The channel's name, as in the trigger: several outboxes may share a database.
const CHANNEL: &str = "SELECT 'shardwise_outbox_' || 'outbox_meta'::regclass::oid";

/// Yields an item after each commit, and whenever there may have been one; several commits can yield one item.
pub(super) fn wakes(store: PostgresStore) -> BoxStream<'static, Result<()>> {
    stream::unfold((store, None), |(store, listener)| async {
        match next(&store, listener).await {
            Ok(listener) => Some((Ok(()), (store, Some(listener)))),
            Err(error) => {
                tokio::time::sleep(AGAIN).await;
                Some((Err(error).at(&store), (store, None)))
            }
        }
    })
    .boxed()
}

async fn next(store: &PostgresStore, listener: Option<PgListener>) -> Result<PgListener, sqlx::Error> {
    let Some(mut listener) = listener else {
        let mut listener = PgListener::connect_with(&store.pool).await?;
        let channel: String = sqlx::query_scalar(CHANNEL).fetch_one(&store.pool).await?;
        listener.listen(&channel).await?;
        // Commits before LISTEN produced no notification.
        return Ok(listener);
    };
    // `None`: the connection was lost and is back, so a notification may have been missed.
    listener.try_recv().await?;
    while listener.next_buffered().is_some() {}
    Ok(listener)
}
