//! A worker that was paused pays from an account in SQLite that another one has taken over: the table of fences refuses it.
//!
//! `cargo run -p shardwise-examples --example paused_sqlite`. It takes some seconds, until the lease of a stopped worker has expired. How
//! and why: `docs/reference/fencing.md`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example talks to its reader")]

mod paused;

use std::process::ExitCode;

use paused::{ACCOUNT, BALANCE, Paid, Result, RunFolder};
use shardwise::ShardingService;
use shardwise::core::{Fence, Resource};
use shardwise_fencing::{FenceError, sqlite};
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;

/// Takes 10 from the account, unless another worker has acquired it since.
async fn pay(bank: &SqlitePool, sharding: &ShardingService, fence: Fence) -> Result<Paid> {
    let mut tx = bank.begin_with("BEGIN IMMEDIATE").await?;
    match sqlite::check(&mut tx, sharding.group_name(), &Resource::Slot(fence.slot), fence.epoch).await {
        Ok(()) => {}
        // Dropping the transaction rolls it back.
        Err(FenceError::Fenced(refused)) => return Ok(Paid::Refused(refused.to_string())),
        Err(error) => return Err(error.into()),
    }
    let pay = sqlx::query_scalar("UPDATE account SET balance = balance - 10 WHERE name = ? RETURNING balance");
    let left = pay.bind(ACCOUNT).fetch_one(&mut *tx).await?;
    tx.commit().await?;
    Ok(Paid::Left(left))
}

async fn open(place: &RunFolder) -> Result<SqlitePool> {
    let options = SqliteConnectOptions::new().filename(place.folder().join("bank.db")).create_if_missing(true);
    let bank = SqlitePool::connect_with(options).await?;
    if place.is_new() {
        sqlite::create_tables(&mut *bank.acquire().await?).await?;
        sqlx::raw_sql("CREATE TABLE account (name TEXT PRIMARY KEY, balance INTEGER NOT NULL)").execute(&bank).await?;
        sqlx::query("INSERT INTO account VALUES (?, ?)").bind(ACCOUNT).bind(BALANCE).execute(&bank).await?;
    }
    Ok(bank)
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let place = RunFolder::new()?;
    let bank = open(&place).await?;
    let file = place.folder().join("workers.db");
    let settings = format!("{}backend = \"local\"\nlocal.path = {:?}\n", place.policy(), file.display().to_string());
    Ok(paused::run(place, &settings, async |sharding, fence| pay(&bank, sharding, fence).await).await)
}
