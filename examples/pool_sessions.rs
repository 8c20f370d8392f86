//! A pool of connections whose transactions are sessions: `begin` gives an id, statements and `commit` reach the worker that has the
//! transaction by that id, and it is rolled back when its caller is gone.
//!
//! `DATABASE_URL=postgres://user:password@127.0.0.1/database cargo run -p shardwise-examples --example pool_sessions`. It starts two
//! workers as separate processes, each with connections to PostgreSQL, commits and rolls back transactions through them, and kills a caller
//! and a worker with SIGKILL. It creates one table.

#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

mod processes;

use std::collections::HashMap;
use std::env;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardwise::requests::{Answer, Answered, AskError, NoRoute, Owned, Request, SessionEnd, SessionId, SessionLimits, SessionRequest, To};
use shardwise::{Router, ShardingService};
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{Postgres, Transaction};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use processes::{Result, Worker, expect};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS shardwise_example_balance (name TEXT PRIMARY KEY, balance BIGINT NOT NULL)";
/// Idle time, longest life, and how many transactions a tenant may have at once.
const LIMITS: SessionLimits = SessionLimits { idle: Duration::from_secs(1), life: Duration::from_secs(3), per_key: 2 };
const CONNECTIONS: u32 = 8;
const WITHIN: Duration = Duration::from_secs(10);
/// Keys keep their owner here, so that the limit of a tenant holds; a session stays where it was opened even if they move.
const RULES: &str = "slots = 64";

#[tokio::main]
async fn main() -> Result {
    let address = env::var("DATABASE_URL");
    let address = address.map_err(|_| "set DATABASE_URL to a database, such as postgres://user:password@127.0.0.1/database")?;
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments[..] {
        [] => timeout(LONGEST, demonstration(&address)).await.map_err(|_| format!("not done within {LONGEST:?}"))?,
        [folder, id] if id == CALLER => caller(Path::new(folder)).await,
        [folder, id] => worker(Path::new(folder), id, &address).await,
        _ => Err("give a folder and a name for one worker, or nothing for the demonstration".into()),
    }
}

/// The transactions of this worker. One is taken out while a statement of it runs: if that is cancelled, it is dropped and rolled back.
struct TransactionPool {
    database: PgPool,
    open: Mutex<HashMap<SessionId, Transaction<'static, Postgres>>>,
}

impl TransactionPool {
    fn open(&self) -> MutexGuard<'_, HashMap<SessionId, Transaction<'static, Postgres>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, id: &SessionId) -> std::result::Result<Transaction<'static, Postgres>, Answer> {
        let busy = || Answer::problem(409, "in-use", "In use", "another statement of the transaction runs, or was cancelled");
        self.open().remove(id).ok_or_else(busy)
    }

    /// A transaction for a tenant; the answer is its id.
    async fn begin(self: &Arc<Self>, sharding: &ShardingService, owned: &Owned) -> std::result::Result<String, Answer> {
        let refused = |why: &dyn std::fmt::Display| Answer::problem(429, "no-transaction", "No transaction", &why.to_string());
        let session = sharding.open_session(&owned.key, LIMITS).map_err(|error| refused(&error))?;
        match self.database.begin().await {
            Ok(transaction) => {
                let (pool, id) = (Arc::clone(self), *session.id());
                self.open().insert(id, transaction);
                session.on_end(move |why| async move { pool.roll_back(id, why).await });
                Ok(id.to_string())
            }
            Err(error) => {
                session.end();
                Err(failed(&error))
            }
        }
    }

    /// Adds to a balance: `NAME AMOUNT`.
    async fn add(&self, asked: SessionRequest) -> std::result::Result<String, Answer> {
        let text = String::from_utf8_lossy(&asked.request.body).into_owned();
        let statement = text.split_once(' ').and_then(|(name, amount)| Some((name, amount.parse::<i64>().ok()?)));
        let (name, amount) =
            statement.ok_or_else(|| Answer::problem(400, "bad-statement", "No statement", "write a name and an amount"))?;
        let mut transaction = self.take(asked.session.id())?;
        let add = "UPDATE shardwise_example_balance SET balance = balance + $2 WHERE name = $1 RETURNING balance";
        let balance: sqlx::Result<i64> = sqlx::query_scalar(add).bind(name).bind(amount).fetch_one(&mut *transaction).await;
        self.open().insert(*asked.session.id(), transaction);
        balance.map(|balance| balance.to_string()).map_err(|error| failed(&error))
    }

    async fn commit(&self, asked: SessionRequest) -> std::result::Result<String, Answer> {
        let committed = self.take(asked.session.id())?.commit().await;
        asked.session.end();
        committed.map(|()| "committed".to_owned()).map_err(|error| failed(&error))
    }

    /// At the end of each session. A committed one has no transaction any more.
    async fn roll_back(&self, id: SessionId, why: SessionEnd) {
        let transaction = self.open().remove(&id);
        if let Some(transaction) = transaction {
            let rolled_back =
                transaction.rollback().await.map_or_else(|error| format!("rolling back: {error}"), |()| "rolled back".to_owned());
            println!("a transaction ended ({}): {rolled_back}", why.as_str());
        }
    }
}

