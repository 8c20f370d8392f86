//! An import that goes on where its last owner was: each batch of rows and the position behind it are one transaction.
//!
//! `cargo run -p shardwise-examples --example import_rows` writes a file of a million rows and starts two workers as separate processes. It
//! kills the one that imports with SIGKILL in the middle, and checks that the other one goes on from there: every row is imported once.
//! Another number of rows is an argument (`-- 20000`).

#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

mod processes;

use std::env;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use shardwise::{Guard, InstanceId, Settings, ShardingFactory, ShardingService};
use shardwise_fencing::{Progress, Resource, sqlite};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool};
use tokio::sync::mpsc;

use processes::{Result, Worker, WorkerLine};

/// The file, which is also the key of its import.
const FILE: &str = "customers.jsonl";
const ROWS: u64 = 1_000_000;
/// Rows of one transaction.
const BATCH: usize = 1_000;
const LONGEST: Duration = Duration::from_mins(10);

#[tokio::main]
async fn main() -> Result {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments[..] {
        [] => demonstration(ROWS).await,
        [rows] => demonstration(rows.parse().map_err(|_| format!("{rows:?} is no number of rows"))?).await,
        [folder, id] => worker(Path::new(folder), id).await,
        _ => Err("give a number of rows, or a folder and a name for one worker".into()),
    }
}

/// One of the workers: imports the file once it owns its key.
async fn worker(folder: &Path, id: &str) -> Result {
    let settings = format!(
        "[default.resilience.sharding]
         policies.importers = {{ group_name = \"importers\", ownership = \"exclusive\" }}
         discovery = {{ backend = \"local\", ttl = \"1s\", local.path = '{}' }}",
        folder.join("members.db").display()
    );
    let settings = Settings::from_toml_str(&settings)?;
    let factory = ShardingFactory::builder().settings(settings).instance_id(InstanceId::new(id)?).build()?;
    let sharding = factory.create("importers")?;
    let shop = open(folder).await?;
    sharding.register_self().await?;
    let guard = owned(&sharding).await?;
    import(folder, &shop, &sharding, &guard).await?;
    drop(guard);
    sharding.deregister_self().await?;
    Ok(())
}

/// Waits until this worker owns the file's key.
async fn owned(sharding: &ShardingService) -> Result<Guard> {
    let mut changes = sharding.ownership_changes();
    loop {
        if let Ok(guard) = sharding.enter(FILE) {
            return Ok(guard);
        }
        changes.changed().await?;
    }
}

/// Imports what is left of the file. The position is the number of bytes of the file that are imported.
async fn import(folder: &Path, shop: &SqlitePool, sharding: &ShardingService, guard: &Guard) -> Result {
    let fence = guard.fence().ok_or("this needs exclusive ownership")?;
    let progress = Progress {
        group: sharding.group_name().clone(),
        key: FILE.to_owned(),
        resource: Resource::Slot(fence.slot),
        epoch: fence.epoch,
        instance: sharding.instance_id().clone(),
    };
    let mut tx = shop.begin_with("BEGIN IMMEDIATE").await?;
    let mut position = sqlite::resume(&mut tx, &progress).await?;
    tx.commit().await?;
    let (start, former) = (position.value.as_deref().unwrap_or("0"), position.saved_by.as_deref().unwrap_or("-"));
    println!("resumed {start} {former}");
    let mut rows = BufReader::new(File::open(folder.join(FILE))?);
    rows.seek(SeekFrom::Start(start.parse()?))?;
    while guard.is_held()
        && let Some(batch) = next_batch(&mut rows)?
    {
        let imported = rows.stream_position()?.to_string();
        let mut tx = shop.begin_with("BEGIN IMMEDIATE").await?;
        sqlx::query("INSERT INTO customer SELECT value ->> 0, value ->> 1 FROM json_each(?)").bind(batch).execute(&mut *tx).await?;
        position = sqlite::save(&mut tx, &progress, &position, &imported).await?;
        tx.commit().await?;
        println!("saved {imported} -");
    }
    Ok(())
}

/// The next rows as one JSON array; `None` at the end of the file.
fn next_batch(rows: &mut BufReader<File>) -> io::Result<Option<String>> {
    let batch = rows.by_ref().lines().take(BATCH).collect::<io::Result<Vec<_>>>()?;
    Ok((!batch.is_empty()).then(|| format!("[{}]", batch.join(","))))
}

async fn open(folder: &Path) -> Result<SqlitePool> {
    let options = SqliteConnectOptions::new().filename(folder.join("shop.db")).create_if_missing(true);
    let shop = SqlitePool::connect_with(options.journal_mode(SqliteJournalMode::Wal)).await?;
    sqlite::create_tables(&mut *shop.acquire().await?).await?;
    // Without a key: a row that is imported twice is there twice.
    sqlx::query("CREATE TABLE IF NOT EXISTS customer (id INTEGER, name TEXT)").execute(&shop).await?;
    Ok(shop)
}

async fn demonstration(rows: u64) -> Result {
    let folder = tempfile::tempdir()?;
    let bytes = write_file(&folder.path().join(FILE), rows)?;
    let shop = open(folder.path()).await?;
    let (said, heard) = mpsc::channel(64);
    let mut workers = Vec::new();
    for id in ["ada", "bob"] {
        workers.push(Worker::start(folder.path(), id, &said)?);
    }
    drop(said);
    tokio::time::timeout(LONGEST, watched(workers, heard, bytes)).await.map_err(|_| format!("not done within {LONGEST:?}"))??;
    let (imported, different): (i64, i64) = sqlx::query_as("SELECT count(*), count(DISTINCT id) FROM customer").fetch_one(&shop).await?;
    if imported.cast_unsigned() != rows || different != imported {
        return Err(format!("{imported} rows with {different} ids are imported, and not {rows}").into());
    }
    println!("{rows} rows imported by two owners, none twice, none left out");
    Ok(())
}

/// Returns the file's length.
fn write_file(path: &Path, rows: u64) -> io::Result<u64> {
    let mut file = BufWriter::new(File::create(path)?);
    for id in 1..=rows {
        writeln!(file, "[{id},\"customer {id}\"]")?;
    }
    file.flush()?;
    Ok(path.metadata()?.len())
}

/// Kills the first owner in the middle of the file, and waits until the second one is at its end.
async fn watched(mut workers: Vec<Worker>, mut heard: mpsc::Receiver<WorkerLine>, bytes: u64) -> Result {
    while let Some((id, line)) = heard.recv().await {
        let [did, at, former] = line.split(' ').collect::<Vec<_>>()[..] else { return Err(format!("{line:?} is no step").into()) };
        let at: u64 = at.parse()?;
        if did == "resumed" {
            println!("{id} goes on at byte {at} of {bytes}, saved by {former}");
        } else if workers.len() == 1 && workers[0].id == id && at == bytes {
            return Ok(());
        } else if workers.len() == 2 && at >= bytes / 2 {
            let owner = workers.iter().position(|worker| worker.id == id).ok_or("an unknown worker")?;
            workers.remove(owner).kill().await?;
            println!("{id} is killed at byte {at} or a little later");
        }
    }
    Err("the file was at its end before its owner could be killed: give a larger number of rows".into())
}
