//! `shardwise outbox`: creates, fills, publishes and inspects an outbox.

mod counts;
mod dead;
mod listen;
mod open_store;
mod restored;
mod sidecar_outbox;
mod sink;
mod status;

use std::net::SocketAddr;
use std::path::PathBuf;

use std::sync::Arc;

use clap::{Args, Subcommand};
use serde_json::json;
use shardwise::ShardingFactory;
use shardwise::settings::ADDRESS_AUTO;
use shardwise_outbox::settings::{LoadedSettings, OutboxSettings, SinkSettings};
use shardwise_outbox::{ErrorKind, OutboxPublisher, one_line};
use shardwise_sidecar::goes_on;

use self::counts::CountsDisplay;
use self::open_store::OpenedStore;
pub(crate) use self::sidecar_outbox::SidecarOutbox;
use super::group::IdArg;
use super::{IS_IT_THERE, WHY_NOT_JOINED, load_with_outboxes, waiting, waits_for};
use crate::common::Common;
use crate::events::{self, EventLine};
use crate::exit::{CliFailure, Code, Result};
use crate::listen_address::listen_address;
use crate::output::{self, Format, count};
use crate::supervisor::Supervisor;
use crate::{signals, status_line, traces};

/// The most refused lines in the JSON output; all are counted.
const REFUSED_SHOWN_MAX: usize = 10_000;
/// The most lines in one transaction.
const ENQUEUE_BATCH: usize = 500;

