//! A disk that is full or reports errors for a while: the journal continues in the same process, over the same pool.
//!
//! Each test runs itself once more, on a separate small disk.

use std::time::Duration;

use shardwise_fencing::{Journal, JournalError};
use shardwise_testkit::SmallDisk;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};

use sqlx::ConnectOptions;

use crate::common::{PATIENCE, epoch, group, name};

const DISK: u64 = 8 << 20;

/// The disk's fault and SQLite's error for it.
struct Trouble {
    begin: fn(&SmallDisk),
    end: fn(&SmallDisk),
    says: &'static str,
}

const FULL: Trouble = Trouble { begin: |disk| disk.fill().unwrap(), end: |disk| disk.empty().unwrap(), says: "database or disk is full" };
const BROKEN: Trouble =
    Trouble { begin: |disk| disk.limit_files(Some(1)).unwrap(), end: |disk| disk.limit_files(None).unwrap(), says: "disk I/O error" };

async fn goes_on(disk: SmallDisk, trouble: Trouble) {
    let options = SqliteConnectOptions::new().filename(disk.folder().join("test.db")).create_if_missing(true);
    let options = options.journal_mode(SqliteJournalMode::Wal).busy_timeout(PATIENCE);
    let pool = SqlitePoolOptions::new().max_connections(1).acquire_timeout(PATIENCE).connect_with(options.clone()).await.unwrap();
    // Another process has the file open: the last one to close it would have to make its shared memory anew.
    let mut other = options.connect().await.unwrap();
    sqlx::query("SELECT count(*) FROM sqlite_schema").execute(&mut other).await.unwrap();
    shardwise_fencing::sqlite::create_tables(&mut pool.acquire().await.unwrap()).await.unwrap();
    let journal = Journal::sqlite(pool.clone(), group(), name("counter"));
    let version = journal.append(0, epoch(1), &[b"before"]).await.unwrap();
    (trouble.begin)(&disk);
    let heavy = vec![b'x'; 900 << 10];
    for round in 0..3 {
        // Fails at the commit, or in the middle of the transaction.
        for events in [vec![&b"meanwhile"[..]], vec![&heavy[..]; 8]] {
            let error = journal.append(version, epoch(1), &events).await.unwrap_err();
            assert!(matches!(&error, JournalError::Sql(_)) && error.to_string().contains(trouble.says), "{round}: {error}");
        }
        assert_eq!(journal.load().await.unwrap().version, version, "reading goes on");
    }
    // An abandoned call leaves its connection in a transaction; the next call must notice that.
    let _ = tokio::time::timeout(Duration::ZERO, journal.append(version, epoch(1), &[&heavy])).await;
    // So does a failed transaction of the application.
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    sqlx::query("CREATE TABLE own AS SELECT zeroblob(4000000)").execute(&mut *tx).await.unwrap_err();
    drop(tx);
    (trouble.end)(&disk);
    assert_eq!(journal.append(version, epoch(1), &[b"after"]).await.unwrap(), version + 1);
    assert_eq!(journal.take_over(epoch(2)).await.unwrap().events.len(), 2, "what failed is not there");
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test);
}

#[test]
fn a_journal_goes_on_after_a_full_disk() {
    let Some(disk) = SmallDisk::of_test("full_disk::a_journal_goes_on_after_a_full_disk", DISK).unwrap() else { return };
    run(goes_on(disk, FULL));
}

#[test]
fn a_journal_goes_on_after_errors_of_the_disk() {
    let Some(disk) = SmallDisk::of_test("full_disk::a_journal_goes_on_after_errors_of_the_disk", DISK).unwrap() else { return };
    run(goes_on(disk, BROKEN));
}
