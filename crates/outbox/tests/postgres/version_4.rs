//! A publisher of schema 4: the statements of that version, word for word, and as much of the program as delivers with them.

use std::ops::Range;

use shardwise::ShardKey as _;
use shardwise_outbox::postgres;
use sqlx::{Connection as _, PgConnection, Row as _};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::common::Outbox;
use crate::shared::SLOTS;
use crate::upgrade::{Arrival, Log};

const ANNOUNCE: &str = "INSERT INTO outbox_publisher (incarnation, publisher, seen_at, ttl)
    VALUES ($1, $2, outbox_now(), $3::bigint * interval '1 microsecond')
    ON CONFLICT (incarnation) DO UPDATE SET seen_at = excluded.seen_at, ttl = excluded.ttl
    RETURNING (extract(epoch FROM seen_at) * 1000000)::bigint";
const TOUCH: &str = "UPDATE outbox_publisher SET seen_at = outbox_now()
    WHERE incarnation = $1 AND (SELECT slots FROM outbox_meta) = $2 RETURNING (extract(epoch FROM seen_at) * 1000000)::bigint";
const TAKE: &str = "WITH takeable AS MATERIALIZED (
        SELECT s.slot, s.epoch FROM outbox_slot AS s
        WHERE s.slot = ANY ($1)
          AND (s.incarnation IS NULL OR s.incarnation = $2 OR NOT EXISTS (
              SELECT 1 FROM outbox_publisher AS p WHERE p.incarnation = s.incarnation AND outbox_now() - p.seen_at <= 1 * p.ttl AND p.seen_at - outbox_now() <= p.ttl))
          AND EXISTS (SELECT 1 FROM outbox_publisher AS me WHERE me.incarnation = $2 AND outbox_now() - me.seen_at <= 1 * me.ttl AND me.seen_at - outbox_now() <= me.ttl)
          AND (SELECT slots FROM outbox_meta) = $3
    ), locked AS MATERIALIZED (
        SELECT s.slot FROM takeable AS t JOIN outbox_slot AS s ON s.slot = t.slot AND s.epoch = t.epoch
        ORDER BY s.slot FOR UPDATE OF s SKIP LOCKED
    )
    UPDATE outbox_slot AS s SET epoch = s.epoch + 1, incarnation = $2 FROM locked AS l WHERE s.slot = l.slot RETURNING s.slot, s.epoch";
const FETCH: &str = "
    SELECT h.slot, h.epoch, h.aggregate, h.hash, h.done_seq, a.last_seq, h.attempts, h.failures,
           (date_part('epoch', statement_timestamp() - h.failing_since) * 1000)::bigint,
           (date_part('epoch', statement_timestamp() - h.attempted_at) * 1000)::bigint,
           e.seq, e.id, e.aggregatetype, e.aggregateid, e.type, (date_part('epoch', e.created_at) * 1000)::bigint, e.replayed,
           h.due, e.bytes, CASE WHEN e.bytes > $8::bigint THEN e.position END,
           CASE WHEN e.bytes <= $8 THEN e.payload END, CASE WHEN e.bytes <= $8 THEN e.payload_bytes END, CASE WHEN e.bytes <= $8 THEN e.headers END
    FROM (
        (SELECT s.slot, s.epoch, true AS due, r.*
         FROM (
            (SELECT h.aggregate, h.hash, h.done_seq, h.attempts, h.failures, h.failing_since, h.attempted_at FROM outbox_head AS h
             WHERE h.waiting AND h.retry_at <= statement_timestamp() ORDER BY h.retry_at)
            UNION ALL
            (SELECT h.aggregate, h.hash, h.done_seq, h.attempts, h.failures, h.failing_since, h.attempted_at FROM outbox_head AS h
             WHERE h.waiting AND h.retry_at > statement_timestamp() + $7::bigint * interval '1 millisecond')
         ) AS r
         CROSS JOIN LATERAL (
            SELECT t.* FROM outbox_slot AS t
            WHERE t.slot = div((r.hash::numeric + 9223372036854775808) * $10::bigint, 18446744073709551616)::bigint OFFSET 0
         ) AS s
         WHERE s.incarnation = $1 AND s.slot NOT IN (SELECT unnest($4::bigint[])) AND r.aggregate NOT IN (SELECT unnest($5::bigint[])) LIMIT $9)
        UNION ALL
        (SELECT s.slot, s.epoch, false AS due, r.*
         FROM (
            SELECT slot, epoch, greatest(hash_from, $2) AS low, least(hash_to, $3) AS high FROM outbox_slot
            WHERE incarnation = $1 AND hash_to >= $2 AND hash_from <= $3
              AND slot BETWEEN div(($2::numeric + 9223372036854775808) * $10::bigint, 18446744073709551616)::bigint
                           AND div(($3::numeric + 9223372036854775808) * $10::bigint, 18446744073709551616)::bigint
              AND slot NOT IN (SELECT unnest($4::bigint[])) ORDER BY slot
         ) AS s
         CROSS JOIN LATERAL (
            SELECT h.aggregate, h.hash, h.done_seq, h.attempts, h.failures, h.failing_since, h.attempted_at FROM outbox_head AS h
            WHERE h.ready AND h.hash BETWEEN s.low AND s.high AND h.aggregate NOT IN (SELECT unnest($5::bigint[]))
            ORDER BY h.hash, h.aggregate LIMIT $6
         ) AS r)
    ) AS h
    JOIN outbox_aggregate AS a ON a.id = h.aggregate
    LEFT JOIN LATERAL (
        SELECT o.seq, o.position, o.id, o.aggregatetype, o.aggregateid, o.type, o.payload, o.payload_bytes, o.headers, o.created_at, o.replayed,
               coalesce(octet_length(o.payload), octet_length(o.payload_bytes), 0) + coalesce(octet_length(o.headers), 0) AS bytes
        FROM outbox AS o WHERE o.aggregate = h.aggregate AND o.seq > h.done_seq AND o.seq <= a.last_seq
        ORDER BY o.seq LIMIT CASE WHEN h.due THEN 1 ELSE $6 END
    ) AS e ON true
    LIMIT $6";