#[derive(Debug, Subcommand)]
pub(crate) enum OutboxCommand {
    /// Create the tables, or bring them up to date
    Init(OutboxArgs),
    /// Write events from JSON lines into the outbox
    #[command(after_help = "\
Each line is {\"aggregatetype\":…, \"aggregateid\":…, \"type\":…, \"payload\":…}, with \"id\" and \"headers\" if you like. A refused line is printed with \
number and reason; the others are written. Ctrl-C stops between lines and prints how far it came.
Exit code 1: a line was refused.

  shardwise outbox enqueue --from events.jsonl")]
    Enqueue(Enqueue),
    /// Publish a share of the outbox until SIGTERM or Ctrl-C
    #[command(after_help = "\
Start as many as you like: each publishes its own share. SIGTERM and Ctrl-C finish the events in flight and release the slots; a second one \
ends at once, and the others take over after a TTL.
On a terminal it draws its counts in place; elsewhere, and with --json, it prints them as JSON lines, at most every 10 s. They go to stderr \
if the sink is stdout, and with --listen they are in /metrics only, unless --json is given.
Traces go to $OTEL_EXPORTER_OTLP_ENDPOINT, if it is set.

  shardwise outbox run --id publisher-1")]
    Run(RunPublisher),
    /// Print what is pending, blocked and parked, and who publishes
    #[command(after_help = "Exit code 1: something is stuck. Blocked aggregates count once the oldest event has waited for a minute.")]
    Status(OutboxArgs),
    /// Let blocked aggregates try their first event again
    #[command(after_help = "Exit code 1: nothing was blocked, or not that aggregate.")]
    Unblock(Unblock),
    /// List dead letters: parked events and those that block an aggregate
    List(dead::List),
    /// Send dead letters again
    #[command(after_help = dead::REPLAY_HELP)]
    Replay(dead::Replay),
    /// Send an aggregate again from its parked event on
    #[command(after_help = dead::REPLAY_AGGREGATE_HELP)]
    ReplayAggregate(dead::ReplayAggregate),
    /// Delete dead letters; a blocked aggregate continues with the next
    #[command(after_help = "Exit code 1: one of the events is not a dead letter; the others are deleted anyway.")]
    Discard(dead::Discard),
    /// Print who replayed or discarded what, and why
    Audit(dead::Audit),
    /// Lift epochs and sequences after commits were lost
    #[command(after_help = restored::HELP)]
    Restored(restored::RestoredArgs),
}

#[derive(Debug, Args)]
pub(crate) struct OutboxArgs {
    /// Use this outbox of the settings [default: the only one]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Enqueue {
    #[command(flatten)]
    which: OutboxArgs,
    /// Read the lines from this file [default: stdin]
    #[arg(long, default_value = "-", hide_default_value = true, value_name = "FILE")]
    from: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Unblock {
    #[command(flatten)]
    which: OutboxArgs,
    /// Unblock only this aggregate, as TYPE/ID
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

impl Unblock {
    async fn run(&self, outbox: &OutboxSettings, common: &Common) -> Result<Code> {
        let store = OpenedStore::open(outbox).await?;
        let unblocked = store.shared().unblock(self.key.as_deref()).await?;
        store.close().await;
        common.print(&json!({"unblocked": unblocked}), || match &self.key {
            Some(key) if unblocked == 0 => format!("{key} is not blocked; `shardwise outbox list` shows what is, as TYPE/ID\n"),
            _ => format!("{} unblocked\n", count(unblocked, "aggregate")),
        })?;
        Ok(if unblocked == 0 { Code::No } else { Code::Ok })
    }
}

#[derive(Debug, Args)]
pub(crate) struct RunPublisher {
    #[command(flatten)]
    which: OutboxArgs,
    #[command(flatten)]
    id: IdArg,
    /// Serve /livez, /readyz and /metrics on a local port or ADDRESS:PORT
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    listen: Option<SocketAddr>,
    /// Accept requests for this host name too; repeatable
    #[arg(long, value_name = "NAME", requires = "listen")]
    allow_host: Vec<String>,
    /// Stop when the process that started this one, which has this id, is gone
    #[arg(long, hide = true, value_name = "PID")]
    exit_with_parent: Option<u32>,
}

impl From<shardwise_outbox::Error> for CliFailure {
    fn from(error: shardwise_outbox::Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Settings => Code::Usage,
            ErrorKind::Unavailable | ErrorKind::Missing => Code::Unavailable,
            ErrorKind::LostCommits => Code::LostCommits,
            _ => Code::Refused,
        };
        Self::new(code, error.to_string())
    }
}

impl OutboxCommand {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        let settings = load_with_outboxes(common)?;
        match self {
            Self::Init(which) => init(which.of(&settings)?, &settings, common).await,
            Self::Enqueue(enqueue) => enqueue.run(enqueue.which.of(&settings)?, common).await,
            Self::Run(run) => Box::pin(run.run(settings, common)).await,
            Self::Status(which) => status::run(which.of(&settings)?, common).await,
            Self::Unblock(unblock) => unblock.run(unblock.which.of(&settings)?, common).await,
            Self::List(list) => list.run(list.which.of(&settings)?, common).await,
            Self::Replay(replay) => replay.run(replay.which.of(&settings)?, common).await,
            Self::ReplayAggregate(replay) => replay.run(replay.which.of(&settings)?, common).await,
            Self::Discard(discard) => discard.run(discard.which.of(&settings)?, common).await,
            Self::Audit(audit) => audit.run(audit.which.of(&settings)?, common).await,
            Self::Restored(restored) => restored.run(restored.which.of(&settings)?, common).await,
        }
    }
}

impl OutboxArgs {
    fn of<'s>(&'s self, settings: &'s LoadedSettings) -> Result<&'s OutboxSettings> {
        self.named(settings).map(|(_, outbox)| outbox)
    }

    /// The selected outbox, and its name in the settings.
    fn named<'s>(&'s self, settings: &'s LoadedSettings) -> Result<(&'s str, &'s OutboxSettings)> {
        match (&self.name, settings.outboxes.iter().next()) {
            (Some(name), _) => Ok((name, settings.outbox(name)?)),
            (None, Some((name, outbox))) if settings.outboxes.len() == 1 => Ok((name.as_str(), outbox)),
            (None, None) => Err(CliFailure::usage(
                "the settings have no outbox: add [default.outbox.NAME] with policy, store and sink, and the policy; `shardwise init --outbox` \
                 writes both into a new file",
            )),
            (None, Some(_)) => {
                let names: Vec<_> = settings.outboxes.keys().map(shardwise::PolicyName::as_str).collect();
                Err(CliFailure::usage(format!("which outbox? Write --name NAME; the settings have: {}", names.join(", "))))
            }
        }
    }
}

