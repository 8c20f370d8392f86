//! Writes that a fence in PostgreSQL allows, delays and refuses.

use shardwise_fencing::postgres::{self, check, raise};
use shardwise_fencing::{FenceError, StaleEpoch};
use sqlx::{Connection as _, PgPool, Row as _};

use crate::common::{epoch, group, name, postgres as database, slot, soon, waiting};

const REPEATABLE_READ: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ";
const SERIALIZABLE: &str = "BEGIN ISOLATION LEVEL SERIALIZABLE";

/// One fenced transaction with nothing else in it.
pub(crate) async fn passes(pool: &PgPool, number: u64) -> Result<(), FenceError> {
    let mut tx = pool.begin().await?;
    check(&mut tx, &group(), &slot(17), epoch(number)).await?;
    tx.commit().await?;
    Ok(())
}

fn refused(result: Result<(), FenceError>) -> StaleEpoch {
    match result {
        Err(FenceError::Fenced(refused)) => refused,
        other => panic!("to be refused, but {other:?}"),
    }
}

pub(crate) async fn a_lower_epoch_is_refused(pool: &PgPool) {
    for number in [5, 5, 7] {
        passes(pool, number).await.unwrap();
    }
    let error = refused(passes(pool, 6).await);
    assert_eq!((error.epoch, error.seen), (epoch(6), Some(epoch(7))));
    assert_eq!(
        error.to_string(),
        "slot 17 of group \"büro 1\" is held under a higher epoch than 6 (7 was seen): another worker has held it since; roll back and abandon \
         this work"
    );
    // A slot, and a name that looks like one, are different resources; so are resources of two groups.
    let others = [slot(1), shardwise_fencing::Resource::Name(name("slot/17")), shardwise_fencing::Resource::Name(name("17"))];
    let mut tx = pool.begin().await.unwrap();
    for resource in &others {
        check(&mut tx, &group(), resource, epoch(1)).await.unwrap();
    }
    check(&mut tx, &"other".to_owned().try_into().unwrap(), &slot(17), epoch(1)).await.unwrap();
    tx.commit().await.unwrap();
    passes(pool, 7).await.unwrap();
}

#[tokio::test]
async fn a_lower_epoch_is_refused_by_the_newest() {
    let (_database, pool) = database().await;
    a_lower_epoch_is_refused(&pool).await;
}

pub(crate) async fn writers_of_one_owner_go_side_by_side(database: &shardwise_testkit::Database, pool: &PgPool) {
    passes(pool, 5).await.unwrap();
    let (group, resource) = (group(), slot(17));
    let (mut one, mut two) = (pool.begin().await.unwrap(), pool.begin().await.unwrap());
    check(&mut one, &group, &resource, epoch(5)).await.unwrap();
    soon("the second writer", check(&mut two, &group, &resource, epoch(5))).await.unwrap();
    // The next owner waits for both.
    let next = tokio::spawn({
        let (pool, group, resource) = (pool.clone(), group.clone(), resource.clone());
        async move {
            let mut tx = pool.begin().await.unwrap();
            check(&mut tx, &group, &resource, epoch(6)).await.map(|()| tx)
        }
    });
    waiting(database, 1).await;
    one.commit().await.unwrap();
    waiting(database, 1).await;
    two.commit().await.unwrap();
    let next = soon("the next owner", next).await.unwrap().unwrap();
    // A late writer under the old epoch waits for the new owner in turn.
    let stale_writer = tokio::spawn({
        let pool = pool.clone();
        async move { passes(&pool, 5).await }
    });
    waiting(database, 1).await;
    assert!(!stale_writer.is_finished());
    next.commit().await.unwrap();
    assert_eq!(refused(soon("the stale writer", stale_writer).await.unwrap()).seen, Some(epoch(6)));
}

#[tokio::test]
async fn writers_of_one_owner_go_side_by_side_and_the_next_owner_waits_for_them() {
    let (database, pool) = database().await;
    writers_of_one_owner_go_side_by_side(&database, &pool).await;
}

#[tokio::test]
async fn an_epoch_that_was_rolled_back_was_never_seen() {
    let (database, pool) = database().await;
    passes(&pool, 5).await.unwrap();
    let mut next = pool.begin().await.unwrap();
    check(&mut next, &group(), &slot(17), epoch(6)).await.unwrap();
    let owner = tokio::spawn(async move { passes(&pool, 5).await });
    waiting(&database, 1).await;
    next.rollback().await.unwrap();
    soon("the owner", owner).await.unwrap().unwrap();
}

#[tokio::test]
async fn without_a_transaction_there_is_no_fence() {
    let (_database, pool) = database().await;
    let mut conn = pool.acquire().await.unwrap();
    let error = check(&mut conn, &group(), &slot(17), epoch(5)).await.unwrap_err();
    assert!(matches!(error, FenceError::NoTransaction) && !error.is_retryable(), "{error}");
    passes(&pool, 1).await.unwrap();
}

