//! State that outlives its owner: a list of events, counted from 1, and the latest snapshot of the resulting state.
//!
//! `head` makes every decision and does not use the database; `tx` has the statements, the same for both databases; this file combines
//! them, one transaction per call.

mod head;
mod tx;

use shardwise_core::{ClaimName, Epoch, GroupName};

pub use head::{APPEND_BYTES_MAX, APPEND_EVENTS_MAX, EVENT_BYTES_MAX, STATE_BYTES_MAX, TAIL_BYTES_MAX, TAIL_EVENTS_MAX};

use crate::error::JournalError;
use head::{JournalHead, JournalKey};

/// The most events that one [`Journal::read`] returns.
pub const READ_EVENTS_MAX: u32 = 1_000;
/// The most bytes in the events of one [`Journal::read`]; a single event is returned whatever its size.
pub const READ_BYTES_MAX: u64 = 8 << 20;
const PRUNE_EVENTS: i64 = 1_000;

/// The journal of one name, such as a singleton's, in your own database. Cheap to clone.
///
/// One owner at a time appends, under the epoch of its claim; any process may read. Create the tables with
/// [`postgres::create_tables`](crate::postgres::create_tables) or [`sqlite::create_tables`](crate::sqlite::create_tables), or in your
/// migrations.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool, epoch: shardwise_fencing::Epoch) -> Result<(), Box<dyn std::error::Error>> {
/// use shardwise_fencing::{ClaimName, GroupName, Journal};
///
/// let journal = Journal::postgres(pool, GroupName::new("billing")?, ClaimName::new("counter")?);
/// let loaded = journal.take_over(epoch).await?;
/// let mut counter = loaded.events.len() as u64;
/// let version = journal.append(loaded.version, epoch, &[b"counted"]).await?;
/// counter += 1;
/// journal.snapshot(version, epoch, &counter.to_be_bytes()).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Journal {
    pool: DatabasePool,
    name: JournalKey,
}

#[derive(Debug, Clone)]
enum DatabasePool {
    #[cfg(feature = "postgres")]
    Postgres(sqlx::PgPool),
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::SqlitePool),
}

/// An event as it was appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalEvent {
    /// Its place in the journal, from 1.
    pub version: u64,
    /// The epoch under which it was appended.
    pub epoch: u64,
    /// The payload as passed to [`Journal::append`].
    pub payload: Vec<u8>,
}

/// The state that the events up to a version lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalSnapshot {
    /// The last event that it includes.
    pub version: u64,
    /// The state as passed to [`Journal::snapshot`].
    pub state: Vec<u8>,
}

/// A journal at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedJournal {
    /// The number of events ever appended: the `expected` of the next [`Journal::append`].
    pub version: u64,
    /// The latest snapshot, if one was ever taken.
    pub snapshot: Option<JournalSnapshot>,
    /// All events after the snapshot, at most [`TAIL_EVENTS_MAX`] with [`TAIL_BYTES_MAX`] bytes.
    pub events: Vec<JournalEvent>,
}

/// Calls one of the functions below with a transaction of the journal's database.
macro_rules! in_transaction {
    ($journal:expr, $kind:ident, $step:ident $(, $argument:expr)*) => {
        match &$journal.pool {
            #[cfg(feature = "postgres")]
            DatabasePool::Postgres(pool) => {
                let mut connection = pool.acquire().await?;
                $step(tx::PostgresTx::$kind(&mut connection).await?, &$journal.name $(, $argument)*).await
            }
            #[cfg(feature = "sqlite")]
            DatabasePool::Sqlite(pool) => {
                let mut connection = tx::connection(pool).await?;
                let answer = $step(tx::SqliteTx::$kind(&mut connection).await?, &$journal.name $(, $argument)*).await;
                if answer.is_err() {
                    tx::after_failure(connection).await;
                }
                answer
            }
        }
    };
}

impl Journal {
    /// The journal with this name of the group in PostgreSQL, 13 or newer.
    #[cfg(feature = "postgres")]
    pub fn postgres(pool: sqlx::PgPool, group: GroupName, name: ClaimName) -> Self {
        Self { pool: DatabasePool::Postgres(pool), name: JournalKey { group, name } }
    }

    /// The journal with this name of the group in SQLite, 3.25 or newer.
    #[cfg(feature = "sqlite")]
    pub fn sqlite(pool: sqlx::SqlitePool, group: GroupName, name: ClaimName) -> Self {
        Self { pool: DatabasePool::Sqlite(pool), name: JournalKey { group, name } }
    }

    /// The first call of a new owner: loads the journal and from then on refuses every lower epoch, so the result stays complete.
    ///
    /// # Errors
    ///
    /// [`JournalError::Fenced`] if a higher epoch was seen, and the database's errors.
    pub async fn take_over(&self, epoch: Epoch) -> Result<LoadedJournal, JournalError> {
        in_transaction!(self, writing, take_over, epoch)
    }

    /// Loads the journal for reading only: the owner may append at any moment.
    ///
    /// # Errors
    ///
    /// The database's errors.
    pub async fn load(&self) -> Result<LoadedJournal, JournalError> {
        in_transaction!(self, reading, load)
    }

    /// Appends all events or none, and returns the new version. `expected` is the version that the caller assumes, 0 for an empty journal.
    ///
    /// # Errors
    ///
    /// [`JournalError::Fenced`] if a higher epoch was seen, [`JournalError::Version`] if the journal has another version,
    /// [`JournalError::TooLarge`] above [`APPEND_EVENTS_MAX`], [`EVENT_BYTES_MAX`] or [`APPEND_BYTES_MAX`], [`JournalError::SnapshotDue`]
    /// above [`TAIL_EVENTS_MAX`] or [`TAIL_BYTES_MAX`], and the database's errors.
    pub async fn append<E: AsRef<[u8]>>(&self, expected: u64, epoch: Epoch, events: &[E]) -> Result<u64, JournalError> {
        let events: Vec<&[u8]> = events.iter().map(AsRef::as_ref).collect();
        head::check_append(&events)?;
        in_transaction!(self, writing, append, expected, epoch, &events)
    }

