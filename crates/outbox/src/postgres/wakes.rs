//! Being told of commits: LISTEN on a connection of its own. What is missed costs no more than a poll.

use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt as _};
use sqlx::postgres::PgListener;

use super::PostgresStore;
use super::error::PgErrorContext;
use crate::Result;

/// Between two tries at a connection.
const AGAIN: Duration = Duration::from_secs(2);

/// Makes the trigger tell of each transaction, or not. Without a change nothing is written.
pub(super) const TELL: &str = "UPDATE outbox_meta SET notify = $1 WHERE notify <> $1";
/// As the trigger names it: several outboxes may be in one database.
const CHANNEL: &str = "SELECT 'shardwise_outbox_' || 'outbox_meta'::regclass::oid";

/// An item for each time that somebody has committed, or may have: several commits at once are one.
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
        // What was committed before is not told.
        return Ok(listener);
    };
    // `None` is a connection that was lost and is there again: something may have been missed.
    listener.try_recv().await?;
    while listener.next_buffered().is_some() {}
    Ok(listener)
}
