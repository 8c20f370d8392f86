//! Outboxes of earlier versions: one created with an earlier file continues with all its data.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use shardwise_outbox::exercise::StoreHarness as _;
use shardwise_outbox::inbox::postgres::create_table;
use shardwise_outbox::{Delivery, PostgresStore, postgres};
use shardwise_testkit::Postgres;
use sqlx::{AssertSqlSafe, Connection as _};

use crate::common::Outbox;
use crate::publishing::delivered;
use crate::shared::events;

/// A part that `0001` contained for a while, and that `0002` contains now.
const FOR_A_WHILE: &str = "ALTER TABLE outbox_meta ADD COLUMN notify boolean NOT NULL DEFAULT false;
    ALTER TABLE outbox_head DROP COLUMN ready;
    ALTER TABLE outbox_head ADD COLUMN ready boolean GENERATED ALWAYS AS (listed AND blocked_at IS NULL AND retry_at IS NULL) STORED,
        ADD COLUMN waiting boolean GENERATED ALWAYS AS (listed AND blocked_at IS NULL AND retry_at IS NOT NULL) STORED;
    CREATE INDEX outbox_head_ready ON outbox_head (hash, aggregate) WHERE ready;
    CREATE INDEX outbox_head_waiting ON outbox_head (retry_at) WHERE waiting;";

/// Runs a file as another migration tool does.
async fn run(outbox: &Outbox, sql: &str) {
    outbox.execute(&format!("BEGIN; {sql}; COMMIT")).await;
}

/// The ids of each aggregate's events in the order in which they came, whose sequences must rise.
fn ids_in_order(arrived: Vec<Delivery>) -> BTreeMap<String, Vec<String>> {
    let (mut ids, mut last) = (BTreeMap::<String, Vec<String>>::new(), BTreeMap::new());
    for event in arrived {
        let before = last.insert(event.aggregate_id.clone(), event.sequence);
        assert!(before < Some(event.sequence), "{} behind {before:?}", event.sequence);
        ids.entry(event.aggregate_id).or_default().push(event.id);
    }
    ids
}

/// The same for these aggregates with these numbers, as [`events`] names them.
fn ids(all: &[(&str, RangeInclusive<u64>)]) -> BTreeMap<String, Vec<String>> {
    all.iter().map(|(key, numbers)| ((*key).to_owned(), numbers.clone().map(|n| format!("{key}-{n}")).collect())).collect()
}

/// The statements of a file as psql sends them.
fn statements(file: &str) -> Vec<String> {
    let (mut statements, mut current, mut quoted) = (Vec::new(), String::new(), false);
    for line in file.lines() {
        current += line;
        current.push('\n');
        quoted ^= line.matches("$$").count() % 2 == 1;
        if !quoted && line.ends_with(';') && !line.trim_start().starts_with("--") {
            statements.push(std::mem::take(&mut current));
        }
    }
    assert!(!quoted && current.trim().is_empty(), "{current}");
    statements
}

