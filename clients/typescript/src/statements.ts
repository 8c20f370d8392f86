/** The statements of fences and progress, word for word those of the crate `shardwise-fencing`; a test compares the two. */

/**
 * Those of one database. Parameters are numbered: `$1` in PostgreSQL, `?1` in SQLite. `found` answers one row: whether there is a transaction, and the
 * epoch and the number of the key, if there is a row for it.
 */
export interface Statements { check: string; resume: string; save: string; found: string }

export const POSTGRES: Statements = {
  check: `WITH held AS MATERIALIZED (
    SELECT epoch FROM shardwise_fence WHERE group_name = $1::text AND resource = $2::text AND epoch >= $3::bigint FOR SHARE
), raised AS (
    INSERT INTO shardwise_fence AS fence (group_name, resource, epoch)
    SELECT $1::text, $2::text, $3::bigint WHERE NOT EXISTS (SELECT 1 FROM held)
    ON CONFLICT (group_name, resource) DO UPDATE SET epoch = excluded.epoch WHERE fence.epoch <= excluded.epoch
    RETURNING epoch
)
SELECT (SELECT epoch FROM held) AS seen, EXISTS (SELECT 1 FROM raised) AS raised,
    current_setting('transaction_isolation') IN ('repeatable read', 'serializable') AS fixed`,
  resume: `INSERT INTO shardwise_progress AS progress (group_name, key, epoch, number)
SELECT $1::text, $2::text, $3::bigint, 0 WHERE pg_current_xact_id_if_assigned() IS NOT NULL
ON CONFLICT (group_name, key) DO UPDATE SET epoch = excluded.epoch WHERE progress.epoch <= excluded.epoch
RETURNING number, position, saved_by, saved_epoch`,
  save: `UPDATE shardwise_progress
SET number = number + 1, position = $6::text, epoch = $3::bigint, saved_by = $4::text, saved_epoch = $3::bigint
WHERE group_name = $1::text AND key = $2::text AND epoch <= $3::bigint AND number = $5::bigint
AND pg_current_xact_id_if_assigned() IS NOT NULL`,
  found: `SELECT pg_current_xact_id_if_assigned() IS NOT NULL AS inside, max(epoch) AS epoch, max(number) AS number
FROM shardwise_progress WHERE group_name = $1::text AND key = $2::text`,
};

export const SQLITE: Statements = {
  check: `INSERT INTO shardwise_fence (group_name, resource, epoch) VALUES (?1, ?2, ?3)
ON CONFLICT (group_name, resource) DO UPDATE SET epoch = excluded.epoch WHERE shardwise_fence.epoch <= excluded.epoch`,
  resume: `INSERT INTO shardwise_progress (group_name, key, epoch, number) VALUES (?1, ?2, ?3, 0)
ON CONFLICT (group_name, key) DO UPDATE SET epoch = excluded.epoch WHERE shardwise_progress.epoch <= excluded.epoch`,
  save: `UPDATE shardwise_progress
SET number = number + 1, position = ?6, epoch = ?3, saved_by = ?4, saved_epoch = ?3
WHERE group_name = ?1 AND key = ?2 AND epoch <= ?3 AND number = ?5`,
  found: `SELECT 1 AS inside, max(epoch) AS epoch, max(number) AS number FROM shardwise_progress WHERE group_name = ?1 AND key = ?2`,
};

/** After `resume`, which answers it in PostgreSQL. */
export const SQLITE_POSITION = `SELECT number, position, saved_by, saved_epoch FROM shardwise_progress WHERE group_name = ?1 AND key = ?2`;
