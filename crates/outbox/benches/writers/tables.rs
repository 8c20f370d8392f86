//! The databases that the runs begin with.

use std::path::Path;
use std::process::Command;

use serde_json::json;
use shardwise_outbox::{PostgresConfig, PostgresStore};
use shardwise_testkit::Database;

use crate::contestants::{EMPTY, GRAPHILE, KNOWN};
use crate::shared::figures::{in_earnest, print_figure};
use crate::shared::peers::{QUEUE, answer, graphile_worker};
use crate::shared::stage::{Shape, Stage, fill};

/// Keeps the database in which every contestant has its tables, all empty. Returns whether graphile-worker is among them.
pub(crate) async fn keep_empty(stage: &Stage) -> bool {
    let database = stage.empty().await;
    PostgresStore::init(PostgresConfig::from_url(&database.url()).unwrap()).await.unwrap().close().await;
    for (name, including) in [("plain", ""), ("checked", "INCLUDING CONSTRAINTS")] {
        database.execute(&like_outbox(name, including)).await.unwrap();
    }
    database.execute(QUEUE).await.unwrap();
    let graphile = in_earnest() && has_graphile_worker(&database);
    stage.keep(&database, EMPTY).await;
    graphile
}

/// Keeps the database whose outbox has one event of each aggregate, which waits.
pub(crate) async fn keep_known(stage: &Stage, aggregates: u64) {
    let database = stage.empty().await;
    fill(&database, Shape { events: aggregates, each: 1 }).await;
    stage.keep(&database, KNOWN).await;
}

/// A table with the columns of the outbox, one index and no trigger, which a writer fills by the same statement. So that its rows are as
/// long as an event's, the columns that a writer need not name are filled here too: the position by an identity, which is the primary
/// key, the id and the time by their defaults. What the outbox's own trigger fills stays NULL. CHECK constraints are copied with
/// `INCLUDING CONSTRAINTS` alone.
fn like_outbox(name: &str, including: &str) -> String {
    format!(
        "CREATE TABLE {name} (LIKE outbox {including});
         DO $$
         DECLARE
             filled name;
         BEGIN
             FOR filled IN SELECT attname FROM pg_attribute WHERE attrelid = '{name}'::regclass AND attnum > 0 AND attnotnull LOOP
                 EXECUTE format('ALTER TABLE {name} ALTER COLUMN %I DROP NOT NULL', filled);
             END LOOP;
         END $$;
         ALTER TABLE {name} ALTER COLUMN position SET NOT NULL;
         ALTER TABLE {name} ALTER COLUMN position ADD GENERATED ALWAYS AS IDENTITY, ADD PRIMARY KEY (position);
         ALTER TABLE {name} ALTER COLUMN id SET DEFAULT gen_random_uuid()::text, ALTER COLUMN created_at SET DEFAULT clock_timestamp()"
    )
}

/// Makes graphile-worker create its schema. A machine that cannot run it measures the others.
fn has_graphile_worker(database: &Database) -> bool {
    let url = database.url();
    let create = |folder: &Path| {
        let arguments = ["node_modules/graphile-worker/dist/cli.js", "--schema-only", "--connection", &url];
        answer(Command::new("node").args(arguments).current_dir(folder))
    };
    match graphile_worker().and_then(|folder| create(&folder)) {
        Ok(_) => true,
        Err(missing) => {
            print_figure(&json!({"name": GRAPHILE.name, "missing": missing}));
            false
        }
    }
}
