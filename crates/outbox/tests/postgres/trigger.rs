//! What the trigger checks in place of constraints, and two writers of an aggregate that does not exist yet.

use std::time::Duration;

use shardwise_outbox::exercise::StoreHarness as _;
use shardwise_outbox::{NewEvent, Payload, PostgresStore, postgres};
use shardwise_testkit::Postgres;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::common::{LISTED, Outbox, insert};
use crate::publishing::delivered;
use crate::shared::{Said, events, eventually, within};

const LIMIT: Duration = Duration::from_mins(3);
const HEADERS: &str = "headers must be a JSON object of at most 65536 bytes";

async fn attempt(conn: &mut PgConnection, sql: &str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(conn).await.map(drop)
}

/// It is refused as by a constraint of that name.
async fn violates(conn: &mut PgConnection, sql: &str, constraint: &str) {
    let error = attempt(conn, sql).await.unwrap_err();
    let refusal = error.as_database_error().unwrap_or_else(|| panic!("{sql}: {error}"));
    let found = (refusal.code().unwrap_or_default().into_owned(), refusal.constraint(), refusal.table());
    assert_eq!(found, ("23514".to_owned(), Some(constraint), Some("outbox")), "{sql}: {error}");
    assert_eq!(refusal.message(), format!("new row for relation \"outbox\" violates check constraint \"{constraint}\""), "{sql}");
}

#[tokio::test]
async fn each_column_is_checked_in_bytes_and_the_first_name_is_reported() {
    let outbox = Outbox::new().await;
    let mut conn = outbox.connection().await;
    let inserting =
        |columns: &str, values: &str| format!("INSERT INTO outbox (aggregatetype, aggregateid, type{columns}) VALUES ({values})");
    for (columns, values, constraint) in [
        ("", "repeat('é', 128), '1', 't'", "aggregatetype must have 1 to 255 bytes"),
        ("", "'a', repeat('é', 513), 't'", "aggregateid must have 1 to 1024 bytes"),
        ("", "'a', '1', repeat('é', 128)", "type must have 1 to 255 bytes"),
        (", id", "'a', '1', 't', ''", "id must have 1 to 255 bytes"),
        (", id, payload", "'a', '1', 't', repeat('é', 128), ''", "id must have 1 to 255 bytes"),
        (", payload, payload_bytes", "'a', '1', 't', '', ''", "give payload or payload_bytes, not both"),
        (", created_at, payload", "'a', '1', 't', 'infinity', '{}'", "created_at must be a time"),
        (", headers, payload", "'a', '1', 't', '[1]', '{}'", HEADERS),
        (", headers", "'a', '1', 't', 'null'", HEADERS),
        (", headers", "'a', '1', 't', '{\"a\":\"' || repeat('x', 65529) || '\"}'", HEADERS),
        (", id, headers", "'', '', '', '', '7'", "aggregateid must have 1 to 1024 bytes"),
    ] {
        violates(&mut conn, &inserting(columns, values), constraint).await;
    }
    let error = attempt(&mut conn, &inserting(", headers", "'a', '1', 't', '{'")).await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("22P02"), "{error}");
    // The largest of each, together and one by one.
    for (columns, values) in [
        ("", "repeat('x', 255), repeat('x', 1024), repeat('x', 255)"),
        (", id, payload", "'a', '1', 't', repeat('é', 127), repeat('x', 1048576)"),
        (", headers", "'a', '1', 't', '{\"a\":\"' || repeat('x', 65528) || '\"}'"),
        (", payload_bytes, created_at", "'a', '1', 't', '', '0001-01-01 BC'"),
    ] {
        attempt(&mut conn, &inserting(columns, values)).await.unwrap();
    }
    // What comes compressed out of another table has its whole length.
    attempt(&mut conn, "CREATE TABLE staged AS SELECT repeat('x', 3000) AS x, repeat('y', 2000000) AS y").await.unwrap();
    let staged = |values: &str| format!("INSERT INTO outbox (aggregatetype, aggregateid, type, payload) SELECT {values} FROM staged");
    violates(&mut conn, &staged("'a', '1', x, '{}'"), "type must have 1 to 255 bytes").await;
    violates(&mut conn, &staged("'a', x, 't', '{}'"), "aggregateid must have 1 to 1024 bytes").await;
    let error = attempt(&mut conn, &staged("'a', '1', 't', y")).await.unwrap_err().to_string();
    assert!(error.contains("has 2000000 bytes; at most 1048576 are allowed"), "{error}");
    assert_eq!(outbox.execute("SELECT 1 FROM outbox").await.len(), 4);
}

