//! PostgreSQL: both ends of what is supported, databases for a test each, and what a crash leaves.

#![expect(clippy::unwrap_used, reason = "a helper of tests")]

use std::sync::Arc;

use shardwise_testkit::{Postgres, PostgresOptions};

async fn version(postgres: &Postgres) -> String {
    postgres.execute("SHOW server_version").await.unwrap()[0][0].clone().unwrap()
}

#[tokio::test]
async fn the_oldest_and_the_newest_answer() {
    let (oldest, newest) =
        (Postgres::start(PostgresOptions::default().oldest().durable()).await.unwrap(), Postgres::shared().await.unwrap());
    assert_eq!(version(&oldest).await, "13.23");
    assert_eq!(version(&newest).await, "18.4");
    assert_eq!(newest.execute("SELECT NULL, 'é'").await.unwrap(), [[None, Some("é".to_owned())]]);
    for (server, fsync) in [(&oldest, "on"), (&newest, "off")] {
        assert_eq!(server.execute("SHOW fsync").await.unwrap()[0][0].as_deref(), Some(fsync));
    }
}

#[tokio::test]
async fn a_database_knows_nothing_of_another_and_what_was_committed_outlives_a_crash() {
    let postgres = Postgres::start(PostgresOptions::default().with_setting("log_lock_waits", "on")).await.unwrap();
    let (mine, other) = (postgres.database().await.unwrap(), postgres.database().await.unwrap());
    mine.execute("CREATE TABLE t (n int); INSERT INTO t VALUES (7)").await.unwrap();
    let refused = other.execute("SELECT n FROM t").await.unwrap_err().to_string();
    assert!(refused.contains(r#"relation "t" does not exist"#), "{refused}");
    postgres.kill().unwrap();
    assert!(mine.execute("SELECT n FROM t").await.is_err());
    postgres.restart().await.unwrap();
    assert_eq!(mine.execute("SELECT n FROM t").await.unwrap()[0][0].as_deref(), Some("7"));
    assert!(mine.url().ends_with(mine.name()));
    assert_eq!(postgres.execute("SHOW log_lock_waits").await.unwrap()[0][0].as_deref(), Some("on"));
}

#[tokio::test]
async fn tests_of_one_program_share_a_server() {
    let (one, other) = (Postgres::shared().await.unwrap(), Postgres::shared().await.unwrap());
    assert!(Arc::ptr_eq(&one, &other));
    assert_ne!(one.database().await.unwrap().name(), other.database().await.unwrap().name());
}
