//! `shardwise watch`: observe a group, or join it as a worker, and print every change.

mod printer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use clap::Args;
use futures::FutureExt;
use serde::Serialize;
use serde_json::{Value, json};
use shardwise::settings::DiscoverySettings;
use shardwise::{Absence, InstanceId, Observer, Ownership, ShardingFactory, ShardingService, SlotSet, Snapshots, View};
use tokio_util::sync::CancellationToken;

use self::printer::ChangePrinter;
use super::group::{GroupSnapshot, IdArg, PolicyArg, follow, members_in_words, note_no_file, vanished_between};
use super::{IS_IT_THERE, WHY_NOT_JOINED, joins_no_outbox, load_settings, waiting, waits_for};
use crate::common::Common;
use crate::exit::{CliFailure, Code, Result};
use crate::{files, output, signals};

/// The most bytes of a file of keys: enough for far more than ten million keys.
const ITEMS_BYTES_MAX: u64 = 1 << 30;

#[derive(Debug, Args)]
#[command(after_help = "\
Without --join it observes and joins nothing. On a terminal it draws one line in place; elsewhere, and with --json, it prints one JSON \
object a line.
SIGTERM and Ctrl-C end it. A worker drains and deregisters first; a second signal ends it at once.

Fields: at, monotonic_ns, owned_until_ns (the deadline, same clock), policy, instance_id, state, revision, view_fingerprint, \
policy_fingerprint (changes with the group's placement), members, slots, slots_owned, stands_still, away (members that have left for a \
while, with within_ms, the longest it may take), vanished (members that died or lost their lease since the line before; drained ones count as left), gained, lost. \
With --slots also gained_slots and lost_slots, with --items also items_owned.
Fields are only ever added.

Without --join state is observing, and monotonic_ns, owned_until_ns, instance_id, slots_owned, gained and lost are null. Under a key \
placement all fields about slots are null. When the number of slots changes, gained and lost are counted in parts that divide both numbers, \
or, if those would be too many, as all.

  shardwise watch
  shardwise watch --join --id worker-1")]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    policy: PolicyArg,
    /// Join as a worker, which takes a share of the keys
    #[arg(long)]
    join: bool,
    #[command(flatten)]
    id: IdArg,
    /// Count how many keys of this file, one a line, are mine; needs --join
    #[arg(long, value_name = "FILE", requires = "join")]
    items: Option<PathBuf>,
    /// Print renewals of the lease too; needs --join
    #[arg(long, requires = "join")]
    renewals: bool,
    /// Print the gained and lost slots as inclusive ranges; needs --join
    #[arg(long, requires = "join")]
    slots: bool,
}

/// One line of the output. Fields that only a worker has are `None` for an observer.
#[derive(Default, Serialize)]
struct WatchLine<'a> {
    at: String,
    monotonic_ns: Option<u64>,
    owned_until_ns: Option<u64>,
    policy: &'a str,
    instance_id: Option<&'a str>,
    state: &'a str,
    revision: u64,
    view_fingerprint: String,
    /// The policy of the group and of this worker, with `next` or without; `None` until this worker has been active.
    policy_fingerprint: Option<String>,
    members: Vec<&'a str>,
    /// The same for people, with the states of those that are not active.
    #[serde(skip)]
    members_in_words: String,
    /// The number of slots; `None`, like the following fields about slots, under a key placement.
    slots: Option<u32>,
    slots_owned: Option<u32>,
    /// More members have vanished than `max_loss` allows: their slots are not taken over.
    stands_still: bool,
    /// Members that have left for a while, each with the longest possible time.
    away: Vec<Value>,
    /// Members of the line before that are gone without having left.
    vanished: Vec<&'a InstanceId>,
    gained: Option<u32>,
    lost: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gained_slots: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_slots: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    items_owned: Option<usize>,
}

