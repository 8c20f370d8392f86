//! A copy by logical replication has the rows and no values of sequence objects: it takes no event and sends none before it is restored.

use std::sync::Arc;
use std::time::Duration;

use shardwise_outbox::exercise::{ScriptedSink, StoreHarness as _};
use shardwise_outbox::store::{Stuck, StuckCause};
use shardwise_outbox::{ErrorKind, OutboxPublisher, PublisherOptions, Store as _};
use shardwise_testkit::{Postgres, PostgresOptions};
use sqlx::{Executor as _, PgConnection};

use crate::common::{Outbox, insert, patiently};
use crate::publishing::delivered;
use crate::shared::{Running, TestSharding, events, eventually, within};
use crate::strikes::{NOT_SET, holder, number, read};

const LIMIT: Duration = Duration::from_mins(3);
/// What the page has for such a copy.
const PAGE: &str = include_str!("../../postgres.md");
const TABLES: &str = "outbox, outbox_aggregate, outbox_head, outbox_slot, outbox_meta, outbox_audit";
const HIGHEST: &str = "SELECT f.last_value + o.last_value FROM outbox_floor AS f, outbox_order AS o";
const POSITIONS: &str = "SELECT setval(pg_get_serial_sequence('outbox', 'position'), max(position)) FROM outbox";

async fn server(options: PostgresOptions) -> Arc<Postgres> {
    Postgres::start(options.with_setting("wal_level", "logical")).await.unwrap()
}

/// An outbox that `init` makes, into which the rows of `source` come from now on.
async fn copy_of(source: &Outbox, server: &Arc<Postgres>) -> Outbox {
    let copy = Outbox::on(server).await;
    source.execute(&format!("CREATE PUBLICATION copying FOR TABLE {TABLES}")).await;
    // A subscription cannot create it in its own server.
    source.execute("SELECT pg_create_logical_replication_slot('copying', 'pgoutput')").await;
    // Its row would be in the way of the source's.
    copy.execute("TRUNCATE outbox_meta").await;
    let url = source.database.url();
    let subscribe =
        format!("CREATE SUBSCRIPTION copying CONNECTION '{url}' PUBLICATION copying WITH (create_slot = false, slot_name = copying)");
    copy.execute(&subscribe).await;
    let behind = "SELECT 1 FROM pg_subscription_rel WHERE srsubstate <> 'r'";
    eventually("the tables are copied", LIMIT, async || copy.execute(behind).await.is_empty()).await;
    copy
}

/// No row comes from here on.
async fn ends(copy: &Outbox) {
    copy.execute("ALTER SUBSCRIPTION copying DISABLE").await;
    let works = "SELECT 1 FROM pg_stat_subscription WHERE subname = 'copying' AND pid IS NOT NULL";
    eventually("the subscription's worker ends", LIMIT, async || copy.execute(works).await.is_empty()).await;
}

async fn arrives(copy: &Outbox, id: &str) {
    let there = format!("SELECT 1 FROM outbox WHERE id = '{id}'");
    eventually("the row arrives", LIMIT, async || !copy.execute(&there).await.is_empty()).await;
}

/// An aggregate that is marked far above the number of the event that listed it, and stays listed because a writer has its row. Its row
/// says nothing of the numbers between the two. Returns up to which number it is done.
async fn listed_and_done(source: &Outbox) -> i64 {
    for (aggregate, numbers) in [("a", 1..=1), ("b", 1..=20), ("a", 2..=5)] {
        source.insert(events(aggregate, numbers)).await;
    }
    let mut writer = source.connection().await;
    writer.execute("BEGIN").await.unwrap();
    insert(&mut writer, events("a", 6..=6).remove(0)).await.unwrap();
    let (store, me) = holder(source).await;
    let outcomes = read(&store, &me).await;
    assert_eq!(patiently("record", async || store.record(&me, &outcomes, false).await).await, []);
    store.leave(&me).await.unwrap();
    store.close().await;
    writer.execute("ROLLBACK").await.unwrap();
    let state = "SELECT h.done_seq FROM outbox_head AS h JOIN outbox_aggregate AS a ON a.id = h.aggregate
        WHERE a.key = 'order/a' AND h.listed AND a.last_seq + 20 < h.done_seq";
    number(source, state).await
}

async fn is_refused(writer: &mut PgConnection, aggregate: &str) {
    let error = insert(writer, events(aggregate, 99..=99).remove(0)).await.unwrap_err();
    assert!(error.to_string().contains(NOT_SET), "{error}");
    assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("55000"), "{error}");
}

