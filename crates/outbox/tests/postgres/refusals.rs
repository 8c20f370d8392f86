//! The errors for writers and operators.

use shardwise::{Incarnation, SlotSet};
use shardwise_outbox::exercise::StoreHarness;
use shardwise_outbox::store::{FetchRequest, PublisherRegistration};
use shardwise_outbox::{ErrorKind, NewEvent, PAYLOAD_BYTES_MAX, Payload, PostgresConfig, PostgresStore, Store, postgres};
use sqlx::Connection;

use crate::common::Outbox;
use crate::shared::events;

fn me() -> PublisherRegistration {
    PublisherRegistration { publisher: "w1".into(), incarnation: Incarnation::new(1), ttl: std::time::Duration::from_secs(10), slots: 8 }
}

fn request() -> FetchRequest {
    FetchRequest { after: None, events_max: 1_000, bytes_max: 1 << 24, except_slots: vec![], except_aggregates: vec![] }
}

/// Removes the outbox from the database.
async fn revert(conn: &mut sqlx::PgConnection) {
    for migration in postgres::MIGRATIONS.iter().rev() {
        let mut tx = conn.begin().await.unwrap();
        sqlx::raw_sql(migration.down).execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
    }
}

#[tokio::test]
async fn refused_inserts_say_why() {
    let outbox = Outbox::new().await;
    for (row, message) in [
        ("('', '1', 't', 'x')", "aggregatetype must have 1 to 255 bytes"),
        ("(NULL, '1', 't', 'x')", "null value in column \"aggregatetype\""),
        ("('a', '', 't', 'x')", "aggregateid must have 1 to 1024 bytes"),
        ("('a', NULL, 't', 'x')", "null value in column \"aggregateid\""),
        ("('a', repeat('x', 5000), 't', 'x')", "aggregateid must have 1 to 1024 bytes"),
        ("('a', '1', '', 'x')", "type must have 1 to 255 bytes"),
        ("('a', '1', NULL, 'x')", "null value in column \"type\""),
        ("('a', '1', 't', repeat('x', 1048577))", "the payload of a/1 has 1048577 bytes; at most 1048576 are allowed"),
    ] {
        let sql = format!("INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES {row}");
        let error = outbox.database.execute(&sql).await.unwrap_err().to_string();
        assert!(error.contains(message), "{row}: {error}");
    }
    for (headers, message) in [("'[]'", "headers must be a JSON object"), ("'no json'", "invalid input syntax for type json")] {
        let sql = format!("INSERT INTO outbox (aggregatetype, aggregateid, type, headers) VALUES ('a', '1', 't', {headers})");
        let error = outbox.database.execute(&sql).await.unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    outbox.execute("INSERT INTO outbox (aggregatetype, aggregateid, type, id) VALUES ('a', 7, 't', NULL)").await;
    let error = outbox.database.execute("UPDATE outbox SET aggregateid = '8'").await.unwrap_err().to_string();
    assert!(error.contains("cannot be changed: insert another event"), "{error}");
    assert_eq!(outbox.execute("SELECT aggregateid, length(id) FROM outbox").await, [["7", "36"].map(|text| Some(text.into()))]);
}

#[tokio::test]
async fn enqueue_is_part_of_the_applications_transaction_and_places_new_aggregates() {
    let outbox = Outbox::new().await;
    let (store, mut conn) = (outbox.store().await, outbox.connection().await);
    let mut tx = conn.begin().await.unwrap();
    postgres::enqueue(&mut tx, NewEvent::new("order", "1", "OrderPlaced", "{}")).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(store.status().await.unwrap().pending, 0);
    let mut tx = conn.begin().await.unwrap();
    for (event, reported) in [
        (NewEvent::new("", "1", "OrderPlaced", "{}"), "aggregatetype is empty: give it at least one character"),
        (NewEvent::new("order", "1", "OrderPlaced", "a\0b"), "remove it, or give the payload as bytes"),
    ] {
        let refused = postgres::enqueue(&mut tx, event).await.unwrap_err();
        assert!(refused.kind() == ErrorKind::Event && refused.to_string().contains(reported), "{refused}");
    }
    let odd = r#"{"a":"\u0000\\n","b":1.50,"a":"é"}"#;
    let id = postgres::enqueue(&mut tx, NewEvent::new("order", "1", "OrderPlaced", odd)).await.unwrap();
    tx.commit().await.unwrap();
    store.register(&me()).await.unwrap();
    store.take(&me(), &SlotSet::full(8)).await.unwrap();
    let runs = store.fetch(&me(), &request()).await.unwrap().runs;
    let event = &runs[0].events[0];
    assert_eq!((event.id.as_str(), runs[0].events.len()), (id.as_str(), 1), "placed without a publisher");
    assert_eq!(event.payload, Payload::Text(odd.into()), "as it was written, byte for byte");
    let twice = store.enqueue_all(events("x", [1, 1])).await.unwrap_err();
    assert_eq!(twice.to_string(), "an event with this id is in the outbox already");
    let large = store.enqueue_all(vec![NewEvent::new("doc", "1", "Stored", vec![b'x'; PAYLOAD_BYTES_MAX + 1])]).await.unwrap_err();
    assert!(large.to_string().contains("the payload of doc/1 has 1048577 bytes; at most 1048576 are allowed"), "{large}");
    assert_eq!(store.status().await.unwrap().pending, 1, "all or nothing");
}

async fn refused(url: &str) -> (ErrorKind, String) {
    let error = PostgresStore::open(PostgresConfig::from_url(url).unwrap()).await.unwrap_err();
    (error.kind(), error.to_string())
}

#[tokio::test]
async fn what_is_wrong_with_the_database_is_reported_with_what_to_do() {
    let outbox = Outbox::new().await;
    let url = outbox.database.url();
    let (kind, reported) = refused(&format!("{url}_not_there")).await;
    assert!(kind == ErrorKind::Missing && reported.contains("create the database, or check its name"), "{kind:?} {reported}");
    let (kind, reported) = refused("postgres://postgres@127.0.0.1:1/app").await;
    assert!(kind == ErrorKind::Unavailable && reported.contains("127.0.0.1:1/app: the server cannot be reached"), "{kind:?} {reported}");
    let (kind, reported) = refused(&format!("{url}?sslmode=require")).await;
    assert!(kind == ErrorKind::Denied && reported.contains("TLS fails: check sslmode"), "{kind:?} {reported}");
    let (kind, reported) = refused(&format!("{url}?options[search_path]=elsewhere")).await;
    assert!(kind == ErrorKind::Schema && reported.contains("no outbox where its search_path leads"), "{kind:?} {reported}");
    outbox.execute("UPDATE outbox_meta SET schema_version = 99").await;
    for result in [PostgresStore::open(outbox.config()).await, PostgresStore::init(outbox.config()).await] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema);
        let newer = format!("its schema is 99, newer than this version's {}: use a newer shardwise", postgres::SCHEMA_VERSION);
        assert!(error.to_string().contains(&newer), "{error}");
    }
}