    /// The events from version `from` (at least 1) on, in order: at most `limit`, at most [`READ_EVENTS_MAX`], and at most
    /// [`READ_BYTES_MAX`] bytes. Empty at the end of the journal.
    ///
    /// # Errors
    ///
    /// [`JournalError::Pruned`] if the first of them was deleted, and the database's errors.
    pub async fn read(&self, from: u64, limit: u32) -> Result<Vec<JournalEvent>, JournalError> {
        in_transaction!(self, reading, read, from, limit)
    }

    /// Stores the state that the events up to `version` lead to. A snapshot older than the latest one changes nothing.
    ///
    /// # Errors
    ///
    /// [`JournalError::Fenced`] if a higher epoch was seen, [`JournalError::Version`] if the journal has not reached `version`,
    /// [`JournalError::TooLarge`] above [`STATE_BYTES_MAX`], and the database's errors.
    pub async fn snapshot(&self, version: u64, epoch: Epoch, state: &[u8]) -> Result<(), JournalError> {
        head::check_state(state)?;
        in_transaction!(self, writing, snapshot, version, epoch, state)
    }

    /// Deletes the events that the latest snapshot covers, a thousand per transaction, and returns how many. Any process may call it.
    ///
    /// # Errors
    ///
    /// The database's errors; events deleted before the error stay deleted.
    pub async fn prune(&self) -> Result<u64, JournalError> {
        let mut deleted = 0;
        // Events covered by a later snapshot are left to the next call, so this one ends.
        let covered = in_transaction!(self, reading, covered)?;
        loop {
            match in_transaction!(self, writing, prune, covered)? {
                0 => return Ok(deleted),
                more => deleted += more,
            }
        }
    }
}

async fn take_over(mut tx: impl tx::Transaction, name: &JournalKey, epoch: Epoch) -> Result<LoadedJournal, JournalError> {
    let mut head = tx.create(name, epoch).await?;
    head.admit(name, epoch)?;
    tx.put(&head).await?;
    let loaded = everything(&mut tx, Some(head)).await?;
    tx.commit().await?;
    Ok(loaded)
}

async fn load(mut tx: impl tx::Transaction, name: &JournalKey) -> Result<LoadedJournal, JournalError> {
    let head = tx.find(name).await?;
    let loaded = everything(&mut tx, head).await?;
    tx.commit().await?;
    Ok(loaded)
}

async fn everything(tx: &mut impl tx::Transaction, head: Option<JournalHead>) -> Result<LoadedJournal, sqlx::Error> {
    let Some(head) = head else { return Ok(LoadedJournal { version: 0, snapshot: None, events: Vec::new() }) };
    let snapshot = tx.snapshot(head.id).await?;
    // All of them: `append` limits their number and size.
    let events = tx.events(head.id, head.snapshot + 1, i64::MAX, i64::MAX).await?;
    Ok(LoadedJournal { version: head.version.cast_unsigned(), snapshot, events })
}

async fn append(
    mut tx: impl tx::Transaction,
    name: &JournalKey,
    expected: u64,
    epoch: Epoch,
    events: &[&[u8]],
) -> Result<u64, JournalError> {
    let mut head = tx.create(name, epoch).await?;
    head.admit(name, epoch)?;
    let first = head.version + 1;
    head.append(expected, events)?;
    tx.put_events(head.id, first, head.epoch, events).await?;
    tx.put(&head).await?;
    tx.commit().await?;
    Ok(head.version.cast_unsigned())
}

async fn read(mut tx: impl tx::Transaction, name: &JournalKey, from: u64, limit: u32) -> Result<Vec<JournalEvent>, JournalError> {
    let Some(head) = tx.find(name).await? else { return Ok(Vec::new()) };
    let from = head.readable_from(from)?;
    let limit = i64::from(limit.min(READ_EVENTS_MAX));
    let events = tx.events(head.id, from, limit, READ_BYTES_MAX.cast_signed()).await?;
    tx.commit().await?;
    Ok(events)
}

async fn snapshot(mut tx: impl tx::Transaction, name: &JournalKey, version: u64, epoch: Epoch, state: &[u8]) -> Result<(), JournalError> {
    let mut head = tx.create(name, epoch).await?;
    head.admit(name, epoch)?;
    if let Some(version) = head.covers(version)? {
        head.snapshot = version;
        head.tail_bytes = tx.bytes_after(head.id, version).await?;
        tx.put_snapshot(head.id, version, state).await?;
    }
    tx.put(&head).await?;
    tx.commit().await?;
    Ok(())
}

async fn covered(mut tx: impl tx::Transaction, name: &JournalKey) -> Result<i64, JournalError> {
    let head = tx.find(name).await?;
    tx.commit().await?;
    Ok(head.map_or(0, |head| head.snapshot))
}

/// Deletes the next events up to `covered` and returns how many; 0 if none are left.
async fn prune(mut tx: impl tx::Transaction, name: &JournalKey, covered: i64) -> Result<u64, JournalError> {
    let Some(mut head) = tx.find(name).await? else { return Ok(0) };
    let upto = covered.min(head.pruned + PRUNE_EVENTS);
    if upto <= head.pruned {
        return Ok(0);
    }
    head.pruned = upto;
    let deleted = tx.delete(head.id, upto).await?;
    tx.put(&head).await?;
    tx.commit().await?;
    Ok(deleted)
}
