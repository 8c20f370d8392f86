//! Commit notifications: LISTEN on a separate connection, and the announcements of publishers that sleep. A missed notification costs at
//! most one poll.
//!
//! `outbox_asleep` is the number of the last announcement, `outbox_woken` that of the last one that a notification has answered. Both are
//! sequence objects, because every transaction must see them at once, whatever its snapshot. A writer notifies if the first is above the
//! second. It reads them while it holds the lock of its aggregate, and so after its transaction has got its number.

use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt as _};
use sqlx::PgConnection;
use sqlx::postgres::{PgListener, PgNotification};

use super::PostgresStore;
use super::error::denied_sequence;
use crate::Result;
use crate::store::SleepTicket;
use crate::store::sql::{ErrorContext, StatementError, unsigned};

/// The interval between connection attempts.
const AGAIN: Duration = Duration::from_secs(2);

/// Makes writers notify publishers that sleep, or stop. Writes nothing if nothing changes.
pub(super) const SET_NOTIFY: &str = "UPDATE outbox_meta SET notify = $1 WHERE notify <> $1";
/// The channel's name, as in the trigger: several outboxes may share a database.
const CHANNEL: &str = "SELECT 'shardwise_outbox_' || 'outbox_meta'::regclass::oid";

/// Draws a number, but not without the right to answer it later: writers would notify in vain. Returns what was last answered, too.
const ANNOUNCE: &str = "SELECT CASE WHEN has_sequence_privilege('outbox_woken', 'UPDATE') THEN nextval('outbox_asleep') END, w.last_value
    FROM outbox_woken AS w";
/// The highest number answered is not below the announced one: after a restored dump, whose sequence objects are not of one moment. Set
/// back too far, it costs writers needless notifications until the next one is answered.
const SET_BACK: &str = "SELECT setval('outbox_woken', $1::bigint - 1) FROM outbox_woken WHERE last_value >= $1";
/// A transaction's own number, above those of all transactions that may have read the sequence objects before. The upper end of a snapshot
/// would not do: it is only above the last transaction that has ended.
const OWN_NUMBER: &str = "SELECT pg_current_xact_id()::text::bigint";
const ALL_ENDED: &str = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint >= $1";
/// Everyone who announced a number up to this one has received the same notification. A race may set it back, which costs needless
/// notifications. Numbers that were not announced are no business of a writer's: anyone can send a notification.
const ANSWERED: &str = "SELECT setval('outbox_woken', $1) FROM outbox_woken AS w, outbox_asleep AS a
    WHERE w.last_value < $1 AND $1 <= a.last_value";
/// Wakes the others, whose announcements count as answered when a later one does.
const WAKE_OTHERS: &str = "SELECT pg_notify('shardwise_outbox_' || 'outbox_meta'::regclass::oid, ($1::bigint)::text)
    FROM outbox_woken WHERE last_value < $1";

pub(super) async fn fall_asleep(conn: &mut PgConnection) -> Result<SleepTicket, StatementError> {
    let (drawn, answered): (Option<i64>, i64) = sqlx::query_as(ANNOUNCE).fetch_one(&mut *conn).await?;
    let number = drawn.ok_or_else(|| denied_sequence("outbox_woken"))?;
    if answered >= number {
        sqlx::query(SET_BACK).bind(number).execute(&mut *conn).await?;
    }
    // In a later statement, and so in a later transaction: one that took both could get its number before it drew the other.
    let own: i64 = sqlx::query_scalar(OWN_NUMBER).fetch_one(conn).await?;
    Ok(SleepTicket { number: unsigned(number), unseen_below: unsigned(own) })
}

pub(super) async fn all_ended(conn: &mut PgConnection, ticket: SleepTicket) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(ALL_ENDED).bind(ticket.unseen_below.cast_signed()).fetch_one(conn).await
}

pub(super) async fn withdraw(conn: &mut PgConnection, ticket: SleepTicket) -> Result<(), sqlx::Error> {
    let number = ticket.number.cast_signed();
    sqlx::query(WAKE_OTHERS).bind(number).execute(&mut *conn).await?;
    // Only after the notification is committed: if this is never executed, writers notify once in vain.
    sqlx::query(ANSWERED).bind(number).execute(conn).await.map(drop)
}

/// What the stream of notifications does next.
enum WakeStream {
    Connect,
    /// After a failure.
    Wait,
    /// `heard`: the number that the last notification carried, which is not answered yet.
    Listen {
        listener: PgListener,
        heard: Option<i64>,
    },
}

/// Yields an item after each notification, and whenever there may have been one; several commits can yield one item.
pub(super) fn wakes(store: PostgresStore) -> BoxStream<'static, Result<()>> {
    stream::unfold((store, WakeStream::Connect), |(store, state)| async {
        match next(&store, state).await {
            Ok((listener, heard)) => Some((Ok(()), (store, WakeStream::Listen { listener, heard }))),
            Err(error) => Some((Err(error).at(&store), (store, WakeStream::Wait))),
        }
    })
    .boxed()
}

async fn next(store: &PostgresStore, state: WakeStream) -> Result<(PgListener, Option<i64>), sqlx::Error> {
    let (mut listener, heard) = match state {
        WakeStream::Listen { listener, heard } => (listener, heard),
        WakeStream::Connect => return connect(store).await,
        WakeStream::Wait => {
            tokio::time::sleep(AGAIN).await;
            return connect(store).await;
        }
    };
    // The publisher has been woken already and reads meanwhile.
    if let Some(number) = heard {
        sqlx::query(ANSWERED).bind(number).execute(&mut listener).await?;
    }
    // `None`: the connection was lost and is back, so a notification may have been missed.
    let mut heard = listener.try_recv().await?.as_ref().and_then(number);
    while let Some(another) = listener.next_buffered() {
        heard = heard.max(number(&another));
    }
    Ok((listener, heard))
}

async fn connect(store: &PostgresStore) -> Result<(PgListener, Option<i64>), sqlx::Error> {
    let mut listener = PgListener::connect_with(&store.pool).await?;
    let channel: String = sqlx::query_scalar(CHANNEL).fetch_one(&store.pool).await?;
    listener.listen(&channel).await?;
    // Commits before LISTEN produced no notification.
    Ok((listener, None))
}

/// The number of the announcement that the writer saw. Triggers of earlier schemas send none.
fn number(notification: &PgNotification) -> Option<i64> {
    notification.payload().parse().ok()
}