fn failed(error: &sqlx::Error) -> Answer {
    Answer::problem(500, "database", "The database refuses", &error.to_string())
}

async fn worker(folder: &Path, id: &str, address: &str) -> Result {
    let database = PgPoolOptions::new().max_connections(CONNECTIONS).connect(address).await?;
    let pool = Arc::new(TransactionPool { database, open: Mutex::default() });
    let sharding = processes::factory(folder, id, "pool", RULES)?.create("pool")?;
    let (beginning, by) = (Arc::clone(&pool), sharding.clone());
    sharding.on_owned("begin", move |owned: Owned| {
        let (pool, sharding) = (Arc::clone(&beginning), by.clone());
        async move { pool.begin(&sharding, &owned).await }
    })?;
    let adding = Arc::clone(&pool);
    sharding.on_session("add", move |asked: SessionRequest| {
        let pool = Arc::clone(&adding);
        async move { pool.add(asked).await }
    })?;
    let committing = Arc::clone(&pool);
    sharding.on_session("commit", move |asked: SessionRequest| {
        let pool = Arc::clone(&committing);
        async move { pool.commit(asked).await }
    })?;
    sharding.on_session("roll-back", |asked: SessionRequest| async move { asked.session.end().to_string() })?;
    sharding.listen_for_requests().await?;
    sharding.register_self().await?;
    println!("ready");
    processes::asked_to_leave().await?;
    sharding.deregister_self().await?;
    Ok(())
}

const CALLER: &str = "caller";

/// A caller that begins a transaction, and is killed in it.
async fn caller(folder: &Path) -> Result {
    let router = processes::factory(folder, CALLER, "pool", RULES)?.router("pool").await?;
    let (id, _) = begun(&router, "forgetful").await?;
    let added = in_session(&router, &id, "add", "a -10").await?;
    println!("in a transaction, with a balance of {}", said(&added));
    processes::asked_to_leave().await
}

const LONGEST: Duration = Duration::from_mins(1);

async fn begin(router: &Router, tenant: &str) -> std::result::Result<Answered, AskError> {
    router.ask(&To::owner(tenant), Request::post("begin", "text/plain", ""), WITHIN).await
}

/// The id of a new transaction, and the worker that has it.
async fn begun(router: &Router, tenant: &str) -> Result<(SessionId, String)> {
    let answered = begin(router, tenant).await?;
    expect(answered.answer.status == 200, format!("no transaction: {}", said(&answered)))?;
    Ok((said(&answered).parse()?, answered.by.to_string()))
}

async fn in_session(router: &Router, id: &SessionId, path: &str, body: &str) -> std::result::Result<Answered, AskError> {
    router.ask(&To::Session(id), Request::post(path, "text/plain", body), WITHIN).await
}

fn said(answered: &Answered) -> String {
    String::from_utf8_lossy(&answered.answer.body).into_owned()
}

async fn balances(database: &PgPool) -> Result<(i64, i64)> {
    let balance = "SELECT balance FROM shardwise_example_balance WHERE name = $1";
    let a = sqlx::query_scalar(balance).bind("a").fetch_one(database).await?;
    Ok((a, sqlx::query_scalar(balance).bind("b").fetch_one(database).await?))
}