#[tokio::test]
async fn a_schema_of_ones_own_works_and_the_way_back_leaves_nothing() {
    let outbox = Outbox::new().await;
    outbox.execute("CREATE SCHEMA app").await;
    let config = PostgresConfig::from_url(&format!("{}?options[search_path]=app", outbox.database.url())).unwrap();
    let store = PostgresStore::init(config).await.unwrap();
    // The writer's search_path does not include it.
    outbox.execute("INSERT INTO app.outbox (aggregatetype, aggregateid, type) VALUES ('a', '1', 't')").await;
    assert_eq!(store.status().await.unwrap().pending, 1);
    assert_eq!(outbox.store().await.status().await.unwrap().pending, 0);
    let mut conn = outbox.connection().await;
    revert(&mut conn).await;
    let left = "SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace),
        (SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace)";
    assert_eq!(outbox.execute(left).await, [["0", "0"].map(|text| Some(text.into()))]);
    outbox.execute("CREATE TABLE outbox (x int)").await;
    let error = PostgresStore::init(outbox.config()).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("it is not ours: rename it"), "{error}");
    outbox.execute("DROP TABLE outbox").await;
    let (one, two) = tokio::join!(PostgresStore::init(outbox.config()), PostgresStore::init(outbox.config()));
    assert!(one.is_ok() && two.is_ok(), "two processes at once: {one:?} {two:?}");
}

/// The files alone, as another migration tool runs them.
#[tokio::test]
async fn the_files_know_when_they_are_not_in_a_transaction() {
    let outbox = Outbox::new().await;
    let mut conn = outbox.connection().await;
    revert(&mut conn).await;
    let up = postgres::MIGRATIONS[0].up;
    let first = up.find("DO $$").unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(up[..first].to_owned())).execute(&mut conn).await.unwrap();
    let error = sqlx::raw_sql(sqlx::AssertSqlSafe(up[first..].to_owned())).execute(&mut conn).await.unwrap_err().to_string();
    assert!(error.contains("run this file in one transaction"), "{error}");
}