#[tokio::test]
async fn above_read_committed_a_new_epoch_is_raised_apart() {
    let (_database, pool) = database().await;
    let mut conn = pool.acquire().await.unwrap();
    for (number, begin) in [(5, REPEATABLE_READ), (6, SERIALIZABLE)] {
        let mut tx = pool.begin_with(begin).await.unwrap();
        let error = check(&mut tx, &group(), &slot(17), epoch(number)).await.unwrap_err();
        assert!(matches!(error, FenceError::RaiseApart { .. }) && !error.is_retryable(), "{error}");
        let error = raise(&mut tx, &group(), &slot(17), epoch(number)).await.unwrap_err();
        assert!(matches!(error, FenceError::InTransaction), "{error}");
        tx.rollback().await.unwrap();
        raise(&mut conn, &group(), &slot(17), epoch(number)).await.unwrap();
        let (mut one, mut two) = (pool.begin_with(begin).await.unwrap(), pool.begin_with(begin).await.unwrap());
        check(&mut one, &group(), &slot(17), epoch(number)).await.unwrap();
        soon("the second writer", check(&mut two, &group(), &slot(17), epoch(number))).await.unwrap();
        one.commit().await.unwrap();
        two.commit().await.unwrap();
    }
    assert_eq!(refused(raise(&mut conn, &group(), &slot(17), epoch(5)).await).seen, Some(epoch(6)));
}

/// The reason: the statement alone would admit a new owner that does not see its predecessor's last write.
#[tokio::test]
async fn above_read_committed_the_statement_says_that_it_sees_the_past() {
    let (database, pool) = database().await;
    database.execute("CREATE TABLE t (n int)").await.unwrap();
    passes(&pool, 5).await.unwrap();
    let mut former = pool.begin().await.unwrap();
    check(&mut former, &group(), &slot(17), epoch(5)).await.unwrap();
    sqlx::query("INSERT INTO t VALUES (1)").execute(&mut *former).await.unwrap();
    let next = tokio::spawn(async move {
        let mut tx = pool.begin_with(REPEATABLE_READ).await.unwrap();
        let row = sqlx::query(postgres::CHECK).bind(group().as_str()).bind("slot/17").bind(6_i64);
        let row = row.fetch_one(&mut *tx).await.unwrap();
        let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM t").fetch_one(&mut *tx).await.unwrap();
        (row.get::<bool, _>("raised"), row.get::<bool, _>("fixed"), rows)
    });
    waiting(&database, 1).await;
    former.commit().await.unwrap();
    assert_eq!(soon("the next owner", next).await.unwrap(), (true, true, 0), "if it sees the row by now, RaiseApart can go");
}

#[tokio::test]
async fn a_stale_writer_above_read_committed_must_retry_and_is_refused_then() {
    let (_database, pool) = database().await;
    passes(&pool, 5).await.unwrap();
    for (begin, number) in [(REPEATABLE_READ, 6), (SERIALIZABLE, 7)] {
        let mut stale_writer = pool.begin_with(begin).await.unwrap();
        sqlx::query("SELECT count(*) FROM shardwise_fence").execute(&mut *stale_writer).await.unwrap();
        passes(&pool, number).await.unwrap();
        let error = check(&mut stale_writer, &group(), &slot(17), epoch(number - 1)).await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        stale_writer.rollback().await.unwrap();
        assert_eq!(refused(passes(&pool, number - 1).await).seen, Some(epoch(number)));
    }
}

#[tokio::test]
async fn a_row_may_carry_its_own_fence() {
    let (_database, pool) = database().await;
    sqlx::raw_sql("CREATE TABLE account (id int, balance int, epoch bigint); INSERT INTO account VALUES (42, 10, 5)")
        .execute(&pool)
        .await
        .unwrap();
    let write = async |balance: i32, number: i64| {
        let update = sqlx::query("UPDATE account SET balance = $1, epoch = $2 WHERE id = 42 AND epoch <= $2").bind(balance).bind(number);
        update.execute(&pool).await.unwrap().rows_affected()
    };
    assert_eq!((write(20, 6).await, write(30, 5).await, write(40, 6).await), (1, 0, 1));
    let balance: i32 = sqlx::query_scalar("SELECT balance FROM account").fetch_one(&pool).await.unwrap();
    assert_eq!(balance, 40);
}

#[tokio::test]
async fn tables_come_and_go_and_many_may_create_them_at_once() {
    let (_database, pool) = database().await;
    let there = || sqlx::query_scalar::<_, i64>("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'shardwise%'").fetch_one(&pool);
    for sql in [postgres::FENCE_DOWN, postgres::JOURNAL_DOWN, postgres::JOURNAL_DOWN, postgres::PROGRESS_DOWN] {
        sqlx::raw_sql(sql).execute(&pool).await.unwrap();
    }
    assert_eq!(there().await.unwrap(), 0);
    let error = passes(&pool, 5).await.unwrap_err();
    assert!(!error.is_retryable() && error.to_string().contains("shardwise_fence"), "{error}");
    let all = (0..8).map(|_| async { postgres::create_tables(&mut *pool.acquire().await?).await });
    futures::future::try_join_all(all).await.unwrap();
    assert_eq!(there().await.unwrap(), 5);
    passes(&pool, 5).await.unwrap();
}

#[tokio::test]
async fn a_server_that_goes_away_is_worth_another_try() {
    let server = shardwise_testkit::Postgres::start(shardwise_testkit::PostgresOptions::default()).await.unwrap();
    let (database, pool) = crate::common::postgres_in(&server).await;
    let mut conn = sqlx::PgConnection::connect(&database.url()).await.unwrap();
    let mut tx = conn.begin().await.unwrap();
    server.kill().unwrap();
    let error = check(&mut tx, &group(), &slot(17), epoch(5)).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    server.restart().await.unwrap();
    passes(&pool, 5).await.unwrap();
}
