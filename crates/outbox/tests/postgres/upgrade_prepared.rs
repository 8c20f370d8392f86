//! The upgrade to schema 6 beside a prepared transaction that has written under schema 4: it holds its locks without a session.

use std::sync::Arc;
use std::time::Duration;

use shardwise::SlotSet;
use shardwise_outbox::postgres;
use shardwise_testkit::{Postgres, PostgresOptions};
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::common::Outbox;
use crate::shared::{SLOTS, eventually, within};
use crate::upgrade::{Log, migrated, migrating, newer, of_schema_4_on, stays_open, write};
use crate::writers::waits;

const LIMIT: Duration = Duration::from_mins(3);
const KEPT: Duration = Duration::from_hours(1);
/// How many events of another aggregate are written meanwhile.
const MEANWHILE: usize = 20;

async fn server(options: PostgresOptions) -> Arc<Postgres> {
    Postgres::start(options.with_setting("max_prepared_transactions", "5")).await.unwrap()
}

/// In a transaction of its own.
async fn committed(conn: &mut PgConnection, aggregate: &str) {
    let mut tx = conn.begin().await.unwrap();
    write(&mut tx, aggregate).await.unwrap();
    tx.commit().await.unwrap();
}

async fn schema(outbox: &Outbox) -> Option<String> {
    outbox.execute("SELECT schema_version FROM outbox_meta").await.remove(0).remove(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_transaction_is_named_and_waited_for_and_its_event_arrives() {
    let (outbox, log) = (of_schema_4_on(&server(PostgresOptions::default()).await).await, Log::default());
    let [both, numbers, ..] = &postgres::MIGRATIONS[4..] else { panic!("schemas 5 and 6") };
    let mut conn = outbox.connection().await;
    committed(&mut conn, "held").await;
    let mut prepared = stays_open(&outbox, "held").await;
    prepared.execute("PREPARE TRANSACTION 'p'").await.unwrap();
    migrated("up to 5", migrating(&outbox, both.up)).await;
    let impatient = numbers.up.replace("interval '10 minutes'", "interval '100 milliseconds'");
    assert_ne!(impatient, numbers.up);
    let refused = within("it gives up", LIMIT, migrating(&outbox, &impatient)).await.unwrap().unwrap_err();
    let said = "transactions that read it or write to it have been open for 10 minutes (a prepared transaction, see pg_prepared_xacts): \
                end them, then run this again";
    assert!(refused.contains(said), "{refused}");
    assert_eq!(schema(&outbox).await.as_deref(), Some("5"));

    let running = newer(&outbox, "newer", SlotSet::full(SLOTS), &log, KEPT).await;
    let migration = migrating(&outbox, numbers.up);
    let sleeping = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
    eventually("the migration waits", LIMIT, async || !outbox.execute(sleeping).await.is_empty()).await;
    for _ in 0..MEANWHILE {
        within("another aggregate", LIMIT, committed(&mut conn, "free")).await;
    }
    let mut second = outbox.connection().await;
    let later = tokio::spawn(async move { committed(&mut second, "held").await });
    waits(&outbox, 1).await;
    eventually("what is committed arrives", LIMIT, async || log.different() == 1 + MEANWHILE).await;
    assert!(!migration.is_finished() && !later.is_finished(), "both wait for the prepared transaction");
    outbox.execute("COMMIT PREPARED 'p'").await;
    within("the later writer of its aggregate", LIMIT, later).await.unwrap();
    migrated("up to 6", migration).await;
    assert_eq!(schema(&outbox).await.as_deref(), Some("6"));
    committed(&mut conn, "held").await;
    log.is_complete(&outbox).await;
    assert_eq!(log.different(), 4 + MEANWHILE, "the prepared one is among them");
    running.stop().await;
}

/// The migration waits for transactions by the numbers that `pg_locks` has for them. The aggregate has the highest numbers: a migration
/// that missed the transaction would set the next sequence below those that it has given.
async fn prepared_meanwhile(options: PostgresOptions) {
    let (outbox, log) = (of_schema_4_on(&server(options).await).await, Log::default());
    let [both, numbers, ..] = &postgres::MIGRATIONS[4..] else { panic!("schemas 5 and 6") };
    let mut prepared = stays_open(&outbox, "held").await;
    for _ in 0..MEANWHILE {
        write(&mut prepared, "held").await.unwrap();
    }
    migrated("up to 5", migrating(&outbox, both.up)).await;
    outbox.execute("CREATE SEQUENCE looks; CREATE SEQUENCE attempts").await;
    let counting = [
        ("PERFORM pg_sleep(0.05);", "PERFORM pg_sleep(0.05), nextval('looks');"),
        ("highest := (", "PERFORM nextval('attempts'); highest := ("),
    ];
    let counted = counting.iter().fold(numbers.up.to_owned(), |file, (from, to)| {
        assert_eq!(file.matches(from).count(), 1, "{from}");
        file.replace(from, to)
    });
    let migration = migrating(&outbox, &counted);
    let looks = async || outbox.execute("SELECT last_value FROM looks").await[0][0].as_deref().unwrap().parse::<u64>().unwrap();
    eventually("the migration waits", LIMIT, async || looks().await >= 2).await;
    prepared.execute("PREPARE TRANSACTION 'p'").await.unwrap();
    let before = looks().await;
    eventually("it goes on looking", LIMIT, async || looks().await >= before + 3).await;
    let attempted = outbox.execute("SELECT 1 FROM attempts WHERE is_called").await;
    assert!(attempted.is_empty() && !migration.is_finished(), "it waits for the prepared transaction");
    outbox.execute("COMMIT PREPARED 'p'").await;
    migrated("up to 6", migration).await;
    let mut conn = outbox.connection().await;
    committed(&mut conn, "held").await;
    let running = newer(&outbox, "newer", SlotSet::full(SLOTS), &log, KEPT).await;
    log.is_complete(&outbox).await;
    assert_eq!(log.different(), 2 + MEANWHILE);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_is_prepared_while_the_migration_waits_is_waited_for_too() {
    prepared_meanwhile(PostgresOptions::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_server_waits_for_a_transaction_that_is_prepared_meanwhile_too() {
    prepared_meanwhile(PostgresOptions::default().oldest()).await;
}
