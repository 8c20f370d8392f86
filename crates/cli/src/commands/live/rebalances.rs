//! `shardwise rebalances --follow`: prints what moves between the members.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use clap::Args;
use serde::Serialize;
use shardwise::core::{Escaped, ViewPlacement};
use shardwise::{InstanceId, MemberState, Observer, SlotOwners, View};

use super::GroupArgs;
use crate::args::Common;
use crate::exit::{CliFailure, Code, Result};
use crate::output::{self, Format};
use crate::signals;

/// Print what moves between a group's members, as it happens
#[derive(Debug, Args)]
#[command(after_help = "\
The first line shows the current group. With --json one object a line: at, revision, members, joined, left, state_changed, moved (slots), \
moved_share, moves. Without slots, or where their number changes, the last three are null.
The backend keeps no history; a sidecar (`shardwise serve`) keeps that of its own worker. Ctrl-C and SIGTERM end the command.

  shardwise rebalances --follow")]
pub(crate) struct RebalancesArgs {
    /// Continue until the command is stopped
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    group: GroupArgs,
}

struct GroupSnapshot {
    view: Arc<View>,
    owners: Option<Arc<SlotOwners>>,
}

#[derive(Serialize)]
struct RebalanceLine<'a> {
    at: String,
    revision: u64,
    members: usize,
    joined: Vec<&'a str>,
    left: Vec<&'a str>,
    state_changed: Vec<StateChange<'a>>,
    moved: Option<u32>,
    moved_share: Option<f64>,
    moves: Option<Vec<MoveLine<'a>>>,
}

#[derive(Serialize)]
struct StateChange<'a> {
    instance_id: &'a str,
    from: &'static str,
    to: &'static str,
}

#[derive(Serialize)]
struct MoveLine<'a> {
    from: Option<&'a str>,
    to: Option<&'a str>,
    slots: u32,
}

impl RebalancesArgs {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        if !self.follow {
            return Err(CliFailure::new(
                Code::Usage,
                "write --follow: the backend keeps no history; ask a sidecar for what has happened before",
            ));
        }
        let shutdown = signals::shutdown()?;
        let (_, _, mut observer) = self.group.observe(common).await?;
        output::release_log();
        let mut before = GroupSnapshot { view: Arc::default(), owners: None };
        let mut has_printed = false;
        loop {
            let now = GroupSnapshot::of(&observer);
            if !std::mem::replace(&mut has_printed, true) || now.differs(&before) {
                print(&before, &now, common)?;
                before = now;
            }
            tokio::select! {
                changed = observer.changed() => if !changed { return Ok(Code::Ok) },
                () = shutdown.cancelled() => return Ok(Code::Ok),
            }
        }
    }
}

impl GroupSnapshot {
    fn of(observer: &Observer) -> Self {
        let owners = match observer.placed() {
            Ok(Some(ViewPlacement::Slots(owners))) => Some(owners),
            _ => None,
        };
        Self { view: observer.members(), owners }
    }

    fn differs(&self, before: &Self) -> bool {
        let owners = |sight: &Self| sight.owners.as_ref().map(|owners| (owners.members().to_vec(), *owners.params()));
        self.view.members() != before.view.members() || owners(self) != owners(before)
    }

    /// The moved slots with their old and new owners; `None` if the snapshots cannot be compared.
    fn moves<'a>(&'a self, before: &'a Self) -> Option<Vec<MoveLine<'a>>> {
        let (now, then) = (self.owners.as_ref()?, before.owners.as_ref()?);
        if now.params().slots != then.params().slots {
            return None;
        }
        let mut pairs = BTreeMap::new();
        for slot in 0..now.params().slots {
            let (from, to) = (then.owner_of_slot(slot), now.owner_of_slot(slot));
            if from != to {
                *pairs.entry((from, to)).or_insert(0) += 1;
            }
        }
        let line = |((from, to), slots): ((Option<&'a InstanceId>, Option<&'a InstanceId>), u32)| MoveLine {
            from: from.map(InstanceId::as_str),
            to: to.map(InstanceId::as_str),
            slots,
        };
        Some(pairs.into_iter().map(line).collect())
    }
}

fn print(before: &GroupSnapshot, now: &GroupSnapshot, common: &Common) -> Result<()> {
    let absent = |from: &'_ GroupSnapshot, to: &'_ GroupSnapshot| to.view.joined_since(&from.view);
    let (joined, left) = (absent(before, now), absent(now, before));
    let state = |sight: &GroupSnapshot, id: &InstanceId| sight.view.member(id).map(|member| member.state);
    let changed = now.view.members().iter().filter_map(|member| {
        let (from, to): (MemberState, _) = (state(before, &member.instance_id)?, member.state);
        (from != to).then(|| StateChange { instance_id: member.instance_id.as_str(), from: from.as_str(), to: to.as_str() })
    });
    let moves = now.moves(before);
    let moved: Option<u32> = moves.as_ref().map(|moves| moves.iter().map(|pair| pair.slots).sum());
    let slots = now.owners.as_ref().map_or(1, |owners| owners.params().slots);
    let line = RebalanceLine {
        at: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
        revision: now.view.revision(),
        members: now.view.members().len(),
        joined: joined.iter().map(InstanceId::as_str).collect(),
        left: left.iter().map(InstanceId::as_str).collect(),
        state_changed: changed.collect(),
        moved,
        moved_share: moved.map(|moved| f64::from(moved) / f64::from(slots)),
        moves,
    };
    match common.format() {
        Format::Json => output::json_line(&line),
        Format::Human => output::text(&in_words(&line)),
    }
}

fn in_words(line: &RebalanceLine<'_>) -> String {
    let (at, members) = (&line.at, output::count(line.members as u64, "member"));
    let mut words = vec![format!("{at}  {members}")];
    words.extend(line.joined.iter().map(|id| format!("+{}", Escaped(id))));
    words.extend(line.left.iter().map(|id| format!("-{}", Escaped(id))));
    words.extend(line.state_changed.iter().map(|one| format!("{}: {} -> {}", Escaped(one.instance_id), one.from, one.to)));
    if let (Some(moved), Some(share)) = (line.moved, line.moved_share) {
        words.push(format!(" {moved} slots move ({:.1} %)", share * 100.0));
    }
    words.join(" ") + "\n"
}
