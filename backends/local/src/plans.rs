//! How SQLite goes about each statement, in a file without statistics: nothing that grows is read from end to end.

use sqlx::ConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use shardwise_testkit::trigger_statements;

use crate::{claim_statements, client, notes, statements};

const SOURCES: [(&str, &[&str]); 4] = [
    (include_str!("client.rs"), client::STATEMENTS),
    (include_str!("statements.rs"), statements::STATEMENTS),
    (include_str!("claim_statements.rs"), claim_statements::STATEMENTS),
    (include_str!("notes.rs"), notes::STATEMENTS),
];

/// What may be read from end to end: the step of a plan, words of the statements that may have it, and why.
const ALLOWED: [(&str, &str, &str); 15] = [
    ("SCAN CONSTANT ROW", "", "no table"),
    ("SCAN s", "FROM store AS s", "one row"),
    ("SCAN store", "", "one row"),
    ("SCAN json_each VIRTUAL TABLE", "", "the list that was given"),
    ("SCAN w VIRTUAL TABLE", "json_each(?6) AS w", "the list that was given, for the one record of the asker"),
    ("SCAN r VIRTUAL TABLE", "json_each(?4) AS r", "the list that was given, for the one record of the asker"),
    ("SCAN k", "FROM store AS s", "one row"),
    ("SCAN sqlite_schema", "", "a row for each table"),
    ("SCAN sqlite_master", "", "a row for each table"),
    ("SCAN pragma_application_id VIRTUAL TABLE", "", "one number"),
    ("SCAN pragma_user_version VIRTUAL TABLE", "", "one number"),
    (
        "SCAN member_group",
        "UPDATE member_group SET revision = (SELECT counter FROM store)",
        "every group, once, after the file was replaced",
    ),
    ("SCAN member_group", "INSERT INTO claim_group", "every group, once, when the table is made"),
    ("SCAN h", "AS claims", "the claims of the group's members, each once"),
    ("SCAN member", "WHERE boot_id <> ?1 OR deadline <= ?2", "of all groups what is dead, on opening and where the file is full"),
];

/// What the triggers do inside the statements that fire them.
async fn triggers(connection: &mut SqliteConnection) -> Vec<String> {
    let query = sqlx::query_scalar("SELECT sql FROM sqlite_schema WHERE type = 'trigger'");
    let triggers: Vec<String> = query.fetch_all(connection).await.unwrap();
    assert!(triggers.len() > 5, "{triggers:?}");
    triggers.iter().flat_map(|create| trigger_statements(create)).collect()
}

async fn plan(connection: &mut SqliteConnection, statement: &str) -> Vec<String> {
    let query = sqlx::query_as(sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}")));
    let steps: Vec<(i64, i64, i64, String)> = query.fetch_all(connection).await.unwrap();
    steps.into_iter().map(|step| step.3).collect()
}

#[tokio::test]
async fn no_statement_reads_from_end_to_end_what_grows() {
    let mut connection = SqliteConnectOptions::new().in_memory(true).connect().await.unwrap();
    for script in client::SCRIPTS {
        sqlx::raw_sql(script).execute(&mut connection).await.unwrap();
    }
    let is = |step: &str, what: &str| step.strip_prefix(what).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    let mut all = triggers(&mut connection).await;
    for (source, statements) in SOURCES {
        assert_eq!(source.matches(": &str =").count(), statements.len(), "each statement of a file is in its list");
        all.extend(statements.iter().map(|statement| (*statement).to_owned()));
    }
    let mut wrong = Vec::new();
    for statement in &all {
        for step in plan(&mut connection, statement).await {
            let allowed = ALLOWED.iter().any(|(what, of, _)| is(&step, what) && statement.contains(of));
            if step.contains("AUTOMATIC") || is(&step, "SCAN") && !allowed {
                wrong.push(format!("{step}\n    {statement}\n"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.concat());
}
