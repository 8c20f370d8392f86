//! Fences in PostgreSQL, 13 and newer.
//!
//! The fence is a row with the highest epoch that was seen. Whoever writes under that epoch takes a *share* lock on it until his
//! transaction ends, so writers of one owner do not wait for each other. The first writer of a higher epoch changes the row, and for that
//! waits until everybody below has ended; from then on everybody below waits for him, and is refused when he has committed. So the order
//! of the commits is the order of the epochs, whoever was paused for how long and wherever.

/// Creates the table of fences; does nothing if it is there. For the user's own migrations.
pub const FENCE_UP: &str = include_str!("../../sql/postgres/fence.up.sql");
/// Removes the table of fences.
pub const FENCE_DOWN: &str = include_str!("../../sql/postgres/fence.down.sql");
/// Creates the tables of journals; does nothing if they are there. For the user's own migrations.
pub const JOURNAL_UP: &str = include_str!("../../sql/postgres/journal.up.sql");
/// Removes the tables of journals.
pub const JOURNAL_DOWN: &str = include_str!("../../sql/postgres/journal.down.sql");

/// The fence in one statement that every language can send: `$1` the group, `$2` the resource as text, `$3` the epoch. One row
/// changed: go on. None: roll back and give up. Writers of one resource wait for each other until commit.
pub const RAISE: &str = "INSERT INTO shardwise_fence (group_name, resource, epoch) VALUES ($1, $2, $3)
ON CONFLICT (group_name, resource) DO UPDATE SET epoch = excluded.epoch WHERE shardwise_fence.epoch <= excluded.epoch";

/// The same without that wait, as [`check`] sends it: parameters as in [`RAISE`]. One row with `seen`, `raised` and `fixed`.
/// `seen` is the epoch, or `raised` is true: go on. Else roll back and give up. But where `raised` and `fixed` are both true, the
/// transaction is above READ COMMITTED: commit, and begin the one with the writes after that.
pub const CHECK: &str = "WITH held AS MATERIALIZED (
    SELECT epoch FROM shardwise_fence WHERE group_name = $1::text AND resource = $2::text AND epoch >= $3::bigint FOR SHARE
), raised AS (
    INSERT INTO shardwise_fence AS fence (group_name, resource, epoch)
    SELECT $1::text, $2::text, $3::bigint WHERE NOT EXISTS (SELECT 1 FROM held)
    ON CONFLICT (group_name, resource) DO UPDATE SET epoch = excluded.epoch WHERE fence.epoch <= excluded.epoch
    RETURNING epoch
)
SELECT (SELECT epoch FROM held) AS seen, EXISTS (SELECT 1 FROM raised) AS raised,
    current_setting('transaction_isolation') IN ('repeatable read', 'serializable') AS fixed";

#[cfg(feature = "postgres")]
pub use with_sqlx::{check, create_tables, raise};

#[cfg(feature = "postgres")]
mod with_sqlx {
    use shardwise_core::{Epoch, GroupName, Resource};
    use sqlx::{Connection, PgConnection};

    use super::{CHECK, FENCE_UP, JOURNAL_UP, RAISE};
    use crate::error::FenceError;
    use crate::fence::{refused, to_sql};
    use crate::resource_text;

    const SEEN: &str = "SELECT epoch FROM shardwise_fence WHERE group_name = $1 AND resource = $2";
    /// Two processes that create one table at once disturb each other; this number is any number that nobody else locks.
    const ONE_AT_A_TIME: &str = "SELECT pg_advisory_xact_lock(7738157320411812467)";

    /// Lets this transaction write under the epoch, to its end; refuses an epoch below one that was seen. First in the transaction: what
    /// was read before may be older than the former owner's last write.
    ///
    /// Writers of one epoch do not wait for each other. A transaction over several resources checks them in sorted order, or it may meet a
    /// deadlock with another, which is retryable.
    ///
    /// ```no_run
    /// # async fn example(pool: sqlx::PgPool, group: shardwise_fencing::GroupName, fence: shardwise_fencing::Fence)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// use shardwise_fencing::{Resource, postgres};
    ///
    /// let mut tx = pool.begin().await?;
    /// postgres::check(&mut tx, &group, &Resource::Slot(fence.slot), fence.epoch).await?;
    /// sqlx::query("UPDATE account SET balance = balance - 10 WHERE id = 42").execute(&mut *tx).await?;
    /// tx.commit().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`FenceError::Refused`] for an old epoch; [`FenceError::RaiseApart`] for a new one above READ COMMITTED, see [`raise`]; without a
    /// transaction; and the database's own. After each of them the transaction is to be rolled back.
    pub async fn check(conn: &mut PgConnection, group: &GroupName, resource: &Resource, epoch: Epoch) -> Result<(), FenceError> {
        if !conn.is_in_transaction() {
            return Err(FenceError::NoTransaction);
        }
        let (mine, text) = (to_sql(epoch), resource_text(resource));
        let query = sqlx::query_as(CHECK).bind(group.as_str()).bind(&text).bind(mine);
        let (seen, raised, fixed): (Option<i64>, bool, bool) = query.fetch_one(&mut *conn).await?;
        match seen {
            Some(seen) if seen == mine => Ok(()),
            Some(higher) => Err(refused(group, resource, epoch, Some(higher)).into()),
            None if raised && fixed => Err(FenceError::RaiseApart { resource: resource.clone(), epoch }),
            None if raised => Ok(()),
            None => Err(refused(group, resource, epoch, seen_now(conn, group, &text).await?).into()),
        }
    }

    /// Makes the epoch the highest that was seen, and waits for whoever writes under a lower one; a transaction of its own. Once after each
    /// acquisition, and needed only if transactions above READ COMMITTED write under it.
    ///
    /// # Errors
    ///
    /// [`FenceError::Refused`]; inside of a transaction; and the database's own.
    pub async fn raise(conn: &mut PgConnection, group: &GroupName, resource: &Resource, epoch: Epoch) -> Result<(), FenceError> {
        if conn.is_in_transaction() {
            return Err(FenceError::InTransaction);
        }
        let text = resource_text(resource);
        let done = sqlx::query(RAISE).bind(group.as_str()).bind(&text).bind(to_sql(epoch)).execute(&mut *conn).await?;
        if done.rows_affected() == 1 {
            return Ok(());
        }
        Err(refused(group, resource, epoch, seen_now(conn, group, &text).await?).into())
    }

    /// For the text of a refusal.
    async fn seen_now(conn: &mut PgConnection, group: &GroupName, text: &str) -> Result<Option<i64>, sqlx::Error> {
        sqlx::query_scalar(SEEN).bind(group.as_str()).bind(text).fetch_optional(conn).await
    }

    /// Creates the tables of fences and journals where they are missing; several processes at once are fine. For programs without
    /// migrations of their own; others take [`FENCE_UP`] and [`JOURNAL_UP`] into theirs.
    ///
    /// # Errors
    ///
    /// The database's own, such as a role that may not create tables.
    pub async fn create_tables(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
        let mut tx = conn.begin().await?;
        for sql in [ONE_AT_A_TIME, FENCE_UP, JOURNAL_UP] {
            sqlx::raw_sql(sql).execute(&mut *tx).await?;
        }
        tx.commit().await
    }
}