const MARK: &str = "WITH given AS MATERIALIZED (
        SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $5::bigint[]) AS g (aggregate, slot, epoch, through)
    ), fence AS MATERIALIZED (
        SELECT s.slot, s.epoch FROM (SELECT DISTINCT slot FROM given ORDER BY slot) AS w
        CROSS JOIN LATERAL (
            SELECT t.slot, t.epoch FROM outbox_slot AS t WHERE t.slot = w.slot AND t.incarnation = $4 FOR SHARE
        ) AS s
    ), allowed AS MATERIALIZED (
        SELECT g.* FROM given AS g WHERE ((g.slot, g.epoch) IN (SELECT slot, epoch FROM fence)) IS TRUE
    ), patience AS MATERIALIZED (
        SELECT set_config('lock_timeout', greatest(least(extract(epoch FROM current_setting('deadlock_timeout')::interval) * 250, 200), 1)::bigint::text, true)
        FROM (SELECT count(*) FROM allowed) AS behind_the_fence
    ), drained AS (
        UPDATE outbox_aggregate AS a SET drained_seq = a.last_seq
        FROM (
            SELECT a.id FROM patience CROSS JOIN allowed AS m JOIN outbox_aggregate AS a ON a.id = m.aggregate AND a.last_seq = m.through
            FOR NO KEY UPDATE OF a SKIP LOCKED
        ) AS free
        WHERE a.id = free.id RETURNING a.id
    )
    UPDATE outbox_head AS h
    SET done_seq = m.through, listed = h.aggregate NOT IN (SELECT id FROM drained), attempts = 0, failures = 0, failing_since = NULL,
        attempted_at = NULL, retry_at = NULL, last_error = NULL
    FROM allowed AS m WHERE h.aggregate = m.aggregate AND h.done_seq < m.through AND h.listed";
const DELETE: &str = "DELETE FROM outbox AS o
    USING unnest($1::bigint[], $2::bigint[]) AS m (aggregate, through) JOIN outbox_head AS h ON h.aggregate = m.aggregate
    WHERE h.done_seq >= m.through AND o.aggregate = m.aggregate AND o.seq <= m.through AND o.parked_at IS NULL";