/// One statement at a time, as by `psql --single-transaction`, and twice.
#[tokio::test]
async fn each_file_runs_one_statement_at_a_time_and_the_way_back_leaves_nothing() {
    let outbox = Outbox::of(&Postgres::shared().await.unwrap().database().await.unwrap());
    let mut conn = outbox.connection().await;
    for _ in 0..2 {
        let up = postgres::MIGRATIONS.iter().map(|migration| migration.up);
        for file in up.chain(postgres::MIGRATIONS.iter().rev().map(|migration| migration.down)) {
            let mut tx = conn.begin().await.unwrap();
            for statement in statements(file) {
                sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *tx).await.unwrap();
            }
            tx.commit().await.unwrap();
        }
        let left = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace
            UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace";
        assert_eq!(outbox.execute(left).await, Vec::<Vec<Option<String>>>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outbox_of_schema_1_goes_on_with_what_is_pending() {
    for also in ["", FOR_A_WHILE] {
        let outbox = Outbox::of(&Postgres::shared().await.unwrap().database().await.unwrap());
        run(&outbox, postgres::MIGRATIONS[0].up).await;
        run(&outbox, also).await;
        outbox.insert([events("a", 1..=3), events("b", 1..=2)].concat()).await;
        outbox
            .execute("UPDATE outbox_head SET retry_at = now() WHERE aggregate = (SELECT id FROM outbox_aggregate WHERE key = 'order/b')")
            .await;
        PostgresStore::init(outbox.config()).await.unwrap().close().await;
        outbox.insert([events("a", 4..=4), events("c", 1..=1)].concat()).await;
        let arrived = ids_in_order(delivered(&outbox).await);
        assert_eq!(arrived, ids(&[("a", 1..=4), ("b", 1..=2), ("c", 1..=1)]), "{also}");
        // Back to schema 1, where writers continue, and forward again.
        for migration in postgres::MIGRATIONS[1..].iter().rev() {
            run(&outbox, migration.down).await;
        }
        outbox.insert([events("a", 5..=5), events("c", 2..=3), events("d", 1..=1)].concat()).await;
        PostgresStore::init(outbox.config()).await.unwrap().close().await;
        outbox.insert([events("a", 6..=6), events("d", 2..=2)].concat()).await;
        let arrived = ids_in_order(delivered(&outbox).await);
        assert_eq!(arrived, ids(&[("a", 5..=6), ("c", 2..=3), ("d", 1..=2)]), "{also}");
    }
}

/// One role owns the outbox, and an administrator upgrades it.
#[tokio::test]
async fn what_migrations_add_belongs_to_the_owner_of_the_outbox_and_serves_its_publishers() {
    let outbox = Outbox::of(&Postgres::shared().await.unwrap().database().await.unwrap());
    let role = format!("owner_{}", outbox.database.name());
    outbox.execute(&format!("CREATE ROLE {role}; GRANT CREATE, USAGE ON SCHEMA public TO {role}")).await;
    run(&outbox, &format!("SET LOCAL ROLE {role}; {}", postgres::MIGRATIONS[0].up)).await;
    for migration in &postgres::MIGRATIONS[1..4] {
        run(&outbox, migration.up).await;
    }
    let publisher = format!("publisher_{}", outbox.database.name());
    outbox.execute(&format!("CREATE ROLE {publisher}; GRANT SELECT, UPDATE ON outbox_floor TO {publisher}")).await;
    PostgresStore::init(outbox.config()).await.unwrap().close().await;
    outbox.insert(events("a", 1..=1)).await;
    let others = format!(
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND pg_get_userbyid(relowner) <> '{role}'
            UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND pg_get_userbyid(proowner) <> '{role}'"
    );
    assert_eq!(outbox.execute(&others).await, Vec::<Vec<Option<String>>>::new());
    let rights = format!(
        "SELECT has_sequence_privilege('{publisher}', s, 'SELECT'), has_sequence_privilege('{publisher}', s, 'UPDATE')
         FROM unnest(ARRAY['outbox_order', 'outbox_asleep', 'outbox_woken']) AS s"
    );
    let expected = [["t", "f"], ["t", "t"], ["t", "t"]].map(|row| row.map(|right| Some(right.to_owned())));
    assert_eq!(outbox.execute(&rights).await, expected, "whoever may raise the floor may fall asleep");
    // Its owner alone upgrades it as well, and goes back.
    let alone = Outbox::of(&Postgres::shared().await.unwrap().database().await.unwrap());
    alone.execute(&format!("GRANT CREATE, USAGE ON SCHEMA public TO {role}")).await;
    let up = postgres::MIGRATIONS.iter().map(|migration| migration.up);
    for file in up.chain(postgres::MIGRATIONS.iter().rev().map(|migration| migration.down)) {
        run(&alone, &format!("SET LOCAL ROLE {role}; {file}")).await;
    }
}

/// An upgrade of the operating system changes the order of texts in other collations. An index then misses what it has: an aggregate would
/// get a second row, and a second order.
#[tokio::test]
async fn no_index_depends_on_the_collations_of_the_operating_system() {
    let outbox = Outbox::new().await;
    create_table(&mut outbox.connection().await).await.unwrap();
    let dependent = "SELECT indexrelid::regclass::text FROM pg_index JOIN pg_class AS t ON t.oid = indrelid
        WHERE relnamespace = 'public'::regnamespace AND EXISTS (SELECT 1 FROM unnest(indcollation::oid[]) AS c
            WHERE c <> 0 AND c <> 'pg_catalog.\"C\"'::regcollation) ORDER BY 1";
    assert_eq!(outbox.execute(dependent).await, Vec::<Vec<Option<String>>>::new());
}
