//! Writing events from Rust, in the application's own transaction.

use sqlx::PgConnection;
use uuid::Uuid;

use super::error::classify;
use crate::{Error, ErrorKind, NewEvent, Payload, Result};

const INSERT: &str = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, payload_bytes, headers)
    VALUES ($1, $2, $3, $4, $5, $6, $7)";

/// Writes one event in the caller's transaction, and returns its id. Nothing is sent unless the transaction commits.
///
/// Writers of one aggregate wait for each other until commit. A transaction that writes to several aggregates must do so in the order of
/// their keys, or it may deadlock with another (kind `Unavailable`: repeat the transaction). Above READ COMMITTED, the later of two such
/// transactions is refused with a serialization failure, as for any row (also `Unavailable`).
///
/// An empty or too long name and text with a NUL are refused without asking the server (kind `Event`), and the transaction remains usable.
/// A refusal by the server, such as for an id that already exists, aborts the transaction unless there is a savepoint, as always in
/// PostgreSQL.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use shardwise_outbox::{NewEvent, postgres::enqueue};
///
/// let mut tx = pool.begin().await?;
/// sqlx::query("UPDATE orders SET state = 'placed' WHERE id = 42").execute(&mut *tx).await?;
/// enqueue(&mut tx, NewEvent::new("order", "42", "OrderPlaced", r#"{"total":12}"#)).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
pub async fn enqueue(conn: &mut PgConnection, event: NewEvent) -> Result<String> {
    event.validated()?;
    let (text, bytes) = match event.payload {
        Payload::None => (None, None),
        Payload::Text(text) if text.contains('\0') => {
            let what = "the payload contains a NUL character, which PostgreSQL's text cannot hold: remove it, or give the payload as bytes";
            return Err(Error::new(ErrorKind::Event, what));
        }
        Payload::Text(text) => (Some(text), None),
        Payload::Binary(bytes) => (None, Some(bytes)),
    };
    let id = event.id.unwrap_or_else(|| Uuid::now_v7().to_string());
    let headers = event.headers.map(|headers| serde_json::Value::Object(headers).to_string());
    let insert = sqlx::query(INSERT).bind(&id).bind(event.aggregate_type).bind(event.aggregate_id).bind(event.event_type);
    insert.bind(text).bind(bytes).bind(headers).execute(conn).await.map_err(|error| classify(&error))?;
    Ok(id)
}