/// An operator who mends an event by hand must not make one that no publisher can read.
#[tokio::test]
async fn an_update_by_hand_is_checked_as_an_insert_is() {
    let outbox = Outbox::new().await;
    outbox.insert(events("a", 1..=1)).await;
    let mut conn = outbox.connection().await;
    for (change, constraint) in [
        ("headers = '7'", HEADERS),
        ("headers = '{\"a\":\"' || repeat('x', 65529) || '\"}'", HEADERS),
        ("payload = 'x', payload_bytes = 'x'", "give payload or payload_bytes, not both"),
        ("created_at = '-infinity'", "created_at must be a time"),
    ] {
        violates(&mut conn, &format!("UPDATE outbox SET {change}"), constraint).await;
    }
    let upsert = "INSERT INTO outbox (id, aggregatetype, aggregateid, type) VALUES ('a-1', 'order', 'a', 't')
        ON CONFLICT (id) DO UPDATE SET headers = '[]'";
    violates(&mut conn, upsert, HEADERS).await;
    for change in ["headers = '{\"a\":\"b\"}', payload = 'mended'", "created_at = now()", "headers = NULL", "parked_error = 'no'"] {
        attempt(&mut conn, &format!("UPDATE outbox SET {change}")).await.unwrap();
    }
    assert_eq!(delivered(&outbox).await[0].payload, Payload::Text("mended".into()));
}

#[tokio::test]
async fn the_limit_of_a_payload_is_asked_for_above_4096_bytes_and_cannot_be_lower() {
    let outbox = Outbox::of(&Postgres::shared().await.unwrap().database().await.unwrap());
    for migration in &postgres::MIGRATIONS[..5] {
        outbox.execute(&format!("BEGIN; {}; COMMIT", migration.up)).await;
    }
    outbox.execute("UPDATE outbox_meta SET payload_bytes_max = 10").await;
    let (lines, guard) = Said::start();
    PostgresStore::init(outbox.config()).await.unwrap().close().await;
    drop(guard);
    let told = "payload_bytes_max in outbox_meta was 10, and is 4096 now";
    assert!(lines.lines().iter().any(|line| line.contains("WARN") && line.contains(told)), "{:?}", lines.lines());
    let mut conn = outbox.connection().await;
    let error = attempt(&mut conn, "UPDATE outbox_meta SET payload_bytes_max = 4095").await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().constraint(), Some("payload_bytes_max must be at least 4096"), "{error}");
    let inserting = |column: &str, bytes: u32| {
        let value = format!("repeat('x', {bytes})");
        let value = if column == "payload" { value } else { format!("convert_to({value}, 'UTF8')") };
        format!("INSERT INTO outbox (aggregatetype, aggregateid, type, {column}) VALUES ('a', '1', 't', {value})")
    };
    for limit in [4_096, 5_000] {
        attempt(&mut conn, &format!("UPDATE outbox_meta SET payload_bytes_max = {limit}")).await.unwrap();
        for column in ["payload", "payload_bytes"] {
            attempt(&mut conn, &inserting(column, limit)).await.unwrap();
            let error = attempt(&mut conn, &inserting(column, limit + 1)).await.unwrap_err().to_string();
            assert!(error.contains(&format!("has {} bytes; at most {limit} are allowed", limit + 1)), "{column}: {error}");
        }
    }
}

/// The second one waits until the first one has ended, and then finds the aggregate, or makes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_writers_make_one_new_aggregate() {
    for ending in ["COMMIT", "ROLLBACK"] {
        let outbox = Outbox::new().await;
        let (mut one, mut two) = (outbox.connection().await, outbox.connection().await);
        let event = |id: &str| NewEvent::new("order", "new", "OrderPlaced", "{}").with_id(id);
        let mut first = one.begin().await.unwrap();
        insert(&mut first, event("first")).await.unwrap();
        let second = tokio::spawn(async move { insert(&mut two, event("second")).await });
        let waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        eventually("the second one waits", LIMIT, async || outbox.execute(waits).await.len() == 1).await;
        if ending == "COMMIT" {
            first.commit().await.unwrap();
        } else {
            first.rollback().await.unwrap();
        }
        within("the second one", LIMIT, second).await.unwrap().unwrap();
        assert_eq!(outbox.execute(LISTED).await.len(), 1, "{ending}");
        let ids: Vec<_> = delivered(&outbox).await.into_iter().map(|event| event.id).collect();
        let expected: &[&str] = if ending == "COMMIT" { &["first", "second"] } else { &["second"] };
        assert_eq!(ids, expected, "{ending}");
    }
}
