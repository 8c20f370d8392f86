//! A worker that was paused pays from an account in PostgreSQL that another one has taken over: the table of fences refuses it.
//!
//! `DATABASE_URL=postgres://user:password@127.0.0.1/database cargo run -p shardwise-examples --example paused_postgres`. It creates the
//! tables of fences and a table of accounts. It takes some seconds, until the lease of a stopped worker has expired. How and why:
//! `docs/reference/fencing.md`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example talks to its reader")]

mod paused;

use std::process::ExitCode;

use paused::{ACCOUNT, BALANCE, Paid, Result, RunFolder};
use shardwise::ShardingService;
use shardwise::core::{Fence, Resource};
use shardwise_fencing::{FenceError, postgres};
use sqlx::PgPool;

/// Takes 10 from the account, unless another worker has acquired it since.
async fn pay(bank: &PgPool, sharding: &ShardingService, fence: Fence) -> Result<Paid> {
    let mut tx = bank.begin().await?;
    match postgres::check(&mut tx, sharding.group_name(), &Resource::Slot(fence.slot), fence.epoch).await {
        Ok(()) => {}
        // Dropping the transaction rolls it back.
        Err(FenceError::Fenced(refused)) => return Ok(Paid::Refused(refused.to_string())),
        Err(error) => return Err(error.into()),
    }
    let pay = sqlx::query_scalar("UPDATE shardwise_example_account SET balance = balance - 10 WHERE name = $1 RETURNING balance");
    let left = pay.bind(ACCOUNT).fetch_one(&mut *tx).await?;
    tx.commit().await?;
    Ok(Paid::Left(left))
}

async fn open(place: &RunFolder) -> Result<PgPool> {
    let address = std::env::var("DATABASE_URL");
    let address = address.map_err(|_| "set DATABASE_URL to a database, such as postgres://user:password@127.0.0.1/database")?;
    let bank = PgPool::connect(&address).await?;
    if place.is_new() {
        postgres::create_tables(&mut *bank.acquire().await?).await?;
        let table = "CREATE TABLE IF NOT EXISTS shardwise_example_account (name TEXT PRIMARY KEY, balance BIGINT NOT NULL)";
        sqlx::raw_sql(table).execute(&bank).await?;
        let begin = "INSERT INTO shardwise_example_account VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET balance = excluded.balance";
        sqlx::query(begin).bind(ACCOUNT).bind(BALANCE).execute(&bank).await?;
    }
    Ok(bank)
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let place = RunFolder::new()?;
    let bank = open(&place).await?;
    // The workers meet in a file; on several machines it would be Consul or etcd.
    let file = place.folder().join("workers.db");
    let settings = format!("{}backend = \"local\"\nlocal.path = {:?}\n", place.policy(), file.display().to_string());
    Ok(paused::run(place, &settings, async |sharding, fence| pay(&bank, sharding, fence).await).await)
}
