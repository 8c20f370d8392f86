//! Outboxes of earlier versions: one created with an earlier file continues with all its data.

use shardwise_outbox::exercise::StoreHarness as _;
use shardwise_outbox::{PostgresStore, postgres};
use shardwise_testkit::Postgres;

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
        let mut arrived: Vec<_> = delivered(&outbox).await.into_iter().map(|event| (event.aggregate_id, event.sequence)).collect();
        arrived.sort();
        let all = [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 1), ("b", 2), ("c", 1)].map(|(id, sequence)| (id.to_owned(), sequence));
        assert_eq!(arrived, all, "{also}");
        // Back to schema 1, where writers continue, and forward again.
        for migration in postgres::MIGRATIONS[1..].iter().rev() {
            run(&outbox, migration.down).await;
        }
        outbox.insert(events("a", 5..=5)).await;
        PostgresStore::init(outbox.config()).await.unwrap().close().await;
        assert_eq!(delivered(&outbox).await.len(), 1, "{also}");
    }
}

/// One role owns the outbox, and an administrator upgrades it.
#[tokio::test]
async fn what_schema_2_adds_belongs_to_the_owner_of_the_outbox() {
    let outbox = Outbox::of(&Postgres::shared().await.unwrap().database().await.unwrap());
    let role = format!("owner_{}", outbox.database.name());
    outbox.execute(&format!("CREATE ROLE {role}; GRANT CREATE, USAGE ON SCHEMA public TO {role}")).await;
    run(&outbox, &format!("SET LOCAL ROLE {role}; {}", postgres::MIGRATIONS[0].up)).await;
    PostgresStore::init(outbox.config()).await.unwrap().close().await;
    outbox.insert(events("a", 1..=1)).await;
    let others =
        format!("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND pg_get_userbyid(relowner) <> '{role}'");
    assert_eq!(outbox.execute(&others).await, Vec::<Vec<Option<String>>>::new());
}
