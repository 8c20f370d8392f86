//! Progress in PostgreSQL: tasks that wait for each other, isolation levels, and the statements for other languages.

use shardwise_fencing::{FenceError, Position, postgres};
use sqlx::{PgConnection, PgPool};

use crate::common::{self, group, slot, soon, waiting};
use crate::progress_store::{ProgressStore, progress};

const KEY: &str = "customers";

#[tokio::test]
async fn a_task_that_resumes_waits_for_the_one_before_and_goes_on_from_there() {
    let (database, pool) = common::postgres().await;
    let store = ProgressStore::Postgres(pool);
    // Not for a task on another key of the slot.
    let (owner, beside) = (progress(KEY, slot(17), 5), progress("beside", slot(17), 5));
    store.resume(&owner).await.unwrap();
    let mut first = store.begin().await.unwrap();
    let start = first.resume(&owner).await.unwrap();
    soon("a task on another key", store.resume(&beside)).await.unwrap();
    let second = tokio::spawn({
        let (store, owner) = (store.clone(), owner.clone());
        async move {
            let mut tx = store.begin().await.unwrap();
            let position = tx.resume(&owner).await.unwrap();
            let position = tx.save(&owner, &position, "second").await.unwrap();
            tx.commit().await.unwrap();
            position
        }
    });
    waiting(&database, 1).await;
    assert!(!second.is_finished());
    first.save(&owner, &start, "first").await.unwrap();
    first.commit().await.unwrap();
    assert_eq!(soon("the second task", second).await.unwrap().number, 2);
}

#[tokio::test]
async fn the_next_owner_waits_for_the_last_transaction_of_the_former_one() {
    let (database, pool) = common::postgres().await;
    let store = ProgressStore::Postgres(pool);
    let (former, owner) = (progress(KEY, slot(17), 5), progress(KEY, slot(17), 6));
    let start = store.resume(&former).await.unwrap();
    let mut last = store.begin().await.unwrap();
    last.save(&former, &start, "last").await.unwrap();
    let next = tokio::spawn({
        let (store, owner) = (store.clone(), owner.clone());
        async move { store.resume(&owner).await }
    });
    waiting(&database, 1).await;
    last.commit().await.unwrap();
    let position = soon("the next owner", next).await.unwrap().unwrap();
    assert_eq!((position.number, position.value.as_deref()), (1, Some("last")));
}

#[tokio::test]
async fn above_read_committed_a_new_epoch_is_raised_apart() {
    let (_database, pool) = common::postgres().await;
    let owner = progress(KEY, slot(17), 5);
    for begin in ["BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN ISOLATION LEVEL SERIALIZABLE"] {
        let owner = shardwise_fencing::Progress { resource: slot(u32::from(begin.contains("SERIALIZABLE"))), ..owner.clone() };
        let mut tx = pool.begin_with(begin).await.unwrap();
        let error = postgres::resume(&mut tx, &owner).await.unwrap_err();
        assert!(matches!(error, FenceError::RaiseApart { .. }), "{error}");
        tx.rollback().await.unwrap();
        // What `raise` does a transaction in READ COMMITTED does too.
        let mut tx = pool.begin().await.unwrap();
        postgres::resume(&mut tx, &owner).await.unwrap();
        tx.commit().await.unwrap();
        let mut outdated = pool.begin_with(begin).await.unwrap();
        sqlx::query("SELECT count(*) FROM shardwise_progress").execute(&mut *outdated).await.unwrap();
        let mut tx = pool.begin_with(begin).await.unwrap();
        let position = postgres::resume(&mut tx, &owner).await.unwrap();
        postgres::save(&mut tx, &owner, &position, "on").await.unwrap();
        tx.commit().await.unwrap();
        let error = postgres::save(&mut outdated, &owner, &position, "late").await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
    }
}

#[tokio::test]
async fn without_a_transaction_there_is_no_progress() {
    let (_database, pool) = common::postgres().await;
    let mut conn = pool.acquire().await.unwrap();
    let (owner, start) = (progress(KEY, slot(17), 5), Position { number: 0, value: None, saved_by: None, saved_epoch: None });
    for error in [
        postgres::resume(&mut conn, &owner).await.map(drop).unwrap_err(),
        postgres::save(&mut conn, &owner, &start, "1").await.map(drop).unwrap_err(),
    ] {
        assert!(matches!(error, FenceError::NoTransaction), "{error}");
    }
}

/// The number of rows that the statement `RESUME` returns.
async fn resumed(conn: &mut PgConnection, epoch: i64) -> usize {
    let query = sqlx::query(postgres::RESUME).bind(group().as_str().to_owned()).bind(KEY).bind(epoch);
    query.fetch_all(conn).await.unwrap().len()
}

/// The number of rows that the statement `SAVE` changes.
async fn saved(conn: &mut PgConnection, epoch: i64, from: i64) -> u64 {
    let query = sqlx::query(postgres::SAVE).bind(group().as_str().to_owned()).bind(KEY).bind(epoch).bind("worker").bind(from).bind("1");
    query.execute(conn).await.unwrap().rows_affected()
}

/// A statement of the fence: one of these.
async fn fence(conn: &mut PgConnection, statement: &'static str, epoch: i64) {
    sqlx::query(statement).bind(group().as_str().to_owned()).bind("slot/17").bind(epoch).execute(conn).await.unwrap();
}

pub(crate) async fn the_statements_need_a_fence_before_them(pool: &PgPool) {
    let mut conn = pool.acquire().await.unwrap();
    for statement in [postgres::CHECK, postgres::RAISE] {
        sqlx::query("DELETE FROM shardwise_progress").execute(&mut *conn).await.unwrap();
        // Each statement alone is a transaction, and what follows it is not in it.
        fence(&mut conn, statement, 5).await;
        assert_eq!(resumed(&mut conn, 5).await, 0, "{statement}");
        let mut tx = pool.begin().await.unwrap();
        assert_eq!(resumed(&mut tx, 5).await, 0, "{statement}");
        fence(&mut tx, statement, 5).await;
        assert_eq!(resumed(&mut tx, 5).await, 1, "{statement}");
        tx.commit().await.unwrap();
        fence(&mut conn, statement, 5).await;
        assert_eq!(saved(&mut conn, 5, 0).await, 0, "{statement}");
        let mut tx = pool.begin().await.unwrap();
        fence(&mut tx, statement, 5).await;
        assert_eq!(resumed(&mut tx, 4).await, 0, "a lower epoch: {statement}");
        assert_eq!((saved(&mut tx, 4, 0).await, saved(&mut tx, 5, 1).await), (0, 0), "a lower epoch, another position: {statement}");
        assert_eq!((saved(&mut tx, 5, 0).await, saved(&mut tx, 5, 1).await), (1, 1), "{statement}");
        tx.commit().await.unwrap();
    }
}

#[tokio::test]
async fn the_statements_for_other_languages_need_a_fence_before_them() {
    let (_database, pool) = common::postgres().await;
    the_statements_need_a_fence_before_them(&pool).await;
}
