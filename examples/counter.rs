//! A counter that survives the death of its owner: a singleton that keeps its state in a journal.
//!
//! `cargo run -p shardwise-examples --example counter` starts three workers as separate processes, kills the one that counts with
//! SIGKILL, twice, and checks that each next one continues where the last one stopped: no acknowledged count is lost or repeated.

#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

mod processes;

use std::env;
use std::path::Path;
use std::time::Duration;

use shardwise::{ClaimName, InstanceId, Settings, ShardingFactory, Tenure};
use shardwise_fencing::{Journal, JournalError, LoadedJournal, sqlite};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use tokio::sync::mpsc;

use processes::{Result, Worker, WorkerLine};

const PAUSE: Duration = Duration::from_millis(20);
/// How far the journal grows between two snapshots.
const SNAPSHOT_EVERY: u64 = 50;

#[tokio::main]
async fn main() -> Result {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments[..] {
        [] => demonstration().await,
        [folder, id] => worker(Path::new(folder), id).await,
        _ => Err("give a folder and a name for one worker, or nothing for the demonstration".into()),
    }
}

/// One of three workers: it offers to count, and counts while it holds the name.
async fn worker(folder: &Path, id: &str) -> Result {
    let settings = format!(
        "[default.resilience.sharding]
         policies.counters = {{ group_name = \"counters\", ownership = \"exclusive\" }}
         discovery = {{ backend = \"local\", ttl = \"1s\", local.path = '{}' }}",
        folder.join("members.db").display()
    );
    let settings = Settings::from_toml_str(&settings)?;
    let factory = ShardingFactory::builder().settings(settings).instance_id(InstanceId::new(id)?).build()?;
    let sharding = factory.create("counters")?;
    let pool = SqlitePool::connect_with(SqliteConnectOptions::new().filename(folder.join("counter.db")).create_if_missing(true)).await?;
    sqlite::create_tables(&mut *pool.acquire().await?).await?;
    let journal = Journal::sqlite(pool, sharding.group_name().clone(), ClaimName::new("counter")?);
    sharding.register_self().await?;

    let run = sharding.singleton("counter")?.run(move |tenure| count(journal.clone(), tenure));
    tokio::signal::ctrl_c().await?;
    run.stop().await;
    sharding.deregister_self().await?;
    Ok(())
}

/// Runs on one worker at a time, under its epoch. The journal refuses former owners.
async fn count(journal: Journal, tenure: Tenure) -> std::result::Result<(), JournalError> {
    let epoch = tenure.epoch();
    let loaded = journal.take_over(epoch).await?;
    let (mut version, mut counter) = (loaded.version, restored(&loaded));
    while !tenure.cancel().is_cancelled() {
        version = journal.append(version, epoch, &[b"one more"]).await?;
        counter += 1;
        // It is in the journal: readers of this line may rely on it.
        println!("{epoch} {counter}");
        if counter % SNAPSHOT_EVERY == 0 {
            journal.snapshot(version, epoch, &counter.to_be_bytes()).await?;
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// Where the last owner stopped.
fn restored(loaded: &LoadedJournal) -> u64 {
    let snapshot = loaded.snapshot.as_ref().and_then(|snapshot| snapshot.state.as_slice().try_into().ok()).map_or(0, u64::from_be_bytes);
    snapshot + loaded.events.len() as u64
}

/// The numbers read from each owner before it is killed.
const OF_EACH: u64 = 60;
const LONGEST: Duration = Duration::from_mins(1);

async fn demonstration() -> Result {
    let folder = tempfile::tempdir()?;
    let (said, heard) = mpsc::channel(64);
    let mut workers = Vec::new();
    for id in ["ada", "bob", "eve"] {
        workers.push(Worker::start(folder.path(), id, &said)?);
    }
    drop(said);
    tokio::time::timeout(LONGEST, watched(workers, heard)).await.map_err(|_| format!("not done within {LONGEST:?}"))?
}

/// Reads the numbers, and kills the owner while there is another.
async fn watched(mut workers: Vec<Worker>, mut heard: mpsc::Receiver<WorkerLine>) -> Result {
    let (mut owner, mut epoch, mut counter, mut since) = (String::new(), 0_u64, 0_u64, 0_u64);
    while let Some((id, line)) = heard.recv().await {
        let (under, number) = line.split_once(' ').ok_or_else(|| format!("{line:?} is no count"))?;
        let (under, number): (u64, u64) = (under.parse()?, number.parse()?);
        if under == epoch {
            expect(id == owner && number == counter + 1, &line, counter)?;
        } else {
            // The last owner may have written one more and died before it could print it.
            expect(under > epoch && (counter + 1..=counter + 2).contains(&number), &line, counter)?;
            println!("{id} counts from {number}, under epoch {under}");
            (owner, epoch, since) = (id, under, number);
        }
        counter = number;
        if counter < since + OF_EACH {
            continue;
        }
        if workers.len() == 1 {
            println!("{counter} counted by three owners, none lost, none twice");
            return Ok(());
        }
        if let Some(at) = workers.iter().position(|worker| worker.id == owner) {
            workers.remove(at).kill().await?;
            println!("{owner} is killed at {counter}");
        }
    }
    Err("all workers are gone".into())
}

fn expect(right: bool, line: &str, counter: u64) -> Result {
    if right { Ok(()) } else { Err(format!("{line:?} came after {counter}").into()) }
}
