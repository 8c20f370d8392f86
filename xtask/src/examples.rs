//! The step `examples`: a few run at once, because they wait for leases most of their time. Most examples show something and end. Those
//! whose workers share keys run as two processes in two terminals, with a real server or a file, and without their server; those that write
//! to a server run with it. `crates/cli/tests/clients/monitors.rs` has more of the alert monitor.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use cargo_metadata::TargetKind;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use shardwise_testkit::{Consul, Etcd, Nats, NatsOptions, Postgres, PostgresOptions, Redis, RedisOptions};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::context::TaskContext;
use crate::failure::TaskFailure;
use crate::files;
use crate::parallel;
use crate::pass::StepPass;
use crate::report::say;
use crate::run::StepLog;
use crate::servers;

const AT_ONCE: usize = 3;
/// It begins first, so that it is not left alone at the end.
const LONGEST: &str = "workers";
/// An example that takes longer hangs or does too much; and for the lease of a paused worker to end, on a busy machine.
const EXAMPLE_LIMIT: Duration = Duration::from_mins(1);
/// How long a worker may take for its next line or its end, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// How many keys the README's program has, whose workers meet in a file.
const STARTER_KEYS: usize = 9;
/// How many rules the monitors have, which meet in a file.
const RULES: u64 = 8;
/// How many tenants the workers of a server share.
const TENANTS: u32 = 100;
/// A line of the example about orders, and how its last line begins.
const ORDERS_SAY: (&str, &str) = ("10 orders placed, 20 events booked, each once", "10 orders placed, 20 events booked, each once");
/// The same of transactions in sessions.
const POOL_SAYS: (&str, &str) = (
    "a tenant has 2 transactions at most, and each ends after 3s",
    "balances of (80, 120): each transaction was committed or rolled back in full",
);
/// The rows of the import: few enough to be quick, and so many that it is not at its end when its first owner is killed. And what it says.
const IMPORTED_ROWS: &str = "200000";
const IMPORTED: &str = "200000 rows imported by two owners, none twice, none left out";
/// The same of a paused worker that is refused: the account has the payments of both workers from before that.
const PAUSED_SAY: (&str, &str) = ("second worker: paid 10, 80 are left", "first worker:  owns account-42: false; payment refused: ");

/// Where the workers of an example meet in a file. Each example has its own: several run at once, and two of them publish another outbox in
/// the same group, which is refused.
const LOCAL_PATH: &str = "SHARDWISE__RESILIENCE__SHARDING__DISCOVERY__LOCAL__PATH";

pub(crate) const BUILD: &[&str] = &["build", "--workspace", "--all-features", "--examples"];

pub(crate) fn step(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    let mut examples = log.context.targets(&TargetKind::Example);
    examples.sort_by_key(|(_, name)| *name != LONGEST);
    log.run(log.context.cargo(BUILD))?;
    let outcomes = parallel::each(VecDeque::from(examples), AT_ONCE, |(package, name)| run(log.context, package, name));
    parallel::all_passed(outcomes).map(StepPass::many)
}

fn run(context: &TaskContext, package: &str, name: &str) -> Result<(), TaskFailure> {
    say(&format!("    {name}"));
    let binary = context.target().join("debug/examples").join(name);
    let program = ExampleProgram { context, binary: &binary };
    let folder = context.scratch(&format!("example-{name}"));
    files::empty(&folder)?;
    let meets_at = folder.join("shardwise.db");
    match name {
        "first_key" => servers::drive(program.shares_a_file()),
        "alert_monitor" => servers::drive(program.shares_rules()),
        "workers" => servers::drive(program.shares_everywhere()),
        "orders_postgres" | "paused_postgres" | "pool_sessions" => servers::drive(async {
            let database = Postgres::shared().await?.database().await?;
            let lines = match name {
                "orders_postgres" => ORDERS_SAY,
                "pool_sessions" => POOL_SAYS,
                _ => PAUSED_SAY,
            };
            let mut command = program.command(("DATABASE_URL", &database.url()));
            command.env(LOCAL_PATH, &meets_at);
            program.says(command, lines).await
        }),
        "claimed_postgres" => servers::drive(async {
            // Claims are granted only by a server that flushes to its disk.
            let database = Postgres::start(PostgresOptions::default().durable()).await?.database().await?;
            program.says(program.command(("DATABASE_URL", &database.url())), PAUSED_SAY).await
        }),
        "paused_etcd" => servers::drive(async {
            let server = Etcd::single().await?;
            program.says(program.command(("ETCD_ENDPOINT", &server.address())), PAUSED_SAY).await
        }),
        "import_rows" => {
            let mut command = program.command(("DATABASE_URL", ""));
            command.arg(IMPORTED_ROWS);
            servers::drive(program.says(command, (IMPORTED, IMPORTED)))
        }
        other if other.starts_with("paused_") => servers::drive(program.says(program.command(("DATABASE_URL", "")), PAUSED_SAY)),
        _ => {
            let log = StepLog::begin(context, &format!("example-{name}"))?;
            let mut command = context.command(&binary.to_string_lossy(), &[]);
            command.env(LOCAL_PATH, &meets_at);
            let ended = log.run_for(command, EXAMPLE_LIMIT);
            ended.map(drop).map_err(|failure| failure.repeated_by(format!("cargo run --package {package} --all-features --example {name}")))
        }
    }
}

