//! A worker that was paused pays from an account in PostgreSQL that another one has taken over. Workers meet in the same database, so the
//! payment locks the worker's claim: claim, fence and write are one transaction, which cannot be late.
//!
//! `DATABASE_URL=postgres://user:password@127.0.0.1/database cargo run -p shardwise-examples --example claimed_postgres`. It makes the
//! backend's tables in the schema `shardwise`, and a table of accounts. It takes some seconds, until the lease of a stopped worker has
//! expired. How and why: `docs/reference/fencing.md`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example talks to its reader")]

mod paused;

use std::process::ExitCode;

use paused::{ACCOUNT, BALANCE, Paid, Result, RunFolder};
use shardwise::core::Fence;
use shardwise::{Settings, ShardingFactory, ShardingService};
use sqlx::PgPool;

/// The claim, if its holder is alive and it was not acquired again since. As long as the transaction lasts no other member is granted it;
/// `FOR KEY SHARE` would be too weak.
const CLAIM: &str = "SELECT c.epoch FROM shardwise.claim AS c
    JOIN shardwise.member_group AS g ON g.id = c.group_id
    JOIN shardwise.member AS m ON m.group_id = g.id AND m.joined = c.holder
    WHERE g.name = $1 AND c.slot = $2 AND c.epoch = $3 FOR SHARE OF c";

/// Takes 10 from the account, if this worker still holds its slot.
async fn pay(bank: &PgPool, sharding: &ShardingService, fence: Fence) -> Result<Paid> {
    let mut tx = bank.begin().await?;
    let (slot, epoch) = (i32::try_from(fence.slot)?, i64::try_from(fence.epoch.get())?);
    let claim = sqlx::query_scalar::<_, i64>(CLAIM).bind(sharding.group_name().as_str()).bind(slot).bind(epoch);
    if claim.fetch_optional(&mut *tx).await?.is_none() {
        // Dropping the transaction rolls it back.
        return Ok(Paid::Refused(format!("slot {slot} is no longer held under epoch {epoch}")));
    }
    let pay = sqlx::query_scalar("UPDATE shardwise_example_balance SET balance = balance - 10 WHERE name = $1 RETURNING balance");
    let left = pay.bind(ACCOUNT).fetch_one(&mut *tx).await?;
    tx.commit().await?;
    Ok(Paid::Left(left))
}

async fn open(place: &RunFolder, address: &str, settings: &str) -> Result<PgPool> {
    let bank = PgPool::connect(address).await?;
    if place.is_new() {
        // What `shardwise backend init` does.
        println!("{}", ShardingFactory::from_settings(Settings::from_toml_str(settings)?)?.init_backend("payers").await?);
        let table = "CREATE TABLE IF NOT EXISTS shardwise_example_balance (name TEXT PRIMARY KEY, balance BIGINT NOT NULL)";
        sqlx::raw_sql(table).execute(&bank).await?;
        let begin = "INSERT INTO shardwise_example_balance VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET balance = excluded.balance";
        sqlx::query(begin).bind(ACCOUNT).bind(BALANCE).execute(&bank).await?;
    }
    Ok(bank)
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let place = RunFolder::new()?;
    let address = std::env::var("DATABASE_URL");
    let address = address.map_err(|_| "set DATABASE_URL to a database, such as postgres://user:password@127.0.0.1/database")?;
    let settings = format!("{}backend = \"postgres\"\npostgres.url = {address:?}\n", place.policy());
    let bank = open(&place, &address, &settings).await?;
    Ok(paused::run(place, &settings, async |sharding, fence| pay(&bank, sharding, fence).await).await)
}
