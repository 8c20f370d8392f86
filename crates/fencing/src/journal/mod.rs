//! State that outlives its owner: a list of events, counted from 1, and the latest snapshot of what they lead to.
//!
//! `head` makes every decision and touches no database; `tx` holds the statements, the same for both databases; this file puts them
//! together, one transaction a call.

mod head;
mod tx;

use shardwise_core::{ClaimName, Epoch, GroupName, Resource};

pub use head::{APPEND_BYTES_MAX, APPEND_EVENTS_MAX, EVENT_BYTES_MAX, STATE_BYTES_MAX, TAIL_BYTES_MAX, TAIL_EVENTS_MAX};

use crate::error::JournalError;
use head::{JournalHead, JournalKey};

/// The most events that one [`Journal::read`] gives back.
pub const READ_EVENTS_MAX: u32 = 1_000;
/// The most bytes in the events of one [`Journal::read`]; a single event is given back whatever its size.
pub const READ_BYTES_MAX: u64 = 8 << 20;
/// How many events one transaction deletes.
const PRUNE_EVENTS: i64 = 1_000;

/// The journal of one name, such as a singleton's, in the user's own database. Cheap to clone.
///
/// One owner at a time appends, under the epoch of its claim; everybody may read. The tables come from
/// [`postgres::create_tables`](crate::postgres::create_tables) or [`sqlite::create_tables`](crate::sqlite::create_tables), or from the user's migrations.
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
    /// What was given.
    pub payload: Vec<u8>,
}

/// What the events up to some version lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalSnapshot {
    /// The last event that is in it.
    pub version: u64,
    /// What was given.
    pub state: Vec<u8>,
}

/// A journal at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedJournal {
    /// How many events were ever appended: what the next [`Journal::append`] expects.
    pub version: u64,
    /// The latest snapshot, if one was ever taken.
    pub snapshot: Option<JournalSnapshot>,
    /// All events after it, at most [`TAIL_EVENTS_MAX`] with [`TAIL_BYTES_MAX`] bytes.
    pub events: Vec<JournalEvent>,
}

/// Calls one of the functions below with a transaction, of whichever database it is.
macro_rules! in_transaction {
    ($journal:expr, $kind:ident, $step:ident $(, $argument:expr)*) => {
        match &$journal.pool {
            #[cfg(feature = "postgres")]
            DatabasePool::Postgres(pool) => in_transaction!(postgres, pool, &$journal.name, $kind, $step $(, $argument)*),
            #[cfg(feature = "sqlite")]
            DatabasePool::Sqlite(pool) => in_transaction!(sqlite, pool, &$journal.name, $kind, $step $(, $argument)*),
        }
    };
    ($database:ident, $pool:expr, $name:expr, $kind:ident, $step:ident $(, $argument:expr)*) => {{
        let mut connection = tx::$database::connection($pool).await?;
        let answer = $step(tx::$database::$kind(&mut connection).await?, $name $(, $argument)*).await;
        if answer.is_err() {
            tx::$database::after_failure(connection).await;
        }
        answer
    }};
}

impl Journal {
    /// The journal of this name of the group in PostgreSQL, 13 or newer.
    #[cfg(feature = "postgres")]
    pub fn postgres(pool: sqlx::PgPool, group: GroupName, name: ClaimName) -> Self {
        Self { pool: DatabasePool::Postgres(pool), name: JournalKey { group, resource: Resource::Name(name.clone()), name } }
    }

    /// The journal of this name of the group in SQLite, 3.25 or newer.
    #[cfg(feature = "sqlite")]
    pub fn sqlite(pool: sqlx::SqlitePool, group: GroupName, name: ClaimName) -> Self {
        Self { pool: DatabasePool::Sqlite(pool), name: JournalKey { group, resource: Resource::Name(name.clone()), name } }
    }

    /// What a new owner calls first: everything there is, and from then on every lower epoch is refused, so that it stays all there is.
    ///
    /// # Errors
    ///
    /// [`JournalError::Refused`] if a higher epoch was seen, and the database's own.
    pub async fn take_over(&self, epoch: Epoch) -> Result<LoadedJournal, JournalError> {
        in_transaction!(self, writing, take_over, epoch)
    }

    /// Everything there is, for those who only look: the owner may append at any moment.
    ///
    /// # Errors
    ///
    /// The database's own.
    pub async fn load(&self) -> Result<LoadedJournal, JournalError> {
        in_transaction!(self, reading, load)
    }

    /// Appends events, all or none, and gives back the new version. `expected` is the version that the caller believes the journal to be
    /// at, 0 for an empty one.
    ///
    /// # Errors
    ///
    /// [`JournalError::Refused`] if a higher epoch was seen, [`JournalError::Version`] if the journal is elsewhere,
    /// [`JournalError::TooLarge`] above [`APPEND_EVENTS_MAX`], [`EVENT_BYTES_MAX`] or [`APPEND_BYTES_MAX`],
    /// [`JournalError::SnapshotDue`] above [`TAIL_EVENTS_MAX`] or [`TAIL_BYTES_MAX`], and the database's own.
    pub async fn append<E: AsRef<[u8]>>(&self, expected: u64, epoch: Epoch, events: &[E]) -> Result<u64, JournalError> {
        let events: Vec<&[u8]> = events.iter().map(AsRef::as_ref).collect();
        head::check_append(&events)?;
        in_transaction!(self, writing, append, expected, epoch, &events)
    }

    /// The events from `from` (at least 1) on, in order: at most `limit` of them, at most [`READ_EVENTS_MAX`], and no more than fit into
    /// [`READ_BYTES_MAX`]. None: there are no more.
    ///
    /// # Errors
    ///
    /// [`JournalError::Pruned`] if the first of them is deleted, and the database's own.
    pub async fn read(&self, from: u64, limit: u32) -> Result<Vec<JournalEvent>, JournalError> {
        in_transaction!(self, reading, read, from, limit)
    }

    /// Keeps what the events up to `version` lead to. One that is older than the latest changes nothing.
    ///
    /// # Errors
    ///
    /// [`JournalError::Refused`] if a higher epoch was seen, [`JournalError::Version`] if the journal has not come so far,
    /// [`JournalError::TooLarge`] above [`STATE_BYTES_MAX`], and the database's own.
    pub async fn snapshot(&self, version: u64, epoch: Epoch, state: &[u8]) -> Result<(), JournalError> {
        head::check_state(state)?;
        in_transaction!(self, writing, snapshot, version, epoch, state)
    }

    /// Deletes the events that the latest snapshot covers, a thousand in one transaction, and gives back how many. Anybody may call it.
    ///
    /// # Errors
    ///
    /// The database's own; what was deleted until then stays deleted.
    pub async fn prune(&self) -> Result<u64, JournalError> {
        let mut deleted = 0;
        // What a snapshot covers that is taken meanwhile is left to the next call, so this one ends.
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
    // All of them: `append` keeps their number and size within bounds.
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

/// Deletes the next events up to `covered`, and says how many; 0 if there are none left.
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