struct ExampleProgram<'a> {
    context: &'a TaskContext,
    binary: &'a Path,
}

impl ExampleProgram<'_> {
    fn command(&self, (variable, value): (&str, &str)) -> Command {
        let mut command = Command::from(servers::user(self.context, &self.binary.to_string_lossy()));
        command.env(variable, value).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    fn failed(&self, why: impl std::fmt::Display) -> TaskFailure {
        TaskFailure::new(format!("{}: {why}", self.binary.display()))
    }

    fn start(&self, mut command: Command) -> Result<ExampleWorker, TaskFailure> {
        let mut child = command.spawn().map_err(|error| self.failed(error))?;
        let out = child.stdout.take().ok_or_else(|| self.failed("it has no output"))?;
        Ok(ExampleWorker { child, lines: BufReader::new(out).lines(), heard: Vec::new() })
    }

    /// What it wrote until it ended, and how.
    async fn ended(&self, mut command: Command) -> Result<Output, TaskFailure> {
        match timeout(EXAMPLE_LIMIT, command.output()).await {
            Ok(ended) => ended.map_err(|error| self.failed(error)),
            Err(_) => Err(self.failed(format_args!("no end after {} s", EXAMPLE_LIMIT.as_secs()))),
        }
    }

    /// It succeeds, writes that line, and ends with one that begins like that.
    async fn says(&self, command: Command, (line, last): (&str, &str)) -> Result<(), TaskFailure> {
        let output = self.ended(command).await?;
        let (said, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let ended_so = said.lines().last().is_some_and(|said| said.starts_with(last));
        if output.status.success() && ended_so && said.lines().any(|said| said == line) {
            return Ok(());
        }
        let status = output.status;
        Err(self.failed(format_args!("{status} instead of success with the lines {line:?} and, last, {last:?}:\n{said}{complaint}")))
    }

    /// Two terminals share the keys, Ctrl-C ends one, and the other has all of them again.
    async fn shares_a_file(&self) -> Result<(), TaskFailure> {
        let folder = self.context.scratch("starter");
        files::empty(&folder)?;
        let path = folder.join("shardwise.db");
        let terminal = |id: &str| {
            let mut command = self.command(("SHARDWISE__RESILIENCE__SHARDING__INSTANCE__ID", id));
            command.env(LOCAL_PATH, &path);
            self.start(command)
        };
        let mut first = terminal("worker-1")?;
        first.keys("all keys", |keys| keys.len() == STARTER_KEYS).await?;
        let mut second = terminal("worker-2")?;
        let theirs = second.keys("a part of the keys", |keys| (1..STARTER_KEYS).contains(&keys.len())).await?;
        let others = |keys: &BTreeSet<String>| keys.is_disjoint(&theirs) && keys.len() + theirs.len() == STARTER_KEYS;
        first.keys("the keys that the second one has not", others).await?;
        second.ends_by(Signal::SIGINT, None).await?;
        first.keys("all keys again", |keys| keys.len() == STARTER_KEYS).await?;
        first.ends_by(Signal::SIGINT, None).await
    }

    /// Two monitors share the rules, SIGTERM ends one, and the other has all of them again.
    async fn shares_rules(&self) -> Result<(), TaskFailure> {
        let folder = self.context.scratch("alert-monitor");
        files::empty(&folder)?;
        let monitor = |id: &str| {
            let mut command = self.command(("SHARDWISE__RESILIENCE__SHARDING__INSTANCE__ID", id));
            command.env(LOCAL_PATH, folder.join("shardwise.db"));
            command.arg("run").arg(self.context.root().join("examples/alert_monitor.toml")).arg("alert_monitors");
            self.start(command)
        };
        let rebalanced = |line: &str| serde_json::from_str::<Value>(line).ok().filter(|line| line["did"] == "rebalanced");
        let has_all = |line: &str| rebalanced(line).filter(|line| line["rules"] == RULES).map(drop);
        let left = r#"{"did":"left"}"#;
        let mut first = monitor("worker-1")?;
        first.until("all rules", has_all).await?;
        let mut second = monitor("worker-2")?;
        second.until("a part of the slots", |line| rebalanced(line).map(drop)).await?;
        second.ends_by(Signal::SIGTERM, Some(left)).await?;
        first.until("all rules again", has_all).await?;
        first.ends_by(Signal::SIGTERM, Some(left)).await
    }

    /// The same program with the settings of each backend.
    async fn shares_everywhere(&self) -> Result<(), TaskFailure> {
        let folder = self.context.scratch("workers");
        files::empty(&folder)?;
        self.shares("local", "LOCAL__PATH", &folder.join("workers.db").to_string_lossy()).await?;
        let consul = Consul::single().await?;
        self.shares_beside("consul", "CONSUL__ADDRESS", &consul.address(), consul).await?;
        let etcd = Etcd::single().await?;
        self.shares_beside("etcd", "ETCD__ENDPOINTS", &etcd.address(), etcd).await?;
        let nats = Nats::start(NatsOptions::default().newest()).await?;
        self.shares_beside("nats", "NATS__URLS", &nats.address(), nats).await?;
        let valkey = Redis::start(RedisOptions::default().valkey()).await?;
        self.shares_beside("valkey", "VALKEY__URL", &valkey.address(), valkey).await?;
        let database = Postgres::start(PostgresOptions::default()).await?.database().await?;
        let url = database.url();
        let mut init = self.worker("postgres", "POSTGRES__URL", &url);
        init.arg("init");
        let output = self.ended(init).await?;
        if !output.status.success() {
            return Err(self.failed(format_args!("init: {}", String::from_utf8_lossy(&output.stderr))));
        }
        self.shares_beside("postgres", "POSTGRES__URL", &url, database).await
    }

    /// A worker with those settings, and a key of theirs with another value.
    fn worker(&self, settings: &str, key: &str, value: &str) -> Command {
        let mut command = self.command((&format!("SHARDWISE__RESILIENCE__SHARDING__DISCOVERY__{key}"), value));
        command.arg(settings);
        command
    }

    /// One works alone, a second takes its part, and leaves; then the first has everything again, and leaves.
    async fn shares(&self, settings: &str, key: &str, value: &str) -> Result<(), TaskFailure> {
        let worker = || self.start(self.worker(settings, key, value));
        let mut first = worker()?;
        first.share(1, Some(TENANTS)).await?;
        let mut second = worker()?;
        let (one, two) = (first.share(2, None).await?, second.share(2, None).await?);
        if one == 0 || two == 0 || one + two != TENANTS {
            return Err(self.failed(format_args!("{settings}: two workers have {one} and {two} of {TENANTS} tenants")));
        }
        second.ends_by(Signal::SIGTERM, Some("left")).await?;
        first.share(1, Some(TENANTS)).await?;
        first.ends_by(Signal::SIGTERM, Some("left")).await
    }

    /// [`ExampleProgram::shares`]; then, without the server, a worker says so, in one line that names the address, and ends.
    async fn shares_beside<S>(&self, settings: &str, key: &str, address: &str, server: S) -> Result<(), TaskFailure> {
        self.shares(settings, key, address).await?;
        drop(server);
        let output = self.ended(self.worker(settings, key, address)).await?;
        let said = String::from_utf8_lossy(&output.stderr);
        let place = address.rsplit(['@', '/']).find(|part| part.contains(':')).unwrap_or(address);
        if output.status.success() || said.lines().count() != 1 || !said.contains(place) {
            return Err(self.failed(format_args!("without its server at {place} it ends with {} and says: {said:?}", output.status)));
        }
        Ok(())
    }
}

struct ExampleWorker {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    heard: Vec<String>,
}

impl ExampleWorker {
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

    /// Its share of the tenants as soon as it sees that many workers, and has that many tenants if so many are wanted.
    async fn share(&mut self, workers: u32, wanted: Option<u32>) -> Result<u32, TaskFailure> {
        let start = format!("workers: {workers}, mine: ");
        let end = format!(" of {TENANTS} tenants");
        self.until(&start, |line| {
            let mine = line.strip_prefix(&start)?.strip_suffix(&end)?.parse().ok()?;
            wanted.is_none_or(|wanted| mine == wanted).then_some(mine)
        })
        .await
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

    /// That signal; it says a last line if it has one, and ends well.
    async fn ends_by(mut self, signal: Signal, last: Option<&str>) -> Result<(), TaskFailure> {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        let id = id.ok_or_else(|| TaskFailure::new(format!("a worker ended by itself; it said {:?}", self.heard)))?;
        kill(Pid::from_raw(id), signal).map_err(TaskFailure::at(signal))?;
        if let Some(last) = last {
            self.until(last, |line| (line == last).then_some(())).await?;
        }
        match timeout(PATIENCE, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            ended => Err(TaskFailure::new(format!("a worker that left ended with {ended:?}"))),
        }
    }
}
