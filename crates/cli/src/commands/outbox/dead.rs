//! `shardwise outbox list | replay | replay-aggregate | discard | audit`: an operator's actions on dead letters.

use clap::Args;
use nix::unistd::{User, getuid};
use serde_json::{Value, json};
use shardwise_outbox::settings::OutboxSettings;
use shardwise_outbox::store::{AuditEntry, DeadLetter, DeadLetters, DeadState, LIST_MAX, REPLAY_EVENTS_MAX, ReplayResult, Signature};
use shardwise_sidecar::OutboxReplay;

use super::open_store::OpenedStore;
use super::{OutboxArgs, safe};
use crate::common::Common;
use crate::exit::{CliFailure, Code, Result};
use crate::output::{self, Format, count, table_or};

pub(super) const REPLAY_HELP: &str = "\
A parked event becomes the newest event of its aggregate: it is late, has a new sequence and is marked `replayed`. A blocked event is \
retried in its place, in order.
Exit code 1: one of the events is not a dead letter; the others are sent anyway.

  shardwise outbox replay --all --reason 'the sink works again'";

pub(super) const REPLAY_AGGREGATE_HELP: &str = "\
Everything from the parked event on is sent again, in order, with sequences above all earlier ones; events that were delivered before are \
marked `replayed`. Events that retention has deleted in between stay deleted, and are counted. Events in flight in the aggregate's slot may \
arrive twice, as at a takeover. The slot's publisher waits meanwhile: seconds on PostgreSQL for thousands of events.
Exit code 1: nothing of the aggregate is parked.

  shardwise outbox replay-aggregate order/42 --reason 'the consumer lost it'";

/// Who acts, and why.
#[derive(Debug, Args)]
pub(crate) struct SignatureArgs {
    /// Record this reason in the outbox
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Record this name [default: the user of this process]
    #[arg(long = "as", value_name = "NAME")]
    who: Option<String>,
}

impl SignatureArgs {
    fn signature(&self) -> Result<Signature> {
        let uid = getuid();
        let user = || User::from_uid(uid).ok().flatten().map_or_else(|| format!("uid {uid}"), |user| user.name);
        let who = self.who.clone().unwrap_or_else(user);
        Ok(Signature::new(&who, &self.reason)?)
    }
}

#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    pub(super) which: OutboxArgs,
    /// List only this aggregate, as TYPE/ID
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// List at most this many events
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=10_000), value_name = "N")]
    limit: u16,
}

impl List {
    pub(super) async fn run(&self, outbox: &OutboxSettings, common: &Common) -> Result<Code> {
        let store = OpenedStore::open(outbox).await?;
        let letters = store.dead_letters().dead_letters(self.key.as_deref(), self.limit.into()).await?;
        store.close().await;
        let cut = letters.len() == usize::from(self.limit);
        common.print(&json!({"dead_letters": letters.iter().map(as_json).collect::<Vec<_>>(), "cut": cut}), || {
            let rows: Vec<_> = letters.iter().map(row).collect();
            table_or("no dead letter", &["event", "aggregate", "type", "sequence", "is", "for", "why"], &rows)
        })?;
        if cut && common.format() == Format::Human {
            output::note("there may be more: --limit");
        }
        Ok(Code::Ok)
    }
}

fn as_json(letter: &DeadLetter) -> Value {
    json!({
        "id": letter.id, "key": letter.key, "type": letter.event_type, "sequence": letter.sequence, "state": letter.state.as_str(),
        "dead_for_seconds": letter.dead_for.as_secs_f64(), "error": letter.error, "payload_bytes": letter.payload_bytes,
        "replayed": letter.replayed,
    })
}

fn row(letter: &DeadLetter) -> Vec<String> {
    vec![
        safe(&letter.id),
        safe(&letter.key),
        safe(&letter.event_type),
        letter.sequence.to_string(),
        letter.state.as_str().into(),
        format!("{:.0?}", letter.dead_for),
        letter.error.clone(),
    ]
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    #[command(flatten)]
    pub(super) which: OutboxArgs,
    /// Send these events, by their ids in `list`
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<String>,
    /// Send all parked events instead, the longest parked first
    #[arg(long)]
    all: bool,
    /// Send at most this many events of --all
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(1..=10_000), value_name = "N")]
    limit: u16,
    #[command(flatten)]
    signed: SignatureArgs,
}

impl Replay {
    pub(super) async fn run(&self, outbox: &OutboxSettings, common: &Common) -> Result<Code> {
        let signature = self.signed.signature()?;
        let store = OpenedStore::open(outbox).await?;
        let dead = store.dead_letters();
        let ids = if self.all { parked(&*dead, self.limit.into()).await? } else { self.ids.clone() };
        let mut done = Vec::with_capacity(ids.len());
        for id in ids {
            let action = replay(&*dead, id, &signature).await.map_err(|error| interrupted(error, &done))?;
            done.push(action);
        }
        store.close().await;
        report(&done, common)
    }
}

async fn parked(dead: &dyn DeadLetters, limit: usize) -> Result<Vec<String>> {
    let letters = dead.dead_letters(None, LIST_MAX).await?;
    Ok(letters.into_iter().filter(|letter| letter.state == DeadState::Parked).map(|letter| letter.id).take(limit).collect())
}