const STRIKE_OFF: &str = "WITH patience AS MATERIALIZED (
        SELECT set_config('lock_timeout', greatest(least(extract(epoch FROM current_setting('deadlock_timeout')::interval) * 250, 200), 1)::bigint::text, true)
    ), drained AS (
        UPDATE outbox_aggregate AS a SET drained_seq = a.last_seq
        FROM (
            SELECT a.id FROM patience CROSS JOIN outbox_head AS h JOIN outbox_aggregate AS a ON a.id = h.aggregate AND a.last_seq = h.done_seq
            WHERE h.aggregate = ANY ($1::bigint[]) AND h.listed
            FOR NO KEY UPDATE OF a, h SKIP LOCKED
        ) AS free
        WHERE a.id = free.id RETURNING a.id
    )
    UPDATE outbox_head AS h SET listed = false FROM drained AS d WHERE h.aggregate = d.id";

/// How many microseconds it counts as alive without a renewal.
const TTL: i64 = 10_000_000;

/// What it has read, and what it marks when that is sent.
pub(crate) struct Batch {
    aggregates: Vec<i64>,
    slots: Vec<i64>,
    epochs: Vec<i64>,
    through: Vec<i64>,
    drained: Vec<i64>,
}

/// One publisher of that version with a connection.
pub(crate) struct Former {
    conn: PgConnection,
    incarnation: String,
    log: Log,
}

impl Former {
    /// Registers as that version does, the first one with the slots too.
    pub(crate) async fn register(outbox: &Outbox, incarnation: &str, log: &Log) -> Result<Self, sqlx::Error> {
        let mut conn = outbox.connection().await;
        sqlx::raw_sql(postgres::SESSION).execute(&mut conn).await?;
        let slots = "WITH first AS (UPDATE outbox_meta SET slots = $1 WHERE slots IS NULL RETURNING slots)
            INSERT INTO outbox_slot (slot, epoch, hash_from, hash_to)
            SELECT n, 1, ((n - $1 / 2) << $2::int), ((n - $1 / 2) << $2::int) + ((1::bigint << $2::int) - 1) FROM first, generate_series(0, $1 - 1) AS n";
        sqlx::query(slots).bind(i64::from(SLOTS)).bind(64 - SLOTS.ilog2().cast_signed()).execute(&mut conn).await?;
        let former = Self { conn, incarnation: incarnation.to_owned(), log: log.clone() };
        former.announced().await
    }

    async fn announced(mut self) -> Result<Self, sqlx::Error> {
        sqlx::query(ANNOUNCE).bind(&self.incarnation).bind("former").bind(TTL).execute(&mut self.conn).await?;
        Ok(self)
    }

    /// Renews its registration, and holds these slots and no others. Returns whether it is still registered.
    pub(crate) async fn hold(&mut self, slots: Range<u32>) -> Result<bool, sqlx::Error> {
        let (me, all) = (self.incarnation.clone(), i64::from(SLOTS));
        if sqlx::query(TOUCH).bind(&me).bind(all).fetch_optional(&mut self.conn).await?.is_none() {
            return Ok(false);
        }
        let release = "UPDATE outbox_slot SET incarnation = NULL WHERE incarnation = $1 AND (slot < $2 OR slot >= $3)";
        sqlx::query(release).bind(&me).bind(i64::from(slots.start)).bind(i64::from(slots.end)).execute(&mut self.conn).await?;
        let held: Vec<i64> =
            sqlx::query_scalar("SELECT slot FROM outbox_slot WHERE incarnation = $1").bind(&me).fetch_all(&mut self.conn).await?;
        let wanted: Vec<i64> = slots.map(i64::from).filter(|slot| !held.contains(slot)).collect();
        sqlx::query(TAKE).bind(wanted).bind(&me).bind(all).fetch_all(&mut self.conn).await?;
        Ok(true)
    }

