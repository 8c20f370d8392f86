//! A session that writes first events of aggregates guesses that the next one is a first one too: what follows where it is wrong. And the
//! ids that no writer gives.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use shardwise_outbox::exercise::StoreHarness as _;
use shardwise_outbox::{NewEvent, Store as _, postgres};
use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};

use crate::common::{Outbox, insert};
use crate::publishing::delivered;
use crate::shared::{events, within};
use crate::strikes::{holder, number, read};
use crate::writers::waits;

const LIMIT: Duration = Duration::from_mins(3);
/// Whether each aggregate's events are in the order in which they were written, one after the other.
const IN_ORDER: &str = "SELECT bool_and(p) FROM (SELECT o.position > lag(o.position) OVER (PARTITION BY aggregate ORDER BY seq) AS p
    FROM outbox AS o) AS x";

/// What the session expects.
async fn expects_new(conn: &mut PgConnection) -> bool {
    let guess = "SELECT coalesce(current_setting('shardwise.new_aggregates', true), '')";
    sqlx::query_scalar::<_, String>(guess).fetch_one(conn).await.unwrap() == "on"
}

/// Creates aggregates until the session guesses.
async fn until_it_guesses(conn: &mut PgConnection) {
    static CREATED: AtomicU64 = AtomicU64::new(0);
    for _ in 0..1_000 {
        write(conn, &format!("created-{}", CREATED.fetch_add(1, Ordering::Relaxed)), 1).await;
        if expects_new(conn).await {
            return;
        }
    }
    panic!("it has created 1,000 aggregates and does not guess");
}

async fn write(conn: &mut PgConnection, aggregate: &str, number: u64) {
    insert(conn, events(aggregate, number..=number).remove(0)).await.unwrap();
}

async fn arrived(outbox: &Outbox) -> Vec<String> {
    delivered(outbox).await.into_iter().map(|event| event.id).collect()
}

