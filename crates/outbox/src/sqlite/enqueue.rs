//! Writing events from Rust, in the application's own transaction.

use shardwise::ShardKey;
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::error::classify;
use crate::store::sql::to_ordered;
use crate::{Error, ErrorKind, NewEvent, Payload, Result};

/// Does the work of the trigger for a new aggregate, including the hash, which the trigger cannot compute.
const PLACE: &str = "INSERT INTO outbox_aggregate (key, hash) VALUES (?1, ?2)
    ON CONFLICT (key) DO UPDATE SET hash = excluded.hash WHERE hash IS NULL";

const INSERT: &str = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, headers) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

/// Writes one event in the caller's transaction, and returns its id. Nothing is sent unless the transaction commits.
///
/// Writers of one aggregate wait for each other until commit; a transaction that writes to several aggregates should do so in the order of
/// their keys. A refused event (kind `Event`) leaves the transaction usable; after any other failure drop it and begin another one.
///
/// If a full disk or an I/O error ends a transaction, SQLite rolls back by itself while the driver still counts it as open: every later
/// `begin_with` on that connection fails. [`SqliteStore::begin`](super::SqliteStore::begin) and all of this crate close such a connection;
/// a pool of the application can do so as follows:
///
/// ```
/// use sqlx::Connection;
///
/// let pool = sqlx::sqlite::SqlitePoolOptions::new().after_release(|connection, _| Box::pin(async move {
///     connection.ping().await?; // runs the rollback of a transaction that was dropped
///     Ok(!connection.is_in_transaction())
/// }));
/// ```
pub async fn enqueue(conn: &mut SqliteConnection, event: NewEvent) -> Result<String> {
    event.validated()?;
    refuse_too_large(conn, &event).await?;
    let key = event.key();
    let hash = to_ordered(key.key_hash());
    sqlx::query(PLACE).bind(key).bind(hash).execute(&mut *conn).await.map_err(|e| classify(&e))?;
    let id = event.id.unwrap_or_else(|| Uuid::now_v7().to_string());
    let insert = sqlx::query(INSERT).bind(&id).bind(event.aggregate_type).bind(event.aggregate_id).bind(event.event_type);
    let insert = match event.payload {
        Payload::None => insert.bind(None::<String>),
        Payload::Text(text) => insert.bind(text),
        Payload::Binary(bytes) => insert.bind(bytes),
    };
    let headers = event.headers.map(|headers| serde_json::Value::Object(headers).to_string());
    insert.bind(headers).execute(conn).await.map_err(|e| classify(&e))?;
    Ok(id)
}

/// Refuses a payload that is too large. The trigger would refuse it too, but this error contains the numbers.
async fn refuse_too_large(conn: &mut SqliteConnection, event: &NewEvent) -> Result<()> {
    let limit: i64 = sqlx::query_scalar("SELECT payload_bytes_max FROM outbox_meta").fetch_one(conn).await.map_err(|e| classify(&e))?;
    let bytes = event.payload.len();
    if usize::try_from(limit).is_ok_and(|limit| bytes > limit) {
        let text = format!(
            "the payload of {} has {bytes} bytes; at most {limit} are allowed: store it elsewhere and send a reference, or raise \
             payload_bytes_max in outbox_meta",
            event.key()
        );
        return Err(Error::new(ErrorKind::Event, text));
    }
    Ok(())
}
