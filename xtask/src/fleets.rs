//! The examples whose workers share keys: two processes in two terminals, beside a real server or a file, and one without its server.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shardwise_testkit::{Consul, Etcd};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};
use tokio::time::timeout;

use crate::context::TaskContext;
use crate::run::TaskFailure;
use crate::servers;

/// The examples, and for each the variable with the address of its server.
const FLEETS: [(&str, &str); 2] = [
    ("consul_workers", "SHARDWISE__RESILIENCE__SHARDING__DISCOVERY__CONSUL__ADDRESS"),
    ("etcd_workers", "SHARDWISE__RESILIENCE__SHARDING__DISCOVERY__ETCD__ENDPOINTS"),
];
/// The README's program; its workers meet in a file.
const STARTER: &str = "first_key";
/// How many keys it has.
const STARTER_KEYS: usize = 9;
/// How many tenants the other examples share.
const TENANTS: u32 = 100;
/// How long a worker may take for its next line or its end, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whether the example of that name is one of these.
pub(crate) fn is_fleet(example: &str) -> bool {
    example == STARTER || FLEETS.iter().any(|(name, _)| *name == example)
}

/// Runs the example of that name beside its server, and without it.
pub(crate) fn run(context: &TaskContext, example: &str, binary: &Path) -> Result<(), TaskFailure> {
    if example == STARTER {
        return servers::drive(two_terminals(context, binary));
    }
    let variable = FLEETS.iter().find(|(name, _)| *name == example).map_or("", |(_, variable)| *variable);
    servers::drive(async {
        let fleet = |address: String| ExampleFleet { context, binary, variable, address };
        let alone = if example.starts_with("consul") {
            let server = Consul::single().await.map_err(servers::failed)?;
            fleet(server.address()).share_and_leave().await?;
            fleet(server.address())
        } else {
            let server = Etcd::single().await.map_err(servers::failed)?;
            fleet(server.address()).share_and_leave().await?;
            fleet(server.address())
        };
        // The server is gone by now.
        alone.reports_in_one_line().await
    })
}

/// Two terminals share the keys, Ctrl-C ends one, and the other has all of them again.
async fn two_terminals(context: &TaskContext, binary: &Path) -> Result<(), TaskFailure> {
    let folder = context.scratch("starter");
    // Left over from a run before.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).map_err(servers::failed)?;
    let terminal = |id: &str| {
        let mut command = tokio::process::Command::from(servers::user(context, &binary.to_string_lossy()));
        command.env("SHARDWISE__RESILIENCE__SHARDING__DISCOVERY__LOCAL__PATH", folder.join("shardwise.db"));
        command.env("SHARDWISE__RESILIENCE__SHARDING__INSTANCE__ID", id);
        ExampleWorker::start(command, binary)
    };
    let mut first = terminal("worker-1")?;
    first.keys("all keys", |keys| keys.len() == STARTER_KEYS).await?;
    let mut second = terminal("worker-2")?;
    let theirs = second.keys("a part of the keys", |keys| (1..STARTER_KEYS).contains(&keys.len())).await?;
    first
        .keys("the keys that the second one has not", |keys| keys.is_disjoint(&theirs) && keys.len() + theirs.len() == STARTER_KEYS)
        .await?;
    second.ends_by(Signal::SIGINT).await?;
    first.keys("all keys again", |keys| keys.len() == STARTER_KEYS).await?;
    first.ends_by(Signal::SIGINT).await
}

struct ExampleFleet<'a> {
    context: &'a TaskContext,
    binary: &'a Path,
    variable: &'a str,
    address: String,
}

