//! A queue of commands: any worker takes one, and at most one worker carries it out. Where the outcome is unknown, a row settles it.
//!
//! `cargo run -p shardwise-examples --example commands` starts three workers as separate processes, sends them commands that must not be
//! carried out twice, and kills workers with SIGKILL. A worker carries a command out in one transaction with a row of its id. A sender that
//! does not know the outcome writes that row itself: if it is there already, the command was carried out, and if not, it never will be.

#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

mod processes;

use std::env;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use shardwise::Router;
use shardwise::requests::{Answer, AskError, Request, To};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use processes::{Result, Worker, expect};

const TABLES: &str = "CREATE TABLE IF NOT EXISTS command (id TEXT PRIMARY KEY, worker TEXT);
    CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, pieces INTEGER NOT NULL);
    INSERT INTO stock VALUES ('bolts', 0) ON CONFLICT DO NOTHING";
const WITHIN: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> Result {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments[..] {
        [] => timeout(LONGEST, demonstration()).await.map_err(|_| format!("not done within {LONGEST:?}"))?,
        [folder, id] => worker(Path::new(folder), id).await,
        _ => Err("give a folder and a name for one worker, or nothing for the demonstration".into()),
    }
}

/// Stands for your database.
async fn database(folder: &Path) -> Result<SqlitePool> {
    let options =
        SqliteConnectOptions::new().filename(folder.join("stock.db")).create_if_missing(true).journal_mode(SqliteJournalMode::Wal);
    let database = SqlitePool::connect_with(options).await?;
    sqlx::raw_sql(TABLES).execute(&database).await?;
    Ok(database)
}

async fn worker(folder: &Path, id: &str) -> Result {
    let (database, sharding) = (database(folder).await?, processes::factory(folder, id, "commands", "slots = 16")?.create("commands")?);
    let name = id.to_owned();
    let carry_out = move |request: Request| {
        let (database, worker) = (database.clone(), name.clone());
        async move {
            let command = String::from_utf8_lossy(&request.body).into_owned();
            match carry_out(&database, &command, &worker).await {
                Ok(true) => Ok(worker),
                Ok(false) => Err(Answer::problem(409, "settled", "Settled before", "its sender has given it up")),
                // It is unknown whether the commit has come through.
                Err(error) => Err(Answer::problem(500, "database", "The database fails", &error.to_string())),
            }
        }
    };
    sharding.on_any("carry-out", carry_out)?;
    sharding.listen_for_requests().await?;
    sharding.register_self().await?;
    println!("ready");
    processes::asked_to_leave().await?;
    sharding.deregister_self().await?;
    Ok(())
}

/// The command's effect and its row commit together or not at all. Returns whether it was carried out: not if it was settled before.
async fn carry_out(database: &SqlitePool, command: &str, worker: &str) -> sqlx::Result<bool> {
    let mut tx = database.begin_with("BEGIN IMMEDIATE").await?;
    let row = "INSERT INTO command (id, worker) VALUES (?, ?) ON CONFLICT DO NOTHING";
    if sqlx::query(row).bind(command).bind(worker).execute(&mut *tx).await?.rows_affected() == 0 {
        return Ok(false);
    }
    println!("begun {command}");
    sqlx::query("UPDATE stock SET pieces = pieces + 1 WHERE item = 'bolts'").execute(&mut *tx).await?;
    sleep(Duration::from_millis(2)).await;
    tx.commit().await?;
    Ok(true)
}

/// Whether the command was carried out. If it was not, this row keeps it from ever being: also a worker that has it still finds the row.
async fn settle(database: &SqlitePool, command: &str) -> sqlx::Result<bool> {
    let row = "INSERT INTO command (id, worker) VALUES (?, NULL) ON CONFLICT DO NOTHING";
    Ok(sqlx::query(row).bind(command).execute(database).await?.rows_affected() == 0)
}

const LONGEST: Duration = Duration::from_mins(1);
const SENDERS: u64 = 8;
const EACH: u64 = 50;
/// Workers are killed after so many commands.
const KILL_AFTER: [u64; 2] = [120, 240];

/// What became of commands whose outcome was unknown.
#[derive(Default)]
struct Settled {
    done: AtomicU64,
    given_up: AtomicU64,
    sent: AtomicU64,
}

