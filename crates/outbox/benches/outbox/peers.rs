//! The programs that the publisher is compared with, on the same server.

use std::process::Command;
use std::time::Instant;

use serde_json::Value;
use sqlx::{Connection as _, PgConnection};

use crate::shared::peers::{self, QUEUE, answer, connect};
use crate::shared::stage::PAYLOAD;

type Event = (i64, String, String, String, String, Option<String>, Option<Vec<u8>>, Option<String>, i64, i64);

/// The upper bound: one connection that reads rows of our own table in order and marks them, without fence and sequence.
pub(crate) async fn ceiling(url: &str, events: u64) -> f64 {
    let mut conn = connect(url).await;
    let begun = Instant::now();
    let (mut position, mut done) = (0, 0);
    while done < events {
        let read = "SELECT position, id, aggregatetype, aggregateid, type, payload, payload_bytes, headers, aggregate, seq
            FROM outbox WHERE position > $1 ORDER BY position LIMIT 1000";
        let rows: Vec<Event> = sqlx::query_as(read).bind(position).fetch_all(&mut conn).await.unwrap();
        let positions: Vec<i64> = rows.iter().map(|row| row.0).collect();
        position = *positions.last().unwrap();
        // The column is in no index.
        sqlx::query("UPDATE outbox SET keyhash = 1 WHERE position = ANY ($1)").bind(&positions).execute(&mut conn).await.unwrap();
        done += positions.len() as u64;
    }
    begun.elapsed().as_secs_f64()
}

/// Two workers that lock a hundred rows and delete them in the same transaction, without any order.
pub(crate) async fn skip_locked(url: &str, events: u64) -> f64 {
    let mut conn = connect(url).await;
    let table = format!(
        "{QUEUE};
         INSERT INTO queue (key, type, payload) SELECT 'order/' || n, 'OrderPlaced', {PAYLOAD} FROM generate_series(1, {events}) AS n"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(table)).execute(&mut conn).await.unwrap();
    for statement in ["VACUUM ANALYZE queue", "CHECKPOINT"] {
        sqlx::raw_sql(statement).execute(&mut conn).await.unwrap();
    }
    let mut workers = [connect(url).await, connect(url).await].into_iter();
    let begun = Instant::now();
    let (one, two) = (tokio::spawn(work(workers.next().unwrap())), tokio::spawn(work(workers.next().unwrap())));
    let done = one.await.unwrap() + two.await.unwrap();
    assert_eq!(done, events);
    begun.elapsed().as_secs_f64()
}

async fn work(mut conn: PgConnection) -> u64 {
    let mut done = 0;
    loop {
        let mut tx = conn.begin().await.unwrap();
        let read = "SELECT id, key, type, payload FROM queue ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED";
        let rows: Vec<(i64, String, String, String)> = sqlx::query_as(read).fetch_all(&mut *tx).await.unwrap();
        if rows.is_empty() {
            return done;
        }
        let ids: Vec<i64> = rows.iter().map(|row| row.0).collect();
        sqlx::query("DELETE FROM queue WHERE id = ANY ($1)").bind(&ids).execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
        done += ids.len() as u64;
    }
}

/// Jobs that do nothing, with the local queue and batched completion. The error says what is missing to run it.
pub(crate) fn graphile_worker(url: &str, jobs: u64) -> Result<f64, String> {
    let folder = peers::graphile_worker()?;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/outbox/graphile.js");
    let reported = answer(Command::new("node").arg(script).args([url, &jobs.to_string()]).current_dir(&folder))?;
    let reported: Value = serde_json::from_str(reported.lines().last().unwrap_or_default()).map_err(|_| reported.clone())?;
    reported["seconds"].as_f64().ok_or_else(|| reported.to_string())
}