impl ExampleFleet<'_> {
    fn worker(&self) -> Result<ExampleWorker, TaskFailure> {
        let mut command = tokio::process::Command::from(servers::user(self.context, &self.binary.to_string_lossy()));
        command.env(self.variable, &self.address);
        ExampleWorker::start(command, self.binary)
    }

    /// One works alone, a second takes its part, and leaves; then the first has everything again, and leaves.
    async fn share_and_leave(self) -> Result<(), TaskFailure> {
        let mut first = self.worker()?;
        first.mine(1, TENANTS).await?;
        let mut second = self.worker()?;
        let (one, two) = (first.share(2).await?, second.share(2).await?);
        if one == 0 || two == 0 || one + two != TENANTS {
            return Err(TaskFailure::new(format!("two workers have {one} and {two} of {TENANTS} tenants")));
        }
        second.leave().await?;
        first.mine(1, TENANTS).await?;
        first.leave().await
    }

    /// Without the server a worker says so, in one line that names the address, and ends.
    async fn reports_in_one_line(self) -> Result<(), TaskFailure> {
        let ended = timeout(PATIENCE, self.worker()?.child.wait_with_output()).await;
        let output = ended.map_err(|_| TaskFailure::new("without its server the worker does not end"))?;
        let output = output.map_err(servers::failed)?;
        let said = String::from_utf8_lossy(&output.stderr);
        let place = self.address.rsplit('/').next().unwrap_or_default();
        if output.status.success() || said.lines().count() != 1 || !said.contains(place) {
            return Err(TaskFailure::new(format!(
                "without its server at {place} the worker ends with {} and says: {said:?}",
                output.status
            )));
        }
        Ok(())
    }
}

/// A running example; killed when dropped.
struct ExampleWorker {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    heard: Vec<String>,
}

impl ExampleWorker {
    fn start(mut command: tokio::process::Command, binary: &Path) -> Result<Self, TaskFailure> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let failed = |why: String| TaskFailure::new(format!("{}: {why}", binary.display()));
        let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
        let out = child.stdout.take().ok_or_else(|| failed("it has no output".into()))?;
        Ok(Self { child, lines: BufReader::new(out).lines(), heard: Vec::new() })
    }

    /// Waits for a line that this makes something of.
    async fn until<T>(&mut self, what: &str, read: impl Fn(&str) -> Option<T>) -> Result<T, TaskFailure> {
        while let Ok(Ok(Some(line))) = timeout(PATIENCE, self.lines.next_line()).await {
            let found = read(&line);
            self.heard.push(line);
            if let Some(found) = found {
                return Ok(found);
            }
        }
        Err(TaskFailure::new(format!("a worker did not say {what:?} within {} s; it said {:?}", PATIENCE.as_secs(), self.heard)))
    }

    /// Its share as soon as it sees that many workers.
    async fn share(&mut self, workers: u32) -> Result<u32, TaskFailure> {
        let start = format!("workers: {workers}, mine: ");
        self.until(&start, |line| line.strip_prefix(&start)?.split(' ').next()?.parse().ok()).await
    }

    async fn mine(&mut self, workers: u32, tenants: u32) -> Result<(), TaskFailure> {
        let line = format!("workers: {workers}, mine: {tenants} of {TENANTS} tenants");
        self.until(&line, |said| (said == line).then_some(())).await
    }

    /// The keys that it prints as its own, once they are as wanted.
    async fn keys(&mut self, what: &str, wanted: impl Fn(&BTreeSet<String>) -> bool) -> Result<BTreeSet<String>, TaskFailure> {
        self.until(what, |line| {
            let keys: BTreeSet<String> =
                line.strip_prefix("mine: ")?.split('"').filter(|part| part.starts_with("tenant-")).map(String::from).collect();
            wanted(&keys).then_some(keys)
        })
        .await
    }

    /// SIGTERM, and it goes in good order.
    async fn leave(mut self) -> Result<(), TaskFailure> {
        self.signal(Signal::SIGTERM)?;
        self.until("left", |line| (line == "left").then_some(())).await?;
        self.ended().await
    }

    /// That signal, and it ends well.
    async fn ends_by(mut self, signal: Signal) -> Result<(), TaskFailure> {
        self.signal(signal)?;
        self.ended().await
    }

    fn signal(&self, signal: Signal) -> Result<(), TaskFailure> {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        let id = id.ok_or_else(|| TaskFailure::new(format!("a worker ended by itself; it said {:?}", self.heard)))?;
        kill(Pid::from_raw(id), signal).map_err(|error| TaskFailure::new(format!("{signal}: {error}")))
    }

    async fn ended(&mut self) -> Result<(), TaskFailure> {
        match timeout(PATIENCE, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            ended => Err(TaskFailure::new(format!("a worker that left ended with {ended:?}"))),
        }
    }
}