/// Publishers and the status name the state and the way out of it; nothing is read.
async fn no_publisher_begins(copy: &Outbox) {
    let store = copy.store().await;
    let running = publisher(copy, &ScriptedSink::accepting()).await;
    let error = within("the publisher ends", LIMIT, running.task).await.unwrap().unwrap_err();
    for words in ["rows came without the values of sequences", "run `shardwise outbox restored` with --epoch-above 0"] {
        assert!(error.kind() == ErrorKind::Schema && error.to_string().contains(words), "{words:?} is not in: {error}");
    }
    assert_eq!(copy.execute("SELECT 1 FROM outbox_publisher").await.len(), 0);
    let status = store.status().await.unwrap();
    let causes: Vec<_> = status.stuck(Duration::from_secs(1)).into_iter().map(|Stuck { cause, .. }| cause).collect();
    assert!(status.needs_restored && causes.first() == Some(&StuckCause::NotRestored), "{causes:?}");
    store.close().await;
}

async fn publisher(outbox: &Outbox, sink: &ScriptedSink) -> Running {
    let options = PublisherOptions { poll: Duration::from_millis(100), ..PublisherOptions::default() };
    let sharding = Arc::new(TestSharding::full("one"));
    let publisher = OutboxPublisher::new(Arc::new(outbox.store().await), Arc::new(sink.clone()), sharding).unwrap();
    Running::start(publisher.options(options).unwrap())
}

/// Without the floor's state such an event is accepted, and counts as delivered: nothing else would notice.
async fn would_take_a_number_that_is_done(copy: &Outbox, writer: &mut PgConnection, done: i64) {
    copy.execute(POSITIONS).await;
    copy.execute("SELECT setval('outbox_floor', 0)").await;
    sqlx::raw_sql("BEGIN").execute(&mut *writer).await.unwrap();
    insert(writer, events("a", 99..=99).remove(0)).await.unwrap();
    let number: i64 = sqlx::query_scalar("SELECT seq FROM outbox WHERE id = 'a-99'").fetch_one(&mut *writer).await.unwrap();
    assert!(number <= done, "{number} is above {done}: this is not the case that the test is about");
    sqlx::raw_sql("ROLLBACK").execute(&mut *writer).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_takes_no_event_and_sends_none_before_it_is_restored() {
    for sql in [HIGHEST, POSITIONS] {
        assert!(PAGE.contains(sql), "the page has: {sql}");
    }
    for options in [PostgresOptions::default().oldest(), PostgresOptions::default()] {
        let server = server(options).await;
        let source = Outbox::on(&server).await;
        let done = listed_and_done(&source).await;
        let copy = copy_of(&source, &server).await;
        let mut writer = copy.connection().await;
        // Each attempt draws a number, and the third one has one above that of the event that listed the aggregate.
        for aggregate in ["a", "a", "a", "a", "b", "new"] {
            is_refused(&mut writer, aggregate).await;
        }
        no_publisher_begins(&copy).await;
        would_take_a_number_that_is_done(&copy, &mut writer, done).await;
        // A single row later is enough.
        source.insert(events("a", 7..=7)).await;
        arrives(&copy, "a-7").await;
        is_refused(&mut writer, "a").await;
        no_publisher_begins(&copy).await;
        let (store, above) = (copy.store().await, number(&source, HIGHEST).await);
        let error = store.restored(0, above.cast_unsigned()).await.unwrap_err();
        let told = "rows come into it by logical replication (copying): stop the writers and publishers of the source";
        assert!(error.kind() == ErrorKind::Schema && error.to_string().contains(told), "{error}");
        is_refused(&mut writer, "a").await;
        ends(&copy).await;
        store.restored(0, above.cast_unsigned()).await.unwrap();
        assert!(!store.status().await.unwrap().needs_restored);
        store.close().await;
        copy.execute(POSITIONS).await;
        insert(&mut writer, events("a", 8..=8).remove(0)).await.unwrap();
        let arrived: Vec<_> = delivered(&copy).await.into_iter().map(|event| (event.id, event.sequence.cast_signed() > above)).collect();
        assert_eq!(arrived, [("a-7".to_owned(), false), ("a-8".to_owned(), true)], "what was pending keeps its place");
    }
}

/// As when it was restored before the source had stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_that_works_in_a_copy_ends_when_a_row_comes() {
    let server = server(PostgresOptions::default()).await;
    let source = Outbox::on(&server).await;
    source.insert(events("a", 1..=3)).await;
    let copy = copy_of(&source, &server).await;
    ends(&copy).await;
    let store = copy.store().await;
    store.restored(0, 0).await.unwrap();
    let sink = ScriptedSink::accepting();
    let running = publisher(&copy, &sink).await;
    eventually("it publishes", LIMIT, async || sink.arrived().len() == 3).await;
    source.insert(events("later", 1..=1)).await;
    copy.execute("ALTER SUBSCRIPTION copying ENABLE").await;
    let error = within("the publisher ends", LIMIT, running.task).await.unwrap().unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("outbox_floor is not set"), "{error}");
    is_refused(&mut copy.connection().await, "a").await;
    arrives(&copy, "later-1").await;
    ends(&copy).await;
    store.restored(0, 0).await.unwrap();
    store.close().await;
    // The first publisher may have sent it before it looked at the floor.
    let sent = [sink.arrived(), delivered(&copy).await].concat();
    assert!(sent.iter().any(|event| event.id == "later-1"), "{sent:?}");
}