/// Where its publishers meet in it, they need tables too.
async fn init(outbox: &OutboxSettings, LoadedSettings { settings, .. }: &LoadedSettings, common: &Common) -> Result<Code> {
    let store = OpenedStore::init(outbox).await?;
    store.close().await;
    let (mut shown, mut text) = (json!({"store": outbox.store.to_string()}), format!("the outbox is ready: {}\n", store.place()));
    let policy = outbox.policy.as_str();
    if settings.policy(policy)?.discovery.is_in_outbox() {
        let factory = ShardingFactory::from_settings(settings.clone())?;
        let done = waiting(&waits_for(&factory, policy), IS_IT_THERE, factory.init_backend(policy)).await?;
        text = format!("{text}its publishers meet there: {done}\n");
        shown["backend"] = done.into();
    }
    common.print(&shown, || text)?;
    Ok(Code::Ok)
}

impl Enqueue {
    async fn run(&self, outbox: &OutboxSettings, common: &Common) -> Result<Code> {
        let store = OpenedStore::open(outbox).await?;
        let shutdown = signals::shutdown()?;
        let mut lines = events::open(&self.from)?;
        let (mut enqueued, mut refused, mut refused_total) = (0u64, Vec::new(), 0u64);
        let (mut batch, mut through) = (Vec::with_capacity(ENQUEUE_BATCH), 0);
        loop {
            let so_far = |failure: CliFailure| match through {
                0 => failure.and("nothing was written"),
                _ => failure.and(format_args!("{} of lines 1 to {through} written, go on behind them", count(enqueued, "event"))),
            };
            let read = tokio::select! {
                read = lines.recv_many(&mut batch, ENQUEUE_BATCH) => read,
                () = shutdown.cancelled() => return Err(so_far(CliFailure::new(Code::No, "interrupted"))),
            };
            if read == 0 {
                break;
            }
            let last = batch.last().and_then(|line| line.as_ref().ok()).map_or(through, |line| line.number);
            let (written, mut bad) = write(&store, std::mem::take(&mut batch)).await.map_err(so_far)?;
            (enqueued, through) = (enqueued + written, last);
            refused_total += bad.len() as u64;
            if common.format() == Format::Human {
                bad.drain(..).for_each(|(line, why)| output::note(format_args!("line {line}: {why}")));
            } else {
                bad.truncate(REFUSED_SHOWN_MAX.saturating_sub(refused.len()));
                refused.append(&mut bad);
            }
        }
        store.close().await;
        let refused: Vec<_> = refused.iter().map(|(line, reason)| json!({"line": line, "reason": reason})).collect();
        let json = json!({"enqueued": enqueued, "refused": refused, "refused_total": refused_total});
        let text = || format!("{} enqueued, {} refused\n", count(enqueued, "event"), count(refused_total, "line"));
        // If only the failure of stdout were reported, the user would enqueue the events again.
        common.print(&json, text).map_err(|failure| failure.and(format_args!("{} enqueued all the same", count(enqueued, "event"))))?;
        Ok(if refused_total == 0 { Code::Ok } else { Code::No })
    }
}

/// Writes the valid lines of a batch in one transaction; a line that the store refuses does not prevent the others.
async fn write(store: &OpenedStore, batch: Vec<Result<EventLine>>) -> Result<(u64, Vec<(u64, String)>)> {
    let (mut good, mut numbers, mut refused) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()), Vec::new());
    for line in batch {
        let EventLine { number, event } = line?;
        match event {
            Ok(event) => {
                good.push(event);
                numbers.push(number);
            }
            Err(why) => refused.push((number, why)),
        }
    }
    let answers = store.enqueue_each(good).await?;
    let written = answers.iter().filter(|answer| answer.is_ok()).count() as u64;
    refused.extend(numbers.into_iter().zip(answers).filter_map(|(number, answer)| answer.err().map(|error| (number, error.to_string()))));
    refused.sort_by_key(|(number, _)| *number);
    Ok((written, refused))
}

