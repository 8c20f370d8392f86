//! Typed messages to a singleton: every worker asks the one that runs it, wherever that is, and learns the outcome of each question.
//!
//! `cargo run -p shardwise-examples --example ticket_desk` starts three workers as separate processes, one of which hands out ticket
//! numbers, and constantly asks for tickets. It kills the one that hands them out with SIGKILL, twice. Each question was handled at most
//! once, and the asker knows for which ones that is uncertain.

#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

mod processes;

use std::collections::HashMap;
use std::env;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shardwise::{InstanceId, MessageError, Settings, ShardingFactory, SingletonHandle, Tenure};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use processes::{Result, Worker, WorkerLine, expect};

/// The question.
#[derive(Debug, Serialize, Deserialize)]
struct TicketRequest {
    of: u64,
}

/// The answer: the numbers of each epoch start at 1, so epoch and number together never repeat.
#[derive(Debug, Serialize, Deserialize)]
struct Number {
    epoch: u64,
    number: u64,
}

#[tokio::main]
async fn main() -> Result {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments[..] {
        [] => tokio::time::timeout(LONGEST, demonstration()).await.map_err(|_| format!("not done within {LONGEST:?}"))?,
        [folder, id] => worker(Path::new(folder), id).await,
        _ => Err("give a folder and a name for one worker, or nothing for the demonstration".into()),
    }
}

fn factory(folder: &Path, id: &str) -> Result<ShardingFactory> {
    let settings = format!(
        "[default.resilience.sharding]
         policies.desks = {{ group_name = \"desks\", ownership = \"exclusive\" }}
         discovery = {{ backend = \"local\", ttl = \"1s\", local.path = '{}' }}",
        folder.join("members.db").display()
    );
    let settings = Settings::from_toml_str(&settings)?;
    Ok(ShardingFactory::builder().settings(settings).instance_id(InstanceId::new(id)?).build()?)
}

/// One of three workers: it offers to run the desk.
async fn worker(folder: &Path, id: &str) -> Result {
    let factory = factory(folder, id)?;
    let sharding = factory.create("desks")?;
    sharding.register_self().await?;
    let run = sharding.singleton("desk")?.run(desk);
    tokio::signal::ctrl_c().await?;
    run.stop().await;
    sharding.deregister_self().await?;
    Ok(())
}

/// Runs on one worker at a time. A desk whose tickets must survive it would persist them first: see `counter`.
async fn desk(tenure: Tenure) -> shardwise::Result<()> {
    let mut inbox = tenure.messages::<TicketRequest, Number>().await?;
    let mut number = 0;
    while let Some(message) = inbox.recv().await {
        number += 1;
        println!("{}", message.body.of);
        tokio::time::sleep(Duration::from_millis(2)).await;
        message.reply.send(Number { epoch: message.epoch.get(), number });
    }
    Ok(())
}

const LONGEST: Duration = Duration::from_mins(1);
/// The number of concurrent askers, and the questions of each.
const ASKERS: u64 = 8;
const EACH: u64 = 100;
/// A worker that has handled this many is killed, while there is another.
const OF_EACH: usize = 200;

async fn demonstration() -> Result {
    let folder = tempfile::tempdir()?;
    let (said, heard) = mpsc::channel(64);
    let mut workers = Vec::new();
    for id in ["ada", "bob", "eve"] {
        workers.push(Worker::start(folder.path(), id, &said)?);
    }
    drop(said);
    // This process is a member too. It does not offer to run the desk, it only asks.
    let factory = factory(folder.path(), "asker")?;
    let sharding = factory.create("desks")?;
    sharding.register_self().await?;
    let handle: SingletonHandle<TicketRequest, Number> = sharding.singleton("desk")?.handle();
    let watching = tokio::spawn(watched(workers, heard));
    let mut askers = JoinSet::new();
    for asker in 0..ASKERS {
        let handle = handle.clone();
        askers.spawn(async move {
            let mut outcomes = Vec::new();
            for of in asker * EACH..(asker + 1) * EACH {
                outcomes.push((of, handle.send(TicketRequest { of }).await));
            }
            outcomes
        });
    }
    let outcomes = askers.join_all().await;
    sharding.deregister_self().await?;
    judge(outcomes.into_iter().flatten(), &watching.await??)
}

/// The desks that handled each question, which must be at most one.
type HandledBy = HashMap<u64, Vec<String>>;

fn judge(outcomes: impl Iterator<Item = (u64, std::result::Result<Number, MessageError>)>, handled: &HandledBy) -> Result {
    let (mut tickets, mut answered, mut unknown) = (std::collections::HashSet::new(), 0, 0);
    for (of, outcome) in outcomes {
        let times = handled.get(&of).map_or(0, Vec::len);
        match outcome {
            Ok(Number { epoch, number }) => {
                answered += 1;
                expect(times == 1 && tickets.insert((epoch, number)), format!("question {of} was answered and handled {times} times"))?;
            }
            Err(error) if error.may_have_been_handled() => {
                unknown += 1;
                expect(times <= 1, format!("question {of} was handled {times} times: {error}"))?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    println!(
        "{answered} tickets, no two the same; of {unknown} questions it is unknown whether they were handled, and none was handled twice"
    );
    expect(answered > 0, "no ticket at all")
}

/// Records who handled what, and kills the handling worker while there is another, until all questions are handled or their askers are
/// gone.
async fn watched(mut workers: Vec<Worker>, mut heard: mpsc::Receiver<WorkerLine>) -> Result<HandledBy> {
    let (mut handled, mut by) = (HandledBy::new(), HashMap::<String, usize>::new());
    // Ends once no question is handled for as long as a takeover takes.
    while let Ok(Some((id, line))) = tokio::time::timeout(Duration::from_secs(5), heard.recv()).await {
        handled.entry(line.parse().map_err(|_| format!("{line:?} is no note"))?).or_default().push(id.clone());
        let so_many = by.entry(id.clone()).or_default();
        *so_many += 1;
        if *so_many == OF_EACH
            && workers.len() > 1
            && let Some(at) = workers.iter().position(|worker| worker.id == id)
        {
            workers.remove(at).kill().await?;
            println!("{id} is killed after {OF_EACH} questions");
        }
    }
    if by.len() < 3 { Err(format!("not everybody sat at the desk: {by:?}").into()) } else { Ok(handled) }
}