    /// Hashes new aggregates, and reads.
    pub(crate) async fn fetch(&mut self) -> Result<Batch, sqlx::Error> {
        let new = "SELECT h.aggregate, a.key FROM outbox_head AS h JOIN outbox_aggregate AS a ON a.id = h.aggregate WHERE h.hash IS NULL";
        let new: Vec<(i64, String)> = sqlx::query_as(new).fetch_all(&mut self.conn).await?;
        for (aggregate, key) in new {
            let hash = (key.as_str().key_hash() ^ (1 << 63)).cast_signed();
            let update = "UPDATE outbox_head SET hash = $2 WHERE aggregate = $1 AND hash IS NULL";
            sqlx::query(update).bind(aggregate).bind(hash).execute(&mut self.conn).await?;
        }
        let none: Vec<i64> = Vec::new();
        let fetch = sqlx::query(FETCH).bind(&self.incarnation).bind(i64::MIN).bind(i64::MAX).bind(&none).bind(&none);
        let fetch = fetch.bind(200_i64).bind(7_200_000_i64).bind(1_i64 << 20).bind(100_i64).bind(i64::from(SLOTS));
        let rows = fetch.fetch_all(&mut self.conn).await?;
        let mut batch = Batch { aggregates: vec![], slots: vec![], epochs: vec![], through: vec![], drained: vec![] };
        for row in rows {
            let (aggregate, done, last): (i64, i64, i64) = (row.try_get(2)?, row.try_get(4)?, row.try_get(5)?);
            if done >= last {
                batch.drained.push(aggregate);
                continue;
            }
            let sequence: Option<i64> = row.try_get(10)?;
            if batch.aggregates.last() != Some(&aggregate) {
                batch.aggregates.push(aggregate);
                batch.slots.push(row.try_get(0)?);
                batch.epochs.push(row.try_get(1)?);
                // Missing events were deleted by hand.
                batch.through.push(if sequence.is_some() { done } else { last });
            }
            let (Some(sequence), Some(through)) = (sequence, batch.through.last_mut()) else { continue };
            assert!(sequence > *through, "{sequence} behind {through}");
            *through = sequence;
            let payload: String = row.try_get(20)?;
            let key = format!("{}/{}", row.try_get::<String, _>(12)?, row.try_get::<String, _>(13)?);
            self.log.add(Arrival { id: row.try_get(11)?, key, sequence: sequence.cast_unsigned(), place: payload.parse().unwrap() });
        }
        Ok(batch)
    }

    /// Marks what was read, and deletes it if `delete`. Returns how many aggregates were marked.
    pub(crate) async fn mark(&mut self, batch: &Batch, delete: bool) -> Result<u64, sqlx::Error> {
        let mut tx = self.conn.begin().await?;
        let mark = sqlx::query(MARK).bind(&batch.aggregates).bind(&batch.slots).bind(&batch.epochs).bind(&self.incarnation);
        let marked = mark.bind(&batch.through).execute(&mut *tx).await?.rows_affected();
        if delete {
            sqlx::query(DELETE).bind(&batch.aggregates).bind(&batch.through).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(marked)
    }

    /// Strikes off what had nothing to send when it was read.
    pub(crate) async fn strike_off(&mut self, batch: &Batch) -> Result<(), sqlx::Error> {
        sqlx::query(STRIKE_OFF).bind(&batch.drained).execute(&mut self.conn).await.map(drop)
    }

    /// As after a pause that was longer than the TTL.
    pub(crate) async fn comes_back(self) -> Result<Self, sqlx::Error> {
        self.announced().await
    }

    async fn turn(&mut self, slots: Range<u32>, delete: bool) -> Result<(), sqlx::Error> {
        assert!(self.hold(slots).await?, "it is registered");
        let batch = self.fetch().await?;
        self.mark(&batch, delete).await?;
        self.strike_off(&batch).await
    }
}

/// One that works in the background.
pub(crate) struct RunningFormer {
    slots: watch::Sender<Range<u32>>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl RunningFormer {
    /// With all slots.
    pub(crate) async fn start(outbox: &Outbox, incarnation: &str, log: &Log) -> Self {
        let mut former = Former::register(outbox, incarnation, log).await.unwrap();
        let (slots, stop) = (watch::Sender::new(0..SLOTS), CancellationToken::new());
        let (wanted, stopped) = (slots.subscribe(), stop.clone());
        let task = tokio::spawn(async move {
            let mut delete = false;
            while !stopped.is_cancelled() {
                delete = !delete;
                let range = wanted.borrow().clone();
                if let Err(error) = former.turn(range, delete).await {
                    let code = error.as_database_error().and_then(|error| error.code().map(std::borrow::Cow::into_owned));
                    // It gave way, and does it again.
                    assert!(matches!(code.as_deref(), Some("55P03" | "40P01")), "{error}");
                }
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
            for sql in
                ["UPDATE outbox_slot SET incarnation = NULL WHERE incarnation = $1", "DELETE FROM outbox_publisher WHERE incarnation = $1"]
            {
                sqlx::query(sql).bind(&former.incarnation).execute(&mut former.conn).await.unwrap();
            }
        });
        Self { slots, stop, task }
    }

    /// From its next turn on it holds these and no others.
    pub(crate) fn own(&self, slots: Range<u32>) {
        self.slots.send_replace(slots);
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}