async fn demonstration(address: &str) -> Result {
    let (folder, database) = (tempfile::tempdir()?, PgPool::connect(address).await?);
    sqlx::raw_sql(TABLE).execute(&database).await?;
    let account = "INSERT INTO shardwise_example_balance VALUES ($1, 100) ON CONFLICT (name) DO UPDATE SET balance = excluded.balance";
    for name in ["a", "b"] {
        sqlx::query(account).bind(name).execute(&database).await?;
    }
    processes::prepare(folder.path())?;
    let (tell, mut heard) = mpsc::channel(64);
    let mut workers = vec![Worker::start(folder.path(), "ada", &tell)?, Worker::start(folder.path(), "bob", &tell)?];
    for _ in &workers {
        heard.recv().await.ok_or("the workers are gone")?;
    }
    let router = processes::factory(folder.path(), "demonstration", "pool", RULES)?.router("pool").await?;

    transfers(&router, &database).await?;
    limits(&router).await?;
    let forgetful = Worker::start(folder.path(), CALLER, &tell)?;
    loop {
        let (id, line) = heard.recv().await.ok_or("the workers are gone")?;
        println!("{id}: {line}");
        if id == CALLER {
            break;
        }
    }
    forgetful.kill().await?;
    println!("the caller is killed in its transaction");
    is_free_again(&database, "no caller asks for its transaction any more").await?;

    let (id, by) = begun(&router, "lost").await?;
    in_session(&router, &id, "add", "a -10").await?;
    let at = workers.iter().position(|worker| worker.id == by).ok_or("the worker is gone")?;
    workers.remove(at).kill().await?;
    println!("{by} is killed with a transaction");
    has_ended(&router, &id).await?;
    is_free_again(&database, "its connection is gone").await?;
    // The other worker serves all tenants now.
    transfers(&router, &database).await?;
    let all = balances(&database).await?;
    println!("balances of {all:?}: each transaction was committed or rolled back in full");
    Ok(())
}

/// A transaction that is committed, and one that is not.
async fn transfers(router: &Router, database: &PgPool) -> Result {
    let before = balances(database).await?;
    for end in ["commit", "roll-back"] {
        let (id, by) = begun(router, "tenant-1").await?;
        in_session(router, &id, "add", "a -10").await?;
        in_session(router, &id, "add", "b 10").await?;
        let ended = in_session(router, &id, end, "").await?;
        expect(ended.by.as_str() == by && ended.answer.status == 200, format!("{end} at {}: {}", ended.by, said(&ended)))?;
    }
    is_free_again(database, "it was rolled back").await?;
    let after = balances(database).await?;
    expect(after == (before.0 - 10, before.1 + 10), format!("{before:?} became {after:?}"))
}

/// A tenant has two transactions at most, and none for longer than its life, however busy.
async fn limits(router: &Router) -> Result {
    let (first, _) = begun(router, "tenant-2").await?;
    begun(router, "tenant-2").await?;
    let refused = begin(router, "tenant-2").await?;
    expect(refused.answer.status == 429, format!("a third transaction: {}", said(&refused)))?;
    let opened = Instant::now();
    loop {
        let answered = in_session(router, &first, "add", "a 0").await?;
        match answered.answer.status {
            200 if opened.elapsed() < LIMITS.life * 3 => sleep(LIMITS.idle / 4).await,
            // Over before this statement, or in it.
            410 | 502 => break,
            status => return Err(format!("after {:?} of its life: {status}, {}", opened.elapsed(), said(&answered)).into()),
        }
    }
    println!("a tenant has {} transactions at most, and each ends after {:?}", LIMITS.per_key, LIMITS.life);
    Ok(())
}

/// Waits until no transaction has changed the balance of `a` without a commit: then this one is not kept waiting.
async fn is_free_again(database: &PgPool, why: &str) -> Result {
    let lock = sqlx::query("UPDATE shardwise_example_balance SET balance = balance WHERE name = 'a'").execute(database);
    timeout(WITHIN, lock).await.map_err(|_| format!("a transaction was not rolled back, though {why}"))??;
    Ok(())
}

/// The id of a killed worker's transaction reaches no other worker's.
async fn has_ended(router: &Router, id: &SessionId) -> Result {
    match in_session(router, id, "commit", "").await {
        Err(AskError::NoRoute(NoRoute::SessionEnded) | AskError::Unknown(_)) => Ok(()),
        other => Err(format!("a transaction of a killed worker: {other:?}").into()),
    }
}