async fn demonstration() -> Result {
    let folder = tempfile::tempdir()?;
    processes::prepare(folder.path())?;
    let database = database(folder.path()).await?;
    let (said, mut heard) = mpsc::channel(64);
    let mut workers = Vec::new();
    for id in ["ada", "bob", "eve"] {
        workers.push(Worker::start(folder.path(), id, &said)?);
    }
    for _ in &workers {
        heard.recv().await.ok_or("the workers are gone")?;
    }
    // The sender is no member: a router follows the group from outside.
    let router = Arc::new(processes::factory(folder.path(), "sender", "commands", "slots = 16")?.router("commands").await?);
    let (settled, mut senders) = (Arc::<Settled>::default(), JoinSet::new());
    for sender in 0..SENDERS {
        let (router, database, settled) = (Arc::clone(&router), database.clone(), Arc::clone(&settled));
        senders.spawn(async move {
            for number in 0..EACH {
                send(&router, &database, &settled, &format!("{sender}-{number}")).await?;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        });
    }
    let (mut kills, mut latest) = (KILL_AFTER.into_iter().peekable(), String::new());
    loop {
        tokio::select! {
            line = heard.recv() => {
                let (id, line) = line.ok_or("the workers are gone")?;
                if line.starts_with("begun") {
                    latest = id;
                }
                if kills.next_if(|after| settled.sent.load(Ordering::Relaxed) >= *after).is_some() {
                    // In the middle of a command, as far as that can be seen.
                    let at = workers.iter().position(|worker| worker.id == latest).ok_or("the worker is gone")?;
                    workers.remove(at).kill().await?;
                    println!("{latest} is killed");
                    workers.push(Worker::start(folder.path(), &format!("after-{latest}"), &said)?);
                }
            },
            sender = senders.join_next() => match sender {
                Some(sender) => sender??,
                None => break,
            },
        }
    }
    expect(kills.peek().is_none(), "all was done before two workers were killed")?;
    judge(&database, &settled).await
}

/// Sends a command until it is carried out; once it is given up, under a new id.
async fn send(router: &Router, database: &SqlitePool, settled: &Settled, command: &str) -> Result {
    for attempt in 0_u32.. {
        let id = format!("{command}-{attempt}");
        settled.sent.fetch_add(1, Ordering::Relaxed);
        // A POST without a key is sent at most once.
        match router.ask(&To::any(), Request::post("carry-out", "text/plain", id.as_str()), WITHIN).await {
            Ok(answered) if answered.answer.status == 200 => return Ok(()),
            // Certainly not carried out: it may be sent again under the same id, and under a new one as well.
            Err(AskError::Busy { .. } | AskError::TooLate { .. }) => {}
            Err(error) if !error.may_have_been_handled() => return Err(error.into()),
            // Unknown: no answer, or one that says so.
            Ok(_) | Err(_) => {
                let is_done = settle(database, &id).await?;
                let counted = if is_done { &settled.done } else { &settled.given_up };
                counted.fetch_add(1, Ordering::Relaxed);
                if is_done {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Each command has one row with a worker, and its effect once.
async fn judge(database: &SqlitePool, settled: &Settled) -> Result {
    let rows: Vec<String> = sqlx::query_scalar("SELECT id FROM command WHERE worker IS NOT NULL").fetch_all(database).await?;
    let mut commands: Vec<&str> = rows.iter().filter_map(|id| Some(id.rsplit_once('-')?.0)).collect();
    commands.sort_unstable();
    commands.dedup();
    let pieces: i64 = sqlx::query_scalar("SELECT pieces FROM stock WHERE item = 'bolts'").fetch_one(database).await?;
    let all = SENDERS * EACH;
    let is_once = commands.len() as u64 == all && rows.len() as u64 == all && pieces.cast_unsigned() == all;
    expect(is_once, format!("{} rows of {} commands, and {pieces} pieces, of {all} each", rows.len(), commands.len()))?;
    let [done, given_up] = [&settled.done, &settled.given_up].map(|count| count.load(Ordering::Relaxed));
    println!("{all} commands, each carried out once; of {} unknown ones {done} were carried out and {given_up} given up", done + given_up);
    Ok(())
}