impl<'a> WatchLine<'a> {
    /// What every member and every observer of that view sees. In a view, `drained` members look like those that leave.
    fn of(policy: &'a str, view: &'a View, absences: Vec<Absence>, drained: &[InstanceId]) -> Self {
        let away = |absence: Absence| json!({"instance_id": absence.instance_id, "within_ms": output::millis(absence.within)});
        Self {
            at: humantime::format_rfc3339_micros(SystemTime::now()).to_string(),
            policy,
            revision: view.revision(),
            view_fingerprint: view.fingerprint().to_string(),
            members: view.members().iter().map(|member| member.instance_id.as_str()).collect(),
            members_in_words: members_in_words(view, drained),
            away: absences.into_iter().map(away).collect(),
            ..Self::default()
        }
    }
}

impl WatchArgs {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        let mut settings = load_settings(common)?;
        let policy = self.policy.of(&settings)?;
        let printer = ChangePrinter::of(common.format());
        if !self.join {
            self.id.unused()?;
            if !settings.enabled {
                return Err(CliFailure::usage("enabled = false: there is no group to observe; set it to true"));
            }
            let discovery = settings.policy(&policy)?.discovery.clone();
            return observe(&ShardingFactory::from_settings(settings)?, &policy, &discovery, printer).await;
        }
        joins_no_outbox(&settings, &policy, "leave --join out to observe it")?;
        self.id.put(&mut settings)?;
        let (what, service) = {
            let factory = ShardingFactory::from_settings(settings)?;
            (waits_for(&factory, &policy), factory.create(&policy)?)
        };
        let items = self.items.as_deref().map(read_items).transpose()?;
        let shutdown = signals::shutdown()?;
        let mut snapshots = service.snapshots();
        let mut watched = WatchedWorker { watch: self, service: &service, items, before: None, printer };

        let followed = watched.follow(&what, &mut snapshots, &shutdown).await;
        watched.leave(&mut snapshots, followed).await?;
        Ok(Code::Ok)
    }
}

/// Prints every change of the group until the command is stopped.
async fn observe(factory: &ShardingFactory, policy: &str, discovery: &DiscoverySettings, mut printer: ChangePrinter) -> Result<Code> {
    output::note(format_args!(
        "shardwise: observing policy {policy}: this process joins nothing and owns nothing (--join joins as a worker)"
    ));
    let shutdown = signals::shutdown()?;
    let what = waits_for(factory, policy);
    let observer = tokio::select! {
        observer = waiting(&what, IS_IT_THERE, factory.observe(policy)) => observer?,
        () = shutdown.cancelled() => return Ok(Code::Ok),
    };
    output::release_log();
    note_no_file(discovery);
    let print = |observer: &Observer, before: &GroupSnapshot, now: &GroupSnapshot| {
        printer.print(&WatchLine {
            state: "observing",
            vanished: vanished_between(&before.view, &now.view, &observer.departures()),
            policy_fingerprint: now.view.group_fingerprint().map(|fingerprint| fingerprint.to_string()),
            slots: now.owners.as_ref().map(|owners| owners.params().slots),
            stands_still: !now.view.missing().is_empty(),
            ..WatchLine::of(policy, &now.view, observer.absences(), &now.drained)
        })
    };
    follow(factory, observer, &shutdown, print).await
}

struct WatchedWorker<'a> {
    watch: &'a WatchArgs,
    service: &'a ShardingService,
    items: Option<Vec<Vec<u8>>>,
    /// The ownership in the last printed line.
    before: Option<Arc<Ownership>>,
    printer: ChangePrinter,
}

