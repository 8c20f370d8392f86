//! Progress is resumed, saved and refused the same in both databases.

use shardwise_fencing::{FenceError, Position, Resource, StaleEpoch};

use crate::common::{self, epoch, name, slot};
use crate::progress_store::{ProgressStore, progress};

const KEY: &str = "customers 17";

/// Runs a test of progress in both databases.
macro_rules! in_both {
    ($($test:ident as $on_postgres:ident, $on_sqlite:ident;)*) => {$(
        #[tokio::test]
        async fn $on_postgres() {
            let (_database, pool) = common::postgres().await;
            $test(&ProgressStore::Postgres(pool)).await;
        }

        #[tokio::test]
        async fn $on_sqlite() {
            let (_folder, pool) = common::sqlite().await;
            $test(&ProgressStore::Sqlite(pool)).await;
        }
    )*};
}

in_both! {
    the_next_owner_goes_on as postgres_goes_on, sqlite_goes_on;
    two_tasks_cannot_overwrite_each_other as postgres_refuses_the_second_task, sqlite_refuses_the_second_task;
    a_lower_epoch_is_refused as postgres_refuses_a_lower_epoch, sqlite_refuses_a_lower_epoch;
    a_row_is_of_its_key_and_not_of_a_slot as postgres_has_a_row_for_each_key, sqlite_has_a_row_for_each_key;
    what_is_rolled_back_was_not_saved as postgres_forgets_what_is_rolled_back, sqlite_forgets_what_is_rolled_back;
    sizes_are_bounded as postgres_bounds_sizes, sqlite_bounds_sizes;
}

fn refused<T: std::fmt::Debug>(result: Result<T, FenceError>) -> StaleEpoch {
    match result {
        Err(FenceError::Fenced(refused)) => refused,
        other => panic!("to be refused, but {other:?}"),
    }
}

/// The numbers of a save that was refused because of another one.
fn moved<T: std::fmt::Debug>(result: Result<T, FenceError>) -> (u64, Option<u64>) {
    match result {
        Err(error @ FenceError::Moved { .. }) if error.is_retryable() => panic!("the same transaction would be refused again: {error}"),
        Err(FenceError::Moved { key, from, found }) if key == KEY => (from, found),
        other => panic!("to be refused, but {other:?}"),
    }
}

fn saved(number: u64, value: &str, under: u64) -> Position {
    Position { number, value: Some(value.into()), saved_by: Some(format!("worker-{under}")), saved_epoch: Some(under) }
}

pub(crate) async fn the_next_owner_goes_on(store: &ProgressStore) {
    let (first, second) = (progress(KEY, slot(17), 5), progress(KEY, slot(17), 6));
    let start = store.resume(&first).await.unwrap();
    assert_eq!(start, Position { number: 0, value: None, saved_by: None, saved_epoch: None });
    let ten = store.save(&first, &start, "10").await.unwrap();
    assert_eq!(ten, saved(1, "10", 5));
    // In one transaction.
    let mut tx = store.begin().await.unwrap();
    let found = tx.resume(&first).await.unwrap();
    assert_eq!(found, ten);
    let twenty = tx.save(&first, &found, "20").await.unwrap();
    assert_eq!(tx.save(&first, &twenty, "30").await.unwrap(), saved(3, "30", 5));
    tx.commit().await.unwrap();
    let found = store.resume(&second).await.unwrap();
    assert_eq!(found, saved(3, "30", 5), "the next owner learns who has saved it");
    assert_eq!(store.save(&second, &found, "").await.unwrap(), saved(4, "", 6));
    assert_eq!(store.resume(&second).await.unwrap(), saved(4, "", 6));
}

async fn two_tasks_cannot_overwrite_each_other(store: &ProgressStore) {
    let owner = progress(KEY, slot(17), 5);
    let (one, other) = (store.resume(&owner).await.unwrap(), store.resume(&owner).await.unwrap());
    let one = store.save(&owner, &one, "a").await.unwrap();
    let error = store.save(&owner, &other, "z").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the progress of \"customers 17\" was not saved: it goes on from position number 0, but the database has number 1; roll back, and \
         resume"
    );
    assert_eq!(moved(Err::<(), _>(error)), (0, Some(1)));
    // The same text as before is another position.
    let again = store.save(&owner, &one, "b").await.unwrap();
    store.save(&owner, &again, "a").await.unwrap();
    assert_eq!(moved(store.save(&owner, &one, "z").await), (1, Some(3)));
    assert_eq!(store.resume(&owner).await.unwrap(), saved(3, "a", 5));
    let beyond = Position { number: u64::MAX, ..one };
    assert_eq!(moved(store.save(&owner, &beyond, "z").await), (u64::MAX, Some(3)));
}