impl RunPublisher {
    async fn run(&self, mut settings: LoadedSettings, common: &Common) -> Result<Code> {
        if let Some(parent) = self.exit_with_parent {
            exit_with_parent(parent)?;
        }
        // Errors are reported in this order: the settings, before anything is contacted; the store; the group.
        self.id.put(&mut settings.settings)?;
        let (name, outbox) = self.which.named(&settings)?;
        let sink = sink::made(outbox)?;
        let factory = ShardingFactory::from_settings(settings.settings.clone())?;
        traces::runs_as(factory.instance_id().as_str());
        let shutdown = signals::shutdown()?;
        let listener = match self.listen {
            Some(address) => Some(listen::bind(address).await?),
            None => None,
        };
        let store = waiting(&format!("the outbox's store {}", outbox.store), IS_IT_THERE, OpenedStore::open(outbox)).await?;
        let what = waits_for(&factory, outbox.policy.as_str());
        let joining = async {
            // An unreachable sink may become reachable; an error that an operator must fix prevents the start.
            match sink.check().await {
                Err(error) if error.is_retryable() => output::note(format_args!("{error}; trying again while publishing")),
                checked => checked?,
            }
            let serves = shardwise_outbox::serves(&*store.shared(), name).await?;
            let sharding = factory.create_serving(outbox.policy.as_str(), serves)?;
            let publisher = OutboxPublisher::new(store.shared(), sink, Arc::new(sharding.clone()))?.options(outbox.options.clone())?;
            tokio::select! {
                joined = waiting(&what, WHY_NOT_JOINED, sharding.register_self()) => joined?,
                () = shutdown.cancelled() => {}
            }
            Ok::<_, CliFailure>((sharding, publisher))
        };
        let (sharding, publisher) = match joining.await {
            Ok(joined) => joined,
            Err(failure) => {
                store.close().await;
                return Err(failure);
            }
        };
        output::release_log();
        output::note(format_args!("publishing as {}; Ctrl-C or SIGTERM stops", sharding.instance_id()));
        let stats = publisher.stats();
        let _listening = listener.map(|(listener, render)| {
            if let Ok(address) = listener.local_addr() {
                output::note(format_args!("listening on http://{address}"));
            }
            // A client may always call it by the address that stands for `auto`.
            let own = settings.settings.instance.address.iter().map(|address| address.host.clone()).filter(|host| host != ADDRESS_AUTO);
            let hosts = self.allow_host.iter().cloned().chain(own).collect();
            listen::serve(listener, hosts, listen::ListenState { stats: stats.clone(), sharding: sharding.clone() }, render)
        });
        let display = CountsDisplay::of(common.format(), matches!(outbox.sink, SinkSettings::Stdout), self.listen.is_some());
        let counts = display.show(stats.clone(), sharding.clone());
        let supervisor = Supervisor::from_environment();
        supervisor.notify("READY=1");
        let (turns, driver) = (stats.clone(), sharding.clone());
        let _watched = supervisor.watch(move || listen::turns(&turns, &driver).is_ok() && goes_on(&driver));
        // Both at once: other publishers want its slots while it finishes its work, and receive each slot as soon as it is released.
        let stopped = shutdown.clone();
        let publishing = async {
            let published = publisher.run(shutdown.clone()).await;
            shutdown.cancel();
            published
        };
        let leaving = async {
            stopped.cancelled().await;
            supervisor.notify("STOPPING=1");
            sharding.deregister_self().await
        };
        let (published, left) = tokio::join!(publishing, leaving);
        store.close().await;
        drop(counts);
        status_line::end();
        published?;
        left?;
        let now = stats.snapshot();
        output::note(format_args!(
            "stopped: {} delivered, {} retried, {} parked, {} discarded, {} fenced",
            now.delivered, now.retried, now.parked, now.discarded, now.fenced
        ));
        Ok(Code::Ok)
    }
}

/// Requests SIGTERM for this process when its parent ends, for whatever reason.
fn exit_with_parent(parent: u32) -> Result<()> {
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM)
        .map_err(|error| CliFailure::io("watch for the parent's end", &error.into()))?;
    if std::os::unix::process::parent_id() == parent {
        Ok(())
    } else {
        Err(CliFailure::new(Code::No, "the process that started this one is gone"))
    }
}

/// A name escaped for a terminal; JSON output contains the original.
fn safe(name: &str) -> String {
    one_line(name, usize::MAX)
}