const IDLE: &str = "INSERT INTO outbox (aggregatetype, aggregateid, type) VALUES ('idle', gen_random_uuid(), 't');
    DELETE FROM outbox WHERE aggregatetype = 'idle';
    UPDATE outbox_head SET listed = false, done_seq = 1 WHERE aggregate = (SELECT max(aggregate) FROM outbox_head);
    UPDATE outbox_aggregate SET drained_seq = last_seq WHERE key LIKE 'idle/%'";

/// Each grant that an error names is given, until none is missing; no other grants are needed.
#[tokio::test]
async fn a_role_without_rights_learns_the_missing_grant() {
    let outbox = Outbox::new().await;
    let name = outbox.database.name().to_owned();
    outbox
        .execute(&format!("CREATE ROLE pub_{name} LOGIN; CREATE ROLE writer_{name} LOGIN; GRANT INSERT ON outbox TO writer_{name}"))
        .await;
    let url = |role: &str| outbox.database.url().replace("postgres@", &format!("{role}_{name}@"));
    let mut given = Vec::new();
    for _ in 0..12 {
        // An aggregate to forget, so that the rights for that are needed too.
        outbox.execute(IDLE).await;
        let Err(error) = publish_one(&url("pub"), given.len()).await else { break };
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        let text = error.to_string();
        let grant = text.split_once("let their owner run ").unwrap_or_else(|| panic!("{text}")).1.to_owned();
        assert!(grant.ends_with(&format!("TO pub_{name}")), "{grant}");
        outbox.execute(&grant).await;
        given.push(grant);
    }
    publish_one(&url("pub"), 99).await.unwrap();
    assert_eq!(given.len(), 9, "{given:?}");
    let mut writer = sqlx::PgConnection::connect(&url("writer")).await.unwrap();
    postgres::enqueue(&mut writer, NewEvent::new("order", "1", "OrderPlaced", "{}")).await.unwrap();
    sqlx::query("INSERT INTO outbox (aggregatetype, aggregateid, type) VALUES ('a', '1', 't')").execute(&mut writer).await.unwrap();
    let pending = outbox.store().await.status().await.unwrap().pending;
    assert_eq!(pending, 2, "a writer needs nothing but INSERT");
}

/// Everything a publisher does with its store.
async fn publish_one(url: &str, number: usize) -> shardwise_outbox::Result<()> {
    let store = PostgresStore::open(PostgresConfig::from_url(url)?).await?;
    let me = PublisherRegistration { incarnation: Incarnation::new(number as u64 + 100), ..me() };
    store.register(&me).await?;
    store.take(&me, &SlotSet::full(8)).await?;
    store.place_new(10).await?;
    store.fetch(&me, &request()).await?;
    let hold = shardwise_outbox::store::Hold { slot: 0, epoch: 1 };
    let then = shardwise_outbox::store::HeadUpdate::Park { sequence: 1, error: "no".into() };
    let outcome = shardwise_outbox::store::Outcome { aggregate: -1, hold, through: None, then };
    store.record(&me, &[outcome], true).await?;
    store.sweep(std::time::Duration::from_secs(1), 0, 10).await?;
    store.clean(std::time::Duration::from_secs(1), 10).await?;
    store.unblock(None).await?;
    store.status().await?;
    store.leave(&me).await
}

#[tokio::test]
async fn a_clock_that_jumps_by_an_hour_hands_slots_over_and_back_under_higher_epochs() {
    for hours in [1, -1] {
        let database = shardwise_testkit::Postgres::shared().await.unwrap().database().await.unwrap();
        let outbox = Outbox::stopped(&database).await;
        let (store, mine) = (outbox.store().await, me());
        let other = PublisherRegistration { publisher: "w2".into(), incarnation: Incarnation::new(2), ..me() };
        store.register(&mine).await.unwrap();
        let before = store.take(&mine, &SlotSet::full(8)).await.unwrap();
        outbox.execute(&format!("UPDATE test_clock SET at = at + interval '{hours} hours'")).await;
        // No publisher was seen by the new clock, so the first one may take everything, and the fence has risen.
        store.register(&other).await.unwrap();
        let after = store.take(&other, &SlotSet::full(8)).await.unwrap();
        assert_eq!((before.len(), after.len()), (8, 8), "{hours}");
        assert!(before.iter().map(|hold| hold.epoch).max() < after.iter().map(|hold| hold.epoch).min(), "{hours}");
        // After a touch by the new clock, a publisher counts as alive.
        store.touch(&other).await.unwrap();
        store.touch(&mine).await.unwrap();
        assert_eq!(store.take(&mine, &SlotSet::full(8)).await.unwrap(), []);
        outbox.advance(std::time::Duration::from_secs(11)).await;
        store.touch(&mine).await.unwrap();
        assert_eq!(store.take(&mine, &SlotSet::full(8)).await.unwrap().len(), 8, "{hours}");
    }
}
