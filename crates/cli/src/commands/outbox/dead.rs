//! `shardwise outbox list | replay | replay-aggregate | discard | audit`: an operator's actions on dead letters.

use clap::Args;
use nix::unistd::{User, getuid};
use serde_json::json;
use shardwise_outbox::one_line;
use shardwise_outbox::settings::LoadedSettings;
use shardwise_outbox::store::{DeadLetter, DeadLetters, DeadState, REPLAY_EVENTS_MAX, ReplayResult, Signature};

use super::OutboxArgs;
use super::open_store::OpenedStore;
use crate::args::Common;
use crate::exit::{CliFailure, Code, Result};
use crate::output::{self, Format, count};

pub(super) const REPLAY_HELP: &str = "\
A parked event becomes the newest event of its aggregate: it is late, has a new sequence and is marked `replayed`. A blocked event is \
retried in its place, in order.
Exit code 1: one of the events is no dead letter; the others are sent anyway.";

pub(super) const REPLAY_AGGREGATE_HELP: &str = "\
Everything from the parked event on is sent again, in order, with sequences above all earlier ones; events that were delivered before are \
marked `replayed`. Events that retention has deleted in between stay deleted, and are counted. Events in flight in the aggregate's slot may \
arrive twice, as at a takeover. The slot's publisher waits meanwhile: seconds on PostgreSQL for thousands of events.
Exit code 1: nothing of the aggregate is parked.";

/// The result of an action, for terminals and for JSON.
struct ActionReport {
    id: String,
    /// `None`: it is not a dead letter.
    what: Option<String>,
    sequence: Option<u64>,
}

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
    which: OutboxArgs,
    /// List only this aggregate, as TYPE/ID
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// List at most this many events
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=10_000), value_name = "N")]
    limit: u16,
}

impl List {
    pub(super) async fn run(&self, settings: &LoadedSettings, common: &Common) -> Result<Code> {
        let store = OpenedStore::open(self.which.of(settings)?).await?;
        let letters = store.dead_letters().dead_letters(self.key.as_deref(), self.limit.into()).await?;
        store.close().await;
        let cut = letters.len() == usize::from(self.limit);
        match common.format() {
            Format::Json => {
                let letters: Vec<_> = letters.iter().map(as_json).collect();
                output::json_line(&json!({"dead_letters": letters, "cut": cut}))?;
            }
            Format::Human if letters.is_empty() => output::text("no dead letter\n")?,
            Format::Human => {
                let rows: Vec<_> = letters.iter().map(row).collect();
                output::text(&output::table(&["event", "aggregate", "type", "sequence", "is", "for", "why"], &rows))?;
                if cut {
                    output::note("there may be more: --limit");
                }
            }
        }
        Ok(Code::Ok)
    }
}

fn as_json(letter: &DeadLetter) -> serde_json::Value {
    json!({
        "id": letter.id, "key": letter.key, "type": letter.event_type, "sequence": letter.sequence, "state": letter.state.as_str(),
        "dead_for_seconds": letter.dead_for.as_secs_f64(), "error": letter.error, "payload_bytes": letter.payload_bytes,
        "replayed": letter.replayed,
    })
}

fn row(letter: &DeadLetter) -> Vec<String> {
    let safe = |name: &str| one_line(name, usize::MAX);
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
    which: OutboxArgs,
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
    pub(super) async fn run(&self, settings: &LoadedSettings, common: &Common) -> Result<Code> {
        let (outbox, signature) = (self.which.of(settings)?, self.signed.signature()?);
        let store = OpenedStore::open(outbox).await?;
        let dead = store.dead_letters();
        let ids = if self.all { parked(&*dead, self.limit.into()).await? } else { self.ids.clone() };
        let mut done = Vec::with_capacity(ids.len());
        for id in ids {
            let replayed = dead.replay(&id, &signature).await.map_err(|error| interrupted(error, &done))?;
            let (what, sequence) = match replayed {
                None => (None, None),
                Some(ReplayResult::Unblocked) => (Some("unblocked".into()), None),
                Some(ReplayResult::Appended { sequence }) => (Some("replayed".into()), Some(sequence)),
            };
            done.push(ActionReport { id, what, sequence });
        }
        store.close().await;
        report(&done, common)
    }
}

async fn parked(dead: &dyn DeadLetters, limit: usize) -> Result<Vec<String>> {
    let letters = dead.dead_letters(None, shardwise_outbox::store::LIST_MAX).await?;
    Ok(letters.into_iter().filter(|letter| letter.state == DeadState::Parked).map(|letter| letter.id).take(limit).collect())
}

/// The error after an interruption, with the actions that were already done.
fn interrupted(error: shardwise_outbox::Error, done: &[ActionReport]) -> CliFailure {
    let before = done.iter().filter(|done| done.what.is_some()).count() as u64;
    CliFailure::from(error).and(format_args!("{} done before", count(before, "event")))
}