#[tokio::test]
async fn the_guess_begins_with_new_aggregates_ends_with_a_known_one_and_outlives_the_transaction_that_commits() {
    let outbox = Outbox::new().await;
    let mut conn = outbox.connection().await;
    assert!(!expects_new(&mut conn).await);
    until_it_guesses(&mut conn).await;
    for (aggregate, number, then) in [("a", 1, true), ("b", 1, true), ("a", 2, false), ("b", 2, false)] {
        write(&mut conn, aggregate, number).await;
        assert_eq!(expects_new(&mut conn).await, then, "{aggregate}-{number}");
    }
    until_it_guesses(&mut conn).await;
    let mut tx = conn.begin().await.unwrap();
    write(&mut tx, "b", 3).await;
    assert!(!expects_new(&mut tx).await);
    tx.rollback().await.unwrap();
    assert!(expects_new(&mut conn).await);
    // All in one statement, with aggregates that come twice.
    let rows = ["e", "e", "b", "f", "a"].map(|name| format!("('order', '{name}', 'OrderChanged')")).join(", ");
    let statement = format!("INSERT INTO outbox (aggregatetype, aggregateid, type) VALUES {rows}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut conn).await.unwrap();
    let keys = "SELECT count(DISTINCT aggregateid) FROM outbox";
    for sql in ["SELECT count(*) FROM outbox_aggregate", "SELECT count(DISTINCT (aggregate, aggregateid)) FROM outbox"] {
        assert_eq!(number(&outbox, sql).await, number(&outbox, keys).await, "{sql}");
    }
    assert_eq!(outbox.execute(IN_ORDER).await, [[Some("t".to_owned())]]);
    let written = number(&outbox, "SELECT count(*) FROM outbox").await;
    assert_eq!(i64::try_from(arrived(&outbox).await.len()), Ok(written));
}

/// Of an aggregate that all publishers have put off, which its next event lists again.
#[tokio::test]
async fn a_wrong_guess_finds_an_aggregate_that_was_struck_off() {
    let outbox = Outbox::new().await;
    outbox.insert(events("a", 1..=1)).await;
    outbox.execute("INSERT INTO outbox_head (aggregate, listed, done_seq) SELECT id, false, drained_seq FROM outbox_aggregate").await;
    let (store, me) = holder(&outbox).await;
    let outcomes = read(&store, &me).await;
    assert_eq!(store.record(&me, &outcomes, false).await.unwrap(), []);
    store.leave(&me).await.unwrap();
    assert_eq!(number(&outbox, "SELECT count(*) FROM outbox_aggregate WHERE last_seq = drained_seq").await, 1, "it keeps its row");
    let mut conn = outbox.connection().await;
    until_it_guesses(&mut conn).await;
    write(&mut conn, "a", 2).await;
    assert!(!expects_new(&mut conn).await);
    let arrived = arrived(&outbox).await;
    assert!(arrived.contains(&"a-2".to_owned()) && !arrived.contains(&"a-1".to_owned()), "{arrived:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_guess_waits_for_the_writer_before_it_and_comes_behind() {
    let outbox = Outbox::new().await;
    outbox.insert(events("old", 1..=1)).await;
    for level in ["READ COMMITTED", "REPEATABLE READ"] {
        let (mut one, mut two) = (outbox.connection().await, outbox.connection().await);
        until_it_guesses(&mut two).await;
        // Of an aggregate that is listed, and of one that the first writer creates.
        for (aggregate, fails) in [("old".to_owned(), false), (format!("created {level}"), level == "REPEATABLE READ")] {
            two.execute("SET shardwise.new_aggregates = 'on'").await.unwrap();
            let mut first = one.begin().await.unwrap();
            insert(&mut first, NewEvent::new("order", &aggregate, "OrderChanged", "{}")).await.unwrap();
            let (begin, second) = (format!("BEGIN ISOLATION LEVEL {level}; SELECT 1 FROM outbox_meta"), aggregate.clone());
            let behind = tokio::spawn(async move {
                sqlx::raw_sql(sqlx::AssertSqlSafe(begin)).execute(&mut two).await.unwrap();
                let done = insert(&mut two, NewEvent::new("order", &second, "OrderChanged", "{}")).await;
                two.execute(if done.is_ok() { "COMMIT" } else { "ROLLBACK" }).await.unwrap();
                (two, done)
            });
            waits(&outbox, 1).await;
            first.commit().await.unwrap();
            let (back, done) = within("the second writer ends", LIMIT, behind).await.unwrap();
            two = back;
            assert_eq!(done.is_err(), fails, "{level}, {aggregate}: {done:?}");
            if fails {
                // Try again, as with any other row.
                assert_eq!(crate::writers::code(&done.unwrap_err()), "40001");
            }
        }
    }
    assert_eq!(outbox.execute(IN_ORDER).await, [[Some("t".to_owned())]]);
    let written = number(&outbox, "SELECT count(*) FROM outbox WHERE aggregateid NOT LIKE 'created-%'").await;
    assert_eq!(written, 1 + 4 + 3);
    let all = number(&outbox, "SELECT count(*) FROM outbox").await;
    assert_eq!(i64::try_from(arrived(&outbox).await.len()), Ok(all));
}

/// The row that its snapshot shows is gone: without the guess this is 40001, and with it the aggregate is made anew.
#[tokio::test]
async fn a_guess_under_an_older_snapshot_makes_a_forgotten_aggregate_anew() {
    let outbox = Outbox::new().await;
    outbox.insert(events("a", 1..=1)).await;
    let mut conn = outbox.connection().await;
    conn.execute("SET shardwise.new_aggregates = 'on'; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM outbox_aggregate")
        .await
        .unwrap();
    assert_eq!(arrived(&outbox).await, ["a-1"]);
    write(&mut conn, "a", 2).await;
    conn.execute("COMMIT").await.unwrap();
    assert_eq!(arrived(&outbox).await, ["a-2"]);
    assert_eq!(
        number(&outbox, "SELECT seq FROM outbox WHERE id = 'a-2'")
            .await
            .cmp(&number(&outbox, "SELECT seq FROM outbox WHERE id = 'a-1'").await),
        std::cmp::Ordering::Greater
    );
}

#[tokio::test]
async fn ids_that_no_writer_gives_are_uuids_that_sort_by_time() {
    let outbox = Outbox::new().await;
    let mut conn = outbox.connection().await;
    let mut earlier = String::new();
    for number in 0..20 {
        let before = "SELECT floor(date_part('epoch', clock_timestamp()) * 1000)::bigint";
        let before: i64 = sqlx::query_scalar(before).fetch_one(&mut conn).await.unwrap();
        let row = "INSERT INTO outbox (aggregatetype, aggregateid, type) VALUES ('order', $1, 'OrderPlaced')
            RETURNING id, ceil(date_part('epoch', clock_timestamp()) * 1000)::bigint";
        let row = sqlx::query(row).bind(number.to_string()).fetch_one(&mut conn).await.unwrap();
        let (id, after): (String, i64) = (row.get(0), row.get(1));
        let parsed = uuid::Uuid::parse_str(&id).unwrap();
        assert_eq!((parsed.get_version_num(), parsed.get_variant(), parsed.to_string()), (7, uuid::Variant::RFC4122, id.clone()));
        let (seconds, nanos) = parsed.get_timestamp().unwrap().to_unix();
        let millis = i64::try_from(seconds).unwrap() * 1_000 + i64::from(nanos / 1_000_000);
        assert!((before..=after).contains(&millis), "{id}: {millis} is not from {before} to {after}");
        assert!(id > earlier, "{id} is not above {earlier}");
        earlier = id;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The default's expression is that of the migration, with the time put into it.
#[tokio::test]
async fn ids_are_uuids_at_any_time_of_the_servers_clock() {
    let outbox = Outbox::new().await;
    let default = "SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef AS d JOIN pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        WHERE d.adrelid = 'outbox'::regclass AND a.attname = 'id'";
    let default = outbox.execute(default).await[0][0].clone().unwrap();
    for (time, starts) in [
        ("1969-12-31T23:59:59Z", "ffffffff-fc18-7"),
        ("1970-01-01T00:00:00Z", "00000000-0000-7"),
        ("2004-11-03T19:53:47Z", "00ffffff-fcf8-7"),
        ("2026-11-29T00:00:00Z", "01a22499-f800-7"),
        ("2600-01-01T00:00:00Z", "1214e1ef-4400-7"),
    ] {
        let at = default.replace("clock_timestamp()", &format!("timestamptz '{time}'"));
        assert_ne!(at, default);
        let id = outbox.execute(&format!("SELECT {at}")).await[0][0].clone().unwrap();
        assert!(id.starts_with(starts), "{time}: {id}");
        assert_eq!(uuid::Uuid::parse_str(&id).unwrap().get_version_num(), 7, "{time}: {id}");
    }
}

#[tokio::test]
async fn a_null_is_no_id_and_a_default_that_was_changed_stays() {
    let outbox = Outbox::new().await;
    outbox.execute("INSERT INTO outbox (id, aggregatetype, aggregateid, type) VALUES (NULL, 'order', 'a', 'OrderPlaced')").await;
    let id = outbox.execute("SELECT id FROM outbox").await[0][0].clone().unwrap();
    assert_eq!(uuid::Uuid::parse_str(&id).unwrap().get_version_num(), 7, "{id}");
    let [.., new_first] = &postgres::MIGRATIONS;
    outbox.execute("ALTER TABLE outbox ALTER COLUMN id SET DEFAULT 'mine ' || random()").await;
    for sql in [new_first.down, new_first.up] {
        outbox.execute(&format!("BEGIN; {sql}; COMMIT")).await;
    }
    outbox.execute("INSERT INTO outbox (aggregatetype, aggregateid, type) VALUES ('order', 'b', 'OrderPlaced')").await;
    let mine = number(&outbox, "SELECT count(*) FROM outbox WHERE id LIKE 'mine %'").await;
    assert_eq!(mine, 1);
}
