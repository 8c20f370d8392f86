//! The common part of `paused_sqlite`, `paused_postgres`, `claimed_postgres` and `paused_etcd`, independent of the store of the account.
//!
//! The program starts itself once more as the first worker, stops that process (SIGSTOP) right before a payment, takes the account over
//! as the second worker, and resumes the first one (SIGCONT): its payment is refused.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shardwise::core::Fence;
use shardwise::{InstanceId, Settings, ShardingFactory, ShardingService};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// The account that both workers pay from, and its balance.
pub(crate) const ACCOUNT: &str = "account-42";
pub(crate) const BALANCE: i64 = 100;
/// The last line of the first worker before it is stopped.
const READY_LINE_END: &str = "is about to pay again";

/// The outcome of a payment.
pub(crate) enum Paid {
    /// It was made; the new balance.
    Left(i64),
    /// Another worker has the account by now.
    Refused(String),
}

/// The folder shared by both workers; the second worker creates it, and starts the first one with it.
pub(crate) enum RunFolder {
    First(PathBuf),
    Second(TempDir),
}

impl RunFolder {
    pub(crate) fn new() -> Result<Self> {
        Ok(match std::env::args_os().nth(1) {
            Some(folder) => Self::First(folder.into()),
            None => Self::Second(TempDir::with_prefix("shardwise-example-")?),
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        match self {
            Self::First(folder) => folder,
            Self::Second(folder) => folder.path(),
        }
    }

    /// Whether this process has to set up the shared state.
    pub(crate) fn is_new(&self) -> bool {
        matches!(self, Self::Second(_))
    }

    /// A group for this run only, so that a repeated run starts with new epochs.
    pub(crate) fn group(&self) -> String {
        self.folder().file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// The workers' policy, without the backend.
    pub(crate) fn policy(&self) -> String {
        let table = "[default.resilience.sharding";
        format!("{table}.policies.payers]\ngroup_name = {:?}\nownership = \"exclusive\"\n{table}.discovery]\nttl = \"2s\"\n", self.group())
    }
}

/// Plays this process's part. `pay` takes 10 from the account under the fence; errors are printed in one line.
pub(crate) async fn run(place: RunFolder, settings: &str, pay: impl AsyncFn(&ShardingService, Fence) -> Result<Paid>) -> ExitCode {
    let outcome = match &place {
        RunFolder::First(_) => first_worker(settings, pay).await,
        RunFolder::Second(folder) => second_worker(folder.path(), settings, pay).await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn join(settings: &str, name: &str) -> Result<ShardingService> {
    let mut settings = Settings::from_toml_str(settings)?;
    settings.instance.id = Some(InstanceId::new(name)?);
    let sharding = ShardingFactory::from_settings(settings)?.create("payers")?;
    sharding.register_self().await?;
    Ok(sharding)
}

/// Waits until this worker holds the account.
async fn held(sharding: &ShardingService) -> Result<Fence> {
    let mut changes = sharding.ownership_changes();
    loop {
        if let Ok(fence) = sharding.fence(ACCOUNT) {
            return Ok(fence);
        }
        changes.changed().await?;
    }
}

async fn first_worker(settings: &str, pay: impl AsyncFn(&ShardingService, Fence) -> Result<Paid>) -> Result {
    let sharding = join(settings, "first").await?;
    let fence = held(&sharding).await?;
    println!("first worker:  {ACCOUNT} is mine under epoch {}", fence.epoch);
    if let Paid::Left(left) = pay(&sharding, fence).await? {
        println!("first worker:  paid 10, {left} are left");
    }
    println!("first worker:  owns {ACCOUNT}: {}; {READY_LINE_END}", sharding.owns(ACCOUNT));
    // A long garbage collection, a debugger, a frozen container: any of them may stop a process here, between check and write.
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    match pay(&sharding, fence).await? {
        Paid::Left(left) => return Err(format!("the first worker paid, and {left} are left: nothing has refused it").into()),
        Paid::Refused(why) => println!("first worker:  owns {ACCOUNT}: {}; payment refused: {why}", sharding.owns(ACCOUNT)),
    }
    Ok(sharding.deregister_self().await?)
}

async fn second_worker(folder: &Path, settings: &str, pay: impl AsyncFn(&ShardingService, Fence) -> Result<Paid>) -> Result {
    let mut command = Command::new(std::env::current_exe()?);
    let mut first = command.arg(folder).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let id = first.id().and_then(|id| i32::try_from(id).ok()).ok_or("the first worker has ended")?;
    let (mut input, output) = (first.stdin.take().ok_or("no input")?, first.stdout.take().ok_or("no output")?);
    let mut lines = BufReader::new(output).lines();
    loop {
        let line = lines.next_line().await?.ok_or("the first worker has ended before its time")?;
        println!("{line}");
        if line.ends_with(READY_LINE_END) {
            break;
        }
    }
    kill(Pid::from_raw(id), Signal::SIGSTOP)?;
    println!("               the first worker is stopped (SIGSTOP)");
    // It reads this when it resumes, and pays without another check.
    input.write_all(b"\n").await?;

    let sharding = join(settings, "second").await?;
    let fence = held(&sharding).await?;
    println!("second worker: {ACCOUNT} is mine under epoch {}", fence.epoch);
    match pay(&sharding, fence).await? {
        Paid::Left(left) => println!("second worker: paid 10, {left} are left"),
        Paid::Refused(why) => return Err(format!("the second worker was refused: {why}").into()),
    }
    kill(Pid::from_raw(id), Signal::SIGCONT)?;
    println!("               the first worker goes on (SIGCONT)");
    while let Some(line) = lines.next_line().await? {
        println!("{line}");
    }
    sharding.deregister_self().await?;
    if first.wait().await?.success() { Ok(()) } else { Err("the first worker did not end well".into()) }
}