/// Sends a dead letter again.
pub(super) async fn replay(dead: &dyn DeadLetters, id: String, by: &Signature) -> shardwise_outbox::Result<OutboxReplay> {
    let (done, sequence) = match dead.replay(&id, by).await? {
        None => (None, None),
        Some(ReplayResult::Unblocked) => (Some("unblocked".into()), None),
        Some(ReplayResult::Appended { sequence }) => (Some("replayed".into()), Some(sequence)),
    };
    Ok(OutboxReplay { id, done, sequence })
}

/// The error after an interruption, with the actions that were already done.
fn interrupted(error: shardwise_outbox::Error, done: &[OutboxReplay]) -> CliFailure {
    let before = done.iter().filter(|action| action.done.is_some()).count() as u64;
    CliFailure::from(error).and(format_args!("{} done before", count(before, "event")))
}

fn report(done: &[OutboxReplay], common: &Common) -> Result<Code> {
    common.print(&json!({"events": done}), || {
        let line = |action: &OutboxReplay| match (safe(&action.id), &action.done, action.sequence) {
            (id, Some(done), Some(sequence)) => format!("{id}: {done}, its sequence is now {sequence}\n"),
            (id, Some(done), None) => format!("{id}: {done}\n"),
            (id, None, _) => format!("{id}: neither parked nor at the head of a blocked aggregate; nothing done\n"),
        };
        if done.is_empty() { "nothing is parked\n".into() } else { done.iter().map(line).collect() }
    })?;
    Ok(if done.iter().all(|action| action.done.is_some()) { Code::Ok } else { Code::No })
}

/// The range of `--limit` is written out below, because clap wants literals.
const _: () = assert!(REPLAY_EVENTS_MAX == 10_000);

#[derive(Debug, Args)]
pub(crate) struct ReplayAggregate {
    #[command(flatten)]
    pub(super) which: OutboxArgs,
    /// Send this aggregate, as TYPE/ID
    #[arg(value_name = "KEY")]
    key: String,
    /// Begin with this parked event [default: the aggregate's first]
    #[arg(long, value_name = "ID")]
    from: Option<String>,
    /// Refuse if that is more events than this, up to 10000
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u16).range(1..=10_000), value_name = "N")]
    limit: u16,
    #[command(flatten)]
    signed: SignatureArgs,
}

impl ReplayAggregate {
    pub(super) async fn run(&self, outbox: &OutboxSettings, common: &Common) -> Result<Code> {
        let signature = self.signed.signature()?;
        let store = OpenedStore::open(outbox).await?;
        let resent = store.dead_letters().replay_aggregate(&self.key, self.from.as_deref(), self.limit.into(), &signature).await?;
        store.close().await;
        let (events, gone) = resent.map_or((0, Some(0)), |sent| (sent.events, sent.gone));
        common.print(&json!({"events": events, "gone": gone, "sequence": resent.map(|sent| sent.from)}), || {
            let Some(sent) = resent else { return "nothing of this aggregate is parked, or not that event\n".into() };
            let gone = match gone {
                None | Some(0) => String::new(),
                Some(gone) => format!("; {} in between were deleted before", count(gone, "event")),
            };
            format!("{} sent again, the sequence goes on with {}{gone}\n", count(events, "event"), sent.from)
        })?;
        Ok(if resent.is_some() { Code::Ok } else { Code::No })
    }
}

#[derive(Debug, Args)]
pub(crate) struct Discard {
    #[command(flatten)]
    pub(super) which: OutboxArgs,
    /// Delete these events, by their ids in `list`
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    #[command(flatten)]
    signed: SignatureArgs,
}

impl Discard {
    pub(super) async fn run(&self, outbox: &OutboxSettings, common: &Common) -> Result<Code> {
        let signature = self.signed.signature()?;
        let store = OpenedStore::open(outbox).await?;
        let dead = store.dead_letters();
        let mut done = Vec::with_capacity(self.ids.len());
        for id in &self.ids {
            let discarded = dead.discard(id, &signature).await.map_err(|error| interrupted(error, &done))?;
            done.push(OutboxReplay { id: id.clone(), done: discarded.then(|| "discarded".into()), sequence: None });
        }
        store.close().await;
        report(&done, common)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Audit {
    #[command(flatten)]
    pub(super) which: OutboxArgs,
    /// Print at most this many lines, the newest first
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=10_000), value_name = "N")]
    limit: u16,
}

impl Audit {
    pub(super) async fn run(&self, outbox: &OutboxSettings, common: &Common) -> Result<Code> {
        let store = OpenedStore::open(outbox).await?;
        let entries = store.dead_letters().audit(self.limit.into()).await?;
        store.close().await;
        let entry = |entry: &AuditEntry| {
            json!({
                "ago_seconds": entry.ago.as_secs_f64(), "who": entry.who, "action": entry.action, "event": entry.event,
                "key": entry.key, "sequence": entry.sequence, "events": entry.events, "why": entry.why,
            })
        };
        let row = |entry: &AuditEntry| {
            vec![
                format!("{:.0?} ago", entry.ago),
                safe(&entry.who),
                entry.action.clone(),
                safe(&entry.event),
                safe(&entry.key),
                entry.sequence.to_string(),
                entry.events.to_string(),
                safe(&entry.why),
            ]
        };
        common.print(&json!({"audit": entries.iter().map(entry).collect::<Vec<_>>()}), || {
            let rows: Vec<_> = entries.iter().map(row).collect();
            let heading = ["when", "who", "did", "event", "aggregate", "sequence", "events", "why"];
            table_or("nothing was replayed or discarded", &heading, &rows)
        })?;
        Ok(Code::Ok)
    }
}