impl WatchedWorker<'_> {
    /// Joins, and prints every change until the shutdown or a failure. `what` is waited for.
    async fn follow(&mut self, what: &str, snapshots: &mut Snapshots, shutdown: &CancellationToken) -> Result<()> {
        let service = self.service;
        let join = waiting(what, WHY_NOT_JOINED, service.register_self());
        tokio::pin!(join);
        let mut joined = false;
        while !shutdown.is_cancelled() {
            tokio::select! {
                biased;
                Some(snapshot) = snapshots.recv() => self.print(&snapshot)?,
                result = &mut join, if !joined => {
                    joined = true;
                    if let Err(error) = result {
                        self.catch_up(snapshots)?;
                        return Err(error.into());
                    }
                    output::release_log();
                    if self.before.is_none() {
                        // Sharding is disabled, so no change will follow.
                        self.print(&service.ownership())?;
                    }
                }
                () = shutdown.cancelled() => {}
            }
        }
        Ok(())
    }

    /// Leaves gracefully, even if the output is no longer read, and prints each step when it happens.
    async fn leave(&mut self, snapshots: &mut Snapshots, mut printed: Result<()>) -> Result<()> {
        let leave = self.service.deregister_self();
        tokio::pin!(leave);
        loop {
            tokio::select! {
                // First, so that the departure begins before a write can block.
                biased;
                left = &mut leave => {
                    left?;
                    printed?;
                    return self.catch_up(snapshots);
                }
                Some(snapshot) = snapshots.recv(), if printed.is_ok() => printed = self.print(&snapshot),
            }
        }
    }

    /// Prints the ownerships that were published and not yet printed.
    fn catch_up(&mut self, snapshots: &mut Snapshots) -> Result<()> {
        while let Some(Some(snapshot)) = snapshots.recv().now_or_never() {
            self.print(&snapshot)?;
        }
        Ok(())
    }

    /// Prints the changes since the last line; nothing if only the deadline has changed and renewals were not requested.
    fn print(&mut self, now: &Arc<Ownership>) -> Result<()> {
        let before = self.before.replace(Arc::clone(now));
        let seen = |ownership: &Ownership| (ownership.state(), ownership.rebalancing_frozen());
        let same = |before: &Ownership| {
            seen(before) == seen(now) && before.view() == now.view() && before.slots() == now.slots() && before.keys() == now.keys()
        };
        if before.as_deref().is_some_and(same) && !self.watch.renewals {
            return Ok(());
        }
        let view_before = before.as_ref().map(|before| Arc::clone(before.view())).unwrap_or_default();
        let had = before.map_or_else(|| SlotSet::empty(now.slots().slots()), |before| before.slots().clone());
        let (gained, lost) = (now.slots().minus(&had), had.minus(now.slots()));
        // Under a key placement there are no slots.
        let owned = now.slots_owned();
        let ranges =
            |set: &SlotSet| json!(owned.map(|_| set.ranges().into_iter().map(|range| [*range.start(), *range.end()]).collect::<Vec<_>>()));
        let moment = self.service.now();
        // It knows of itself only: of others the state in their records is shown.
        let drained: Vec<_> = self.service.is_drained().then(|| self.service.instance_id().clone()).into_iter().collect();
        self.printer.print(&WatchLine {
            monotonic_ns: Some(moment.as_nanos()),
            owned_until_ns: now.deadline().map(shardwise::Moment::as_nanos),
            instance_id: Some(self.service.instance_id().as_str()),
            state: now.state().as_str(),
            policy_fingerprint: now.policy_fingerprint().map(|fingerprint| fingerprint.to_string()),
            slots: owned.map(|_| now.slots().slots()),
            slots_owned: owned,
            stands_still: now.rebalancing_frozen(),
            vanished: vanished_between(&view_before, now.view(), &self.service.departures()),
            gained: owned.map(|_| gained.len()),
            lost: owned.map(|_| lost.len()),
            gained_slots: self.watch.slots.then(|| ranges(&gained)),
            lost_slots: self.watch.slots.then(|| ranges(&lost)),
            items_owned: self.items.as_ref().map(|items| now.filter_at(items, moment).len()),
            ..WatchLine::of(self.service.policy().name.as_str(), now.view(), self.service.absences(), &drained)
        })
    }
}

fn read_items(path: &Path) -> Result<Vec<Vec<u8>>> {
    let bytes = files::read(path, ITEMS_BYTES_MAX)?;
    let text = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    Ok(if bytes.is_empty() { Vec::new() } else { text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect() })
}
