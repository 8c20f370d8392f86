//! Typed messages to a singleton: every worker asks the one that runs it, wherever that is, and learns the outcome of each question.
//!
//! `cargo run -p shardwise-examples --example ticket_desk` starts three workers as separate processes, one of which hands out ticket
//! numbers, and constantly asks for tickets. It kills the one that hands them out with SIGKILL, twice. Each question was handled at most
//! once, and the asker knows for which ones that is uncertain.

#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::collections::HashMap;
use std::env;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shardwise::{InstanceId, MessageError, Settings, ShardingFactory, SingletonHandle, Tenure};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The question.
#[derive(Debug, Serialize, Deserialize)]
struct Ticket {
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
    let name = id.to_owned();
    let run = sharding.singleton("desk")?.run(move |tenure| desk(name.clone(), tenure));
    tokio::signal::ctrl_c().await?;
    run.stop().await;
    sharding.deregister_self().await?;
    Ok(())
}

/// Runs on one worker at a time. A desk whose tickets must survive it would persist them first: see `counter`.
async fn desk(id: String, tenure: Tenure) -> shardwise::Result<()> {
    let mut inbox = tenure.messages::<Ticket, Number>().await?;
    let mut number = 0;
    while let Some(message) = inbox.recv().await {
        number += 1;
        println!("{id} {}", message.body.of);
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
        workers.push((id, started(folder.path(), id, said.clone())?));
    }
    drop(said);
    // This process is a member too. It does not offer to run the desk, it only asks.
    let factory = factory(folder.path(), "asker")?;
    let sharding = factory.create("desks")?;
    sharding.register_self().await?;
    let handle: SingletonHandle<Ticket, Number> = sharding.singleton("desk")?.handle();
    let watching = tokio::spawn(watched(workers, heard));
    let mut askers = JoinSet::new();
    for asker in 0..ASKERS {
        let handle = handle.clone();
        askers.spawn(async move {
            let mut outcomes = Vec::new();
            for of in asker * EACH..(asker + 1) * EACH {
                outcomes.push((of, handle.send(Ticket { of }).await));
            }
            outcomes
        });
    }
    let outcomes = askers.join_all().await;
    sharding.deregister_self().await?;
    judge(outcomes.into_iter().flatten(), &watching.await??)
}

/// The desks that handled each question, which must be at most one.
type Handled = HashMap<u64, Vec<String>>;

fn judge(outcomes: impl Iterator<Item = (u64, std::result::Result<Number, MessageError>)>, handled: &Handled) -> Result {
    let (mut tickets, mut answered, mut unknown) = (std::collections::HashSet::new(), 0, 0);
    for (of, outcome) in outcomes {
        let times = handled.get(&of).map_or(0, Vec::len);
        match outcome {
            Ok(Number { epoch, number }) => {
                answered += 1;
                expect(times == 1 && tickets.insert((epoch, number)), &format!("question {of} was answered and handled {times} times"))?;
            }
            Err(error) if error.may_have_been_handled() => {
                unknown += 1;
                expect(times <= 1, &format!("question {of} was handled {times} times: {error}"))?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    println!(
        "{answered} tickets, no two the same; of {unknown} questions it is unknown whether they were handled, and none was handled twice"
    );
    expect(answered > 0, "no ticket at all")
}

fn started(folder: &Path, id: &'static str, said: mpsc::Sender<String>) -> Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    let mut child = command.arg(folder).arg(id).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("a child without output")?).lines();
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            if said.send(line).await.is_err() {
                return;
            }
        }
    });
    Ok(child)
}

/// Records who handled what, and kills the handling worker while there is another, until all questions are handled or their askers are
/// gone.
async fn watched(mut workers: Vec<(&'static str, Child)>, mut heard: mpsc::Receiver<String>) -> std::result::Result<Handled, String> {
    let (mut handled, mut by) = (Handled::new(), HashMap::<String, usize>::new());
    // Ends once no question is handled for as long as a takeover takes.
    while let Ok(Some(line)) = tokio::time::timeout(Duration::from_secs(5), heard.recv()).await {
        let (id, of) = line.split_once(' ').ok_or_else(|| format!("{line:?} is no note"))?;
        handled.entry(of.parse().map_err(|_| format!("{line:?} is no note"))?).or_default().push(id.to_owned());
        let so_many = by.entry(id.to_owned()).or_default();
        *so_many += 1;
        if *so_many == OF_EACH
            && workers.len() > 1
            && let Some(at) = workers.iter().position(|(worker, _)| *worker == id)
        {
            let (id, mut child) = workers.remove(at);
            child.kill().await.map_err(|error| error.to_string())?;
            println!("{id} is killed after {OF_EACH} questions");
        }
    }
    if by.len() < 3 { Err(format!("not everybody sat at the desk: {by:?}")) } else { Ok(handled) }
}

fn expect(right: bool, otherwise: &str) -> Result {
    if right { Ok(()) } else { Err(otherwise.into()) }
}
