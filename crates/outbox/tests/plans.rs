//! SQLite's plan for each statement of the store and the inbox, in a file without statistics: nothing that grows may be scanned.
//!
//! The statements are those that the store suites really send, as the driver logs them; none is listed here.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::Outbox;
use shardwise_outbox::exercise;
use shardwise_outbox::inbox::sqlite as inbox;
use shardwise_testkit::trigger_statements;
use sqlx::sqlite::SqliteConnection;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// The allowed scans: the step of a plan, words of the statements that may have it, and why.
const ALLOWED: [(&str, &str, &str); 26] = [
    ("SCAN CONSTANT ROW", "", "no table"),
    ("SCAN outbox_meta", "", "one row"),
    ("SCAN sqlite_schema", "", "a row for each table"),
    ("SCAN json_each VIRTUAL TABLE", "", "the list that was given"),
    ("SCAN h VIRTUAL TABLE", "json_each(?1) AS h", "the list that was given"),
    ("SCAN (subquery-1)", " LIMIT ?2)", "a window of as many rows as were asked for"),
    ("SCAN m", "FROM outbox_meta AS m", "one row"),
    ("SCAN p", "FROM outbox_publisher", "a row for each publisher; those of the dead are deleted"),
    ("SCAN s", "FROM outbox_slot AS s LEFT JOIN outbox_publisher", "every slot is told, to people"),
    ("SCAN s USING COVERING INDEX outbox_slot_of", "count(*) FROM outbox_slot s", "every slot is counted, for people"),
    ("SCAN s", "WITH free AS", "every slot, once: which are free"),
    ("SCAN f", "WITH free AS", "the free slots"),
    ("SCAN due", "WITH free AS", "as many as are looked at"),
    ("SCAN w", "WITH free AS", "as many as are looked at"),
    ("SCAN a", " LIMIT ?1) AS a", "a window of as many rows as are looked at"),
    ("SCAN (subquery-1)", " LIMIT ?1)", "a window of as many rows as are looked at"),
    ("SCAN (subquery-2)", " LIMIT ?1)", "a window of as many rows as are looked at"),
    ("SCAN outbox_audit", "ORDER BY id DESC LIMIT", "from its end, as many as were asked for"),
    ("SCAN outbox_aggregate USING INDEX outbox_aggregate_new", "LIMIT ?1", "those without a hash, as many as were asked for"),
    ("SCAN outbox_aggregate USING INDEX outbox_aggregate_pending", "sum(a.last_seq", "all that is pending is counted"),
    ("SCAN outbox_aggregate USING INDEX outbox_aggregate_waiting", "sum(a.last_seq", "all that is pending is counted"),
    ("SCAN o USING COVERING INDEX outbox_parked", "count(*)", "all that is parked is counted"),
    ("SCAN outbox_slot USING COVERING INDEX outbox_slot_at", "WHERE NOT EXISTS (SELECT 1 FROM outbox_slot)", "the first row"),
    ("SCAN outbox_slot", "SET incarnation = NULL, epoch = 1 + max", "every slot is lifted, once, after a loss"),
    ("SCAN outbox_aggregate", "WHERE done_seq < last_seq AND done_seq < ?1", "every aggregate is counted, once, after a loss"),
    ("SCAN outbox_aggregate", "SET done_seq = iif(done_seq = last_seq", "every aggregate is lifted, once, after a loss"),
];

/// The statements that the driver has logged.
#[derive(Clone, Default)]
struct LoggedStatements(Arc<Mutex<BTreeSet<String>>>);

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for LoggedStatements {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == "sqlx::query" {
            let mut statement = Statement::default();
            event.record(&mut statement);
            let Statement { whole, summary } = statement;
            self.0.lock().unwrap().insert(if whole.trim().is_empty() { summary } else { whole.trim().to_owned() });
        }
    }
}

#[derive(Default)]
struct Statement {
    whole: String,
    summary: String,
}

