//! `shardwise outbox`: creates, fills, publishes and inspects an outbox.

mod counts;
mod dead;
mod enqueue;
mod listen;
mod open_store;
mod restored;
mod run;
mod sidecar_outbox;
mod sink;
mod status;

use clap::{Args, Subcommand};
use serde_json::json;
use shardwise::ShardingFactory;
use shardwise_outbox::settings::{LoadedSettings, OutboxSettings};
use shardwise_outbox::{ErrorKind, one_line};

use self::open_store::OpenedStore;
pub(crate) use self::sidecar_outbox::SidecarOutbox;
use super::{IS_IT_THERE, load_with_outboxes, waiting, waits_for};
use crate::common::Common;
use crate::exit::{CliFailure, Code, Result};
use crate::output::count;

#[derive(Debug, Subcommand)]
pub(crate) enum OutboxCommand {
    /// Create the tables, or bring them up to date
    #[command(after_help = "  shardwise outbox init")]
    Init(OutboxArgs),
    /// Write events from JSON lines into the outbox
    #[command(after_help = "\
Each line is {\"aggregatetype\":…, \"aggregateid\":…, \"type\":…, \"payload\":…}, with \"id\" and \"headers\" if you like. A refused line is printed with \
number and reason; the others are written. Ctrl-C stops between lines and prints how far it came.
Exit code 1: a line was refused.

  shardwise outbox enqueue --from events.jsonl")]
    Enqueue(enqueue::Enqueue),
    /// Publish a share of the outbox until SIGTERM or Ctrl-C
    #[command(after_help = "\
Start as many as you like: each publishes its own share. SIGTERM and Ctrl-C finish the events in flight and release the slots; a second one \
ends at once, and the others take over after a TTL.
On a terminal it draws its counts in place; elsewhere, and with --json, it prints them as JSON lines, at most every 10 s. They go to stderr \
if the sink is stdout, and with --listen they are in /metrics only, unless --json is given.
Traces go to $OTEL_EXPORTER_OTLP_ENDPOINT, if it is set.

  shardwise outbox run --id publisher-1")]
    Run(run::RunPublisher),
    /// Print what is pending, blocked and parked, and who publishes
    #[command(after_help = "\
Exit code 1: something is stuck. Blocked aggregates count once the oldest event has waited for a minute.

  shardwise outbox status --name orders")]
    Status(OutboxArgs),
    /// Let blocked aggregates try their first event again
    #[command(after_help = "Exit code 1: nothing was blocked, or not that aggregate.\n\n  shardwise outbox unblock --key order/42")]
    Unblock(Unblock),
    /// List dead letters: parked events and those that block an aggregate
    #[command(after_help = "  shardwise outbox list --key order/42")]
    List(dead::List),
    /// Send dead letters again
    #[command(after_help = dead::REPLAY_HELP)]
    Replay(dead::Replay),
    /// Send an aggregate again from its parked event on
    #[command(after_help = dead::REPLAY_AGGREGATE_HELP)]
    ReplayAggregate(dead::ReplayAggregate),
    /// Delete dead letters; a blocked aggregate continues with the next
    #[command(after_help = "\
Exit code 1: one of the events is not a dead letter; the others are deleted anyway.

  shardwise outbox discard ID --reason 'a test event'")]
    Discard(dead::Discard),
    /// Print who replayed or discarded what, and why
    #[command(after_help = "  shardwise outbox audit --limit 20")]
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

/// A name escaped for a terminal; JSON output contains the original.
fn safe(name: &str) -> String {
    one_line(name, usize::MAX)
}
