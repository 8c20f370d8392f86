//! The usual worker: read the list of all tenants from a table, keep those that are mine, do the work, repeat.
//!
//! `cargo run -p shardwise-examples --example tenants`; start it two or three times at once and each does its own share. It makes
//! ten rounds and leaves; yours would loop until its shutdown.

#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::time::Duration;

use shardwise::ShardingFactory;
use sqlx::SqlitePool;

const ROUNDS: usize = 10;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let database = a_table_of_tenants().await?;
    let sharding = ShardingFactory::load()?.create("my_custom_workers")?;
    sharding.register_self().await?;

    for round in 1..=ROUNDS {
        let tenants: Vec<String> = sqlx::query_scalar("SELECT name FROM tenant ORDER BY name").fetch_all(&database).await?;
        match sharding.try_filter_owned_items(&tenants) {
            Ok(mine) => {
                println!("round {round}: {} of {} tenants are mine", mine.len(), tenants.len());
                for tenant in mine {
                    // Long work asks again in between: shares move while it runs.
                    if sharding.owns(tenant) {
                        send_reminders(tenant).await;
                    }
                }
            }
            Err(why) => println!("round {round}: {why}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    sharding.deregister_self().await?;
    Ok(())
}

/// Stands for your worker's task for one tenant.
async fn send_reminders(_tenant: &str) {
    tokio::task::yield_now().await;
}

/// Stands for your database: a hundred tenants in memory.
async fn a_table_of_tenants() -> sqlx::Result<SqlitePool> {
    let database = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await?;
    sqlx::query("CREATE TABLE tenant (name TEXT PRIMARY KEY)").execute(&database).await?;
    for n in 0..100 {
        sqlx::query("INSERT INTO tenant VALUES (?)").bind(format!("tenant-{n:03}")).execute(&database).await?;
    }
    Ok(database)
}