async fn a_lower_epoch_is_refused(store: &ProgressStore) {
    let (former, owner) = (progress(KEY, slot(17), 5), progress(KEY, slot(17), 6));
    let start = store.resume(&former).await.unwrap();
    // From the owner's `resume` on, before it has saved.
    store.resume(&owner).await.unwrap();
    let error = refused(store.save(&former, &start, "stale").await);
    assert_eq!((error.resource.clone(), error.epoch, error.seen), (slot(17), epoch(5), Some(epoch(6))));
    refused(store.resume(&former).await);
    // For each key of the slot, as a check would.
    refused(store.resume(&progress("another", slot(17), 5)).await);
    // The number of slots was changed: the fence of the former slot has not seen the owner's epoch, but the row of the key has.
    let elsewhere = progress(KEY, slot(300), 7);
    let position = store.resume(&elsewhere).await.unwrap();
    let error = refused(store.save(&owner, &start, "stale").await);
    assert_eq!((error.resource, error.epoch, error.seen), (slot(17), epoch(6), Some(epoch(7))));
    assert_eq!(refused(store.resume(&owner).await).seen, Some(epoch(7)));
    assert_eq!(store.save(&elsewhere, &position, "1").await.unwrap(), saved(1, "1", 7));
}

async fn a_row_is_of_its_key_and_not_of_a_slot(store: &ProgressStore) {
    let singleton = Resource::Name(name("importer"));
    let all = [
        progress(KEY, slot(17), 5),
        progress("customers 17 ", slot(17), 5),
        progress("Customers 17", slot(17), 5),
        progress("kunden/ü", singleton, 5),
        shardwise_fencing::Progress { group: "other".to_owned().try_into().unwrap(), ..progress(KEY, slot(17), 5) },
    ];
    for (index, progress) in all.iter().enumerate() {
        let start = store.resume(progress).await.unwrap();
        assert_eq!(start.number, 0, "{progress:?}");
        store.save(progress, &start, &index.to_string()).await.unwrap();
    }
    for (index, progress) in all.iter().enumerate() {
        assert_eq!(store.resume(progress).await.unwrap(), saved(1, &index.to_string(), 5), "{progress:?}");
    }
}

async fn what_is_rolled_back_was_not_saved(store: &ProgressStore) {
    let owner = progress(KEY, slot(17), 5);
    let mut tx = store.begin().await.unwrap();
    let start = tx.resume(&owner).await.unwrap();
    tx.rollback().await.unwrap();
    let error = store.save(&owner, &start, "1").await.unwrap_err();
    assert!(error.to_string().contains("the transaction of `resume` was not committed"), "{error}");
    assert_eq!(moved(Err::<(), _>(error)), (0, None));
    let start = store.resume(&owner).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    let lost = tx.save(&owner, &start, "1").await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(moved(store.save(&owner, &lost, "2").await), (1, Some(0)));
    assert_eq!(store.save(&owner, &start, "1").await.unwrap(), lost);
}

async fn sizes_are_bounded(store: &ProgressStore) {
    let owner = |key: &str| progress(key, slot(17), 5);
    let longest = "é".repeat(1_024);
    let start = store.resume(&owner(&longest)).await.unwrap();
    let position = store.save(&owner(&longest), &start, &"é".repeat(2_048)).await.unwrap();
    for (error, says) in [
        (store.resume(&owner(&(longest.clone() + "x"))).await.unwrap_err(), "key_within_2048_bytes"),
        (store.save(&owner(&longest), &position, &"x".repeat(4_097)).await.unwrap_err(), "position_within_4096_bytes"),
    ] {
        assert!(matches!(error, FenceError::Sql(_)) && !error.is_retryable() && error.to_string().contains(says), "{error}");
    }
    assert_eq!(store.resume(&owner(&longest)).await.unwrap(), position);
}