fn report(done: &[ActionReport], common: &Common) -> Result<Code> {
    let all = done.iter().all(|done| done.what.is_some());
    match common.format() {
        Format::Json => {
            let lines: Vec<_> = done.iter().map(|done| json!({"id": done.id, "done": done.what, "sequence": done.sequence})).collect();
            output::json_line(&json!({ "events": lines }))?;
        }
        Format::Human => {
            let line = |done: &ActionReport| {
                let id = one_line(&done.id, usize::MAX);
                match (&done.what, done.sequence) {
                    (Some(what), Some(sequence)) => format!("{id}: {what}, its sequence is now {sequence}\n"),
                    (Some(what), None) => format!("{id}: {what}\n"),
                    (None, _) => format!("{id}: neither parked nor at the head of a blocked aggregate; nothing done\n"),
                }
            };
            output::text(&if done.is_empty() { "nothing is parked\n".into() } else { done.iter().map(line).collect::<String>() })?;
        }
    }
    Ok(if all { Code::Ok } else { Code::No })
}

#[derive(Debug, Args)]
pub(crate) struct ReplayAggregate {
    #[command(flatten)]
    which: OutboxArgs,
    /// Send this aggregate, as TYPE/ID
    #[arg(value_name = "KEY")]
    key: String,
    /// Begin with this parked event [default: the aggregate's first]
    #[arg(long, value_name = "ID")]
    from: Option<String>,
    /// Refuse if that is more events than this, up to 10000
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    limit: usize,
    #[command(flatten)]
    signed: SignatureArgs,
}

impl ReplayAggregate {
    pub(super) async fn run(&self, settings: &LoadedSettings, common: &Common) -> Result<Code> {
        let (outbox, signature) = (self.which.of(settings)?, self.signed.signature()?);
        if !(1..=REPLAY_EVENTS_MAX).contains(&self.limit) {
            return Err(CliFailure::new(
                Code::Usage,
                format!("--limit is {}: a number from 1 to {REPLAY_EVENTS_MAX} is allowed", self.limit),
            ));
        }
        let store = OpenedStore::open(outbox).await?;
        let resent = store.dead_letters().replay_aggregate(&self.key, self.from.as_deref(), self.limit, &signature).await?;
        store.close().await;
        match (common.format(), resent) {
            (Format::Json, None) => output::json_line(&json!({"events": 0, "gone": 0, "sequence": null}))?,
            (Format::Json, Some(sent)) => output::json_line(&json!({"events": sent.events, "gone": sent.gone, "sequence": sent.from}))?,
            (Format::Human, None) => output::text("nothing of this aggregate is parked, or not that event\n")?,
            (Format::Human, Some(sent)) => {
                let gone =
                    if sent.gone == 0 { String::new() } else { format!("; {} in between were deleted before", count(sent.gone, "event")) };
                output::text(&format!("{} sent again, the sequence goes on with {}{gone}\n", count(sent.events, "event"), sent.from))?;
            }
        }
        Ok(if resent.is_some() { Code::Ok } else { Code::No })
    }
}

#[derive(Debug, Args)]
pub(crate) struct Discard {
    #[command(flatten)]
    which: OutboxArgs,
    /// Delete these events, by their ids in `list`
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    #[command(flatten)]
    signed: SignatureArgs,
}

impl Discard {
    pub(super) async fn run(&self, settings: &LoadedSettings, common: &Common) -> Result<Code> {
        let (outbox, signature) = (self.which.of(settings)?, self.signed.signature()?);
        let store = OpenedStore::open(outbox).await?;
        let dead = store.dead_letters();
        let mut done = Vec::with_capacity(self.ids.len());
        for id in &self.ids {
            let discarded = dead.discard(id, &signature).await.map_err(|error| interrupted(error, &done))?;
            done.push(ActionReport { id: id.clone(), what: discarded.then(|| "discarded".into()), sequence: None });
        }
        store.close().await;
        report(&done, common)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Audit {
    #[command(flatten)]
    which: OutboxArgs,
    /// Print at most this many lines, the newest first
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=10_000), value_name = "N")]
    limit: u16,
}

impl Audit {
    pub(super) async fn run(&self, settings: &LoadedSettings, common: &Common) -> Result<Code> {
        let store = OpenedStore::open(self.which.of(settings)?).await?;
        let entries = store.dead_letters().audit(self.limit.into()).await?;
        store.close().await;
        if common.format() == Format::Json {
            let entry = |entry: &shardwise_outbox::store::AuditEntry| {
                json!({
                    "ago_seconds": entry.ago.as_secs_f64(), "who": entry.who, "action": entry.action, "event": entry.event,
                    "key": entry.key, "sequence": entry.sequence, "events": entry.events, "why": entry.why,
                })
            };
            output::json_line(&json!({"audit": entries.iter().map(entry).collect::<Vec<_>>()}))?;
            return Ok(Code::Ok);
        }
        let safe = |text: &str| one_line(text, usize::MAX);
        let rows = entries.iter().map(|entry| {
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
        });
        let rows: Vec<_> = rows.collect();
        output::text(&if rows.is_empty() {
            "nothing was replayed or discarded\n".into()
        } else {
            output::table(&["when", "who", "did", "event", "aggregate", "sequence", "events", "why"], &rows)
        })?;
        Ok(Code::Ok)
    }
}
