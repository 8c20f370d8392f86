//! Writes that a fence in SQLite allows and refuses.

use shardwise_fencing::FenceError;
use shardwise_fencing::sqlite::{self, check};
use sqlx::SqlitePool;

use crate::common::{epoch, group, slot, sqlite as file};

async fn passes(pool: &SqlitePool, number: u64) -> Result<(), FenceError> {
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    check(&mut tx, &group(), &slot(17), epoch(number)).await?;
    tx.commit().await?;
    Ok(())
}

#[tokio::test]
async fn a_lower_epoch_is_refused() {
    let (_folder, pool) = file().await;
    for number in [5, 5, 7] {
        passes(&pool, number).await.unwrap();
    }
    match passes(&pool, 6).await {
        Err(FenceError::Fenced(error)) => assert_eq!((error.epoch, error.seen), (epoch(6), Some(epoch(7)))),
        other => panic!("to be refused, but {other:?}"),
    }
    passes(&pool, 7).await.unwrap();
    let error = check(&mut pool.acquire().await.unwrap(), &group(), &slot(17), epoch(9)).await.unwrap_err();
    assert!(matches!(error, FenceError::NoTransaction), "{error}");
}

#[tokio::test]
async fn a_stale_writer_that_has_read_before_must_retry_and_is_refused_then() {
    let (_folder, pool) = file().await;
    passes(&pool, 5).await.unwrap();
    let mut stale_writer = pool.begin().await.unwrap();
    sqlx::query("SELECT count(*) FROM shardwise_fence").fetch_one(&mut *stale_writer).await.unwrap();
    passes(&pool, 6).await.unwrap();
    let error = check(&mut stale_writer, &group(), &slot(17), epoch(5)).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    stale_writer.rollback().await.unwrap();
    assert!(matches!(passes(&pool, 5).await, Err(FenceError::Fenced(_))));
}

#[tokio::test]
async fn a_row_may_carry_its_own_fence() {
    let (_folder, pool) = file().await;
    sqlx::raw_sql("CREATE TABLE account (id, balance, epoch); INSERT INTO account VALUES (42, 10, 5)").execute(&pool).await.unwrap();
    let write = async |balance: i32, number: i64| {
        let update = sqlx::query("UPDATE account SET balance = ?1, epoch = ?2 WHERE id = 42 AND epoch <= ?2").bind(balance).bind(number);
        update.execute(&pool).await.unwrap().rows_affected()
    };
    assert_eq!((write(20, 6).await, write(30, 5).await, write(40, 6).await), (1, 0, 1));
}

#[tokio::test]
async fn tables_come_and_go_and_many_may_create_them_at_once() {
    let (_folder, pool) = file().await;
    let there = || sqlx::query_scalar::<_, i64>("SELECT count(*) FROM sqlite_schema WHERE name LIKE 'shardwise%'").fetch_one(&pool);
    for sql in [sqlite::FENCE_DOWN, sqlite::JOURNAL_DOWN, sqlite::JOURNAL_DOWN, sqlite::PROGRESS_DOWN] {
        sqlx::raw_sql(sql).execute(&pool).await.unwrap();
    }
    assert_eq!(there().await.unwrap(), 0);
    let error = passes(&pool, 5).await.unwrap_err();
    assert!(!error.is_retryable() && error.to_string().contains("shardwise_fence"), "{error}");
    let all = (0..8).map(|_| async { sqlite::create_tables(&mut *pool.acquire().await?).await });
    futures::future::try_join_all(all).await.unwrap();
    assert_eq!(there().await.unwrap(), 5);
}
