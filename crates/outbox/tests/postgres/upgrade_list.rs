//! What the migrations of the writers' list wait for, and what they refuse.

use std::time::Duration;

use shardwise_outbox::exercise::StoreHarness as _;
use shardwise_outbox::postgres;
use sqlx::Executor as _;

use crate::common::Outbox;
use crate::shared::{events, eventually};
use crate::upgrade::{migrated, migrating, of_schema_4};

const LIMIT: Duration = Duration::from_mins(1);

/// It needs more than the table of events: a publisher in the middle of a mark has rows of its own list, and a reader the other table.
#[tokio::test]
async fn the_way_down_waits_for_publishers_and_readers_that_have_not_come_to_the_events() {
    const ASLEEP: &str = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
    let [.., numbers, forget, new_first] = &postgres::MIGRATIONS[..] else { panic!("schemas 6 to 8") };
    for holds in
        ["INSERT INTO outbox_head (aggregate, done_seq) SELECT id, 0 FROM outbox_aggregate", "SELECT count(*) FROM outbox_aggregate"]
    {
        let outbox = Outbox::new().await;
        outbox.insert(events("a", 1..=1)).await;
        for down in [new_first.down, forget.down] {
            migrated("down to 6", migrating(&outbox, down)).await;
        }
        let mut other = outbox.connection().await;
        other.execute("BEGIN").await.unwrap();
        other.execute(holds).await.unwrap();
        let migration = migrating(&outbox, numbers.down);
        eventually("it waits", LIMIT, async || migration.is_finished() || !outbox.execute(ASLEEP).await.is_empty()).await;
        other.execute("COMMIT").await.unwrap();
        migrated(holds, migration).await;
    }
}

#[tokio::test]
async fn an_index_that_was_not_made_to_its_end_is_refused() {
    let outbox = of_schema_4().await;
    let [both, numbers, ..] = &postgres::MIGRATIONS[4..] else { panic!("schemas 5 and 6") };
    migrated("up to 5", migrating(&outbox, both.up)).await;
    outbox.execute("CREATE INDEX outbox_aggregate_listed ON outbox_aggregate (last_seq, id) WHERE last_seq <> drained_seq").await;
    outbox.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox_aggregate_listed'::regclass").await;
    let refused = migrating(&outbox, numbers.up).await.unwrap().unwrap_err();
    assert!(refused.contains("the index outbox_aggregate_listed is not valid"), "{refused}");
    outbox.execute("DROP INDEX outbox_aggregate_listed").await;
    migrated("up to 6", migrating(&outbox, numbers.up)).await;
}