impl Visit for Statement {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "db.statement" => value.clone_into(&mut self.whole),
            "summary" => value.clone_into(&mut self.summary),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

/// The statements of this crate that read or write rows, without those of the suites.
async fn sent() -> Vec<String> {
    let recorded = LoggedStatements::default();
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(recorded.clone())).unwrap();
    exercise::store(Outbox::stopped).await;
    let outbox = Outbox::new().await;
    let mut conn = outbox.connection().await;
    inbox::create_table(&mut conn).await.unwrap();
    inbox::seen(&mut conn, "one", "event").await.unwrap();
    inbox::forget(&mut conn, Duration::ZERO, 10).await.unwrap();
    let mut tx = outbox.store().await.begin().await.unwrap();
    shardwise_outbox::sqlite::enqueue(&mut tx, common::events("a", [1]).remove(0)).await.unwrap();
    outbox.store().await.holders().await.unwrap();
    drop(tx);
    outbox.store().await.restored(1, 1).await.unwrap();
    let recorded = recorded.0.lock().unwrap();
    let ours = |text: &&String| ["SELECT", "INSERT", "UPDATE", "DELETE", "WITH"].iter().any(|verb| text.starts_with(verb));
    recorded.iter().filter(ours).cloned().collect()
}

/// A step of a plan, with the step that it is part of.
type Step = (i64, i64, i64, String);

async fn plan(conn: &mut SqliteConnection, statement: &str) -> Vec<Step> {
    let query = sqlx::query_as(sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}")));
    query.fetch_all(conn).await.unwrap_or_else(|error| panic!("{error}: {statement}"))
}

/// The steps whose cost grows with the table, or with the square of the request: a scan, or a list that is scanned once for each row of
/// the loop around it.
fn slow<'p>(plan: &'p [Step], statement: &str) -> Vec<&'p str> {
    let is = |step: &str, what: &str| step.strip_prefix(what).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    let allowed = |step: &str| ALLOWED.iter().any(|(what, of, _)| is(step, what) && statement.contains(of));
    let is_inner = |at: usize| plan[..at].iter().any(|(_, of, _, step)| *of == plan[at].1 && (is(step, "SEARCH") || is(step, "SCAN")));
    let is_slow = |at: &usize| {
        let step = plan[*at].3.as_str();
        step.contains("AUTOMATIC") || is(step, "SCAN") && (!allowed(step) || is_inner(*at))
    };
    (0..plan.len()).filter(is_slow).map(|at| plan[at].3.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_statement_reads_from_end_to_end_what_grows() {
    let statements = sent().await;
    let fresh = Outbox::new().await;
    let mut conn = fresh.connection().await;
    inbox::create_table(&mut conn).await.unwrap();
    let triggers: Vec<String> =
        sqlx::query_scalar("SELECT sql FROM sqlite_schema WHERE type = 'trigger'").fetch_all(&mut conn).await.unwrap();
    let inside: Vec<String> = triggers.iter().flat_map(|create| trigger_statements(create)).collect();
    assert!(inside.len() >= 3, "the triggers' statements: {inside:?}");
    let mut wrong = Vec::new();
    for statement in statements.iter().chain(&inside) {
        let plan = plan(&mut conn, statement).await;
        wrong.extend(slow(&plan, statement).into_iter().map(|step| format!("{step}\n    {statement}\n")));
    }
    println!("{} statements", statements.len());
    assert!(statements.len() > 60, "the suites send {} statements, and there are more", statements.len());
    assert!(wrong.is_empty(), "{}", wrong.concat());
    // Without statistics SQLite scans this list once for each slot of the publisher: this test must detect it.
    let quadratic = "UPDATE outbox_slot SET incarnation = NULL
        FROM (SELECT value ->> 0 AS slot, value ->> 1 AS epoch FROM json_each(?1)) AS h
        WHERE outbox_slot.slot = h.slot AND outbox_slot.epoch = h.epoch AND outbox_slot.incarnation = ?2";
    let plan = plan(&mut conn, quadratic).await;
    assert!(!slow(&plan, quadratic).is_empty(), "{plan:?}");
}
