//! `shardwise members`: the members of the group and their shares.

use clap::Args;
use serde_json::{Value, json};
use shardwise::core::WorkerHealth;
use shardwise::{InstanceId, Member, MemberState, View};

use super::drain::drained_members;
use super::owner::{no_owner, see_members};
use crate::commands::group::{GroupSnapshot, PolicyArg, note_unplaced};
use crate::common::Common;
use crate::exit::{Code, Result};
use crate::output::{self, Format, count, table};

/// The most ids in one message.
const SHOWN_MAX: usize = 20;

#[derive(Debug, Args)]
#[command(after_help = "\
slots: slots that the placement gives a member. holds: slots that it has claimed (exclusive ownership).
States: active; draining (leaves, or was undrained and has not seen that yet); drained (stays and owns nothing, after `shardwise drain`); \
drain requested (has not seen that yet, in JSON drain_requested); no worker and worker fails (stays and owns nothing until the worker of \
`serve` works, in JSON draining and worker); pausing and away (leaves or has left for a while and keeps its place).
A member that died is listed for up to a TTL after its last renewal. A note on stderr says why no key has an owner, if so.
Without --policy and SHARDWISE_POLICY the only policy of workers is used; those of outboxes do not count.
Exit code 1: there is no member.

  shardwise members
  shardwise members --policy my_custom_workers")]
pub(crate) struct Members {
    #[command(flatten)]
    group: PolicyArg,
}

/// A member as it is shown.
struct LiveMember<'a> {
    member: &'a Member,
    state: &'static str,
    /// An operator has requested the drain, and the member does not show it yet.
    drain_requested: bool,
    /// `None` under a key placement, or while no member owns anything.
    slots: Option<u32>,
    /// The number of slots that it holds; `None` under eventual ownership, and if the claims cannot be read.
    holds: Option<u32>,
}

impl Members {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        let (factory, policy, observer) = self.group.observe(common).await?;
        output::release_log();
        let drained = drained_members(&factory, &policy).await.unwrap_or_else(|error| {
            output::note(format_args!(
                "shardwise: the list of drained members cannot be read, so drained members are shown as draining: {error}"
            ));
            Vec::new()
        });
        let group = GroupSnapshot::of(&observer);
        let held = observer.slots_held().ok();
        let holds = |member: &Member| held.as_ref().map(|held| held.get(&member.instance_id).copied().unwrap_or(0));
        let row = |member| LiveMember { holds: holds(member), ..LiveMember::of(member, &group, &drained) };
        let rows: Vec<_> = group.view.members().iter().map(row).collect();
        let (revision, fingerprint) = (group.view.revision(), group.view.fingerprint().to_string());
        let json = json!({
            "policy": policy, "revision": revision, "view_fingerprint": fingerprint,
            "members": rows.iter().map(LiveMember::as_json).collect::<Vec<_>>(),
        });
        common.print(&json, || {
            let mut heading = vec!["member", "state", "slots", "holds", "weight", "zone", "version", "address"];
            if held.is_none() {
                heading.retain(|column| *column != "holds");
            }
            let cells: Vec<_> = rows.iter().map(LiveMember::cells).collect();
            let total = count(rows.len() as u64, "member");
            format!("{}\npolicy {policy}: {total} at revision {revision}, view {fingerprint}\n", table(&heading, &cells))
        })?;
        note_frozen(&group.view, &policy);
        note_unplaced(&observer, &mut None);
        if common.format() == Format::Human && !rows.is_empty() && matches!(observer.placed(), Ok(None)) {
            let line = no_owner(&factory, &policy, &observer).await;
            // This is what it refers to.
            output::note(line.strip_suffix(&see_members(&policy)).unwrap_or(&line));
        }
        Ok(if rows.is_empty() { Code::No } else { Code::Ok })
    }
}

impl<'a> LiveMember<'a> {
    fn of(member: &'a Member, group: &GroupSnapshot, drained: &[InstanceId]) -> Self {
        let wanted = drained.contains(&member.instance_id);
        let is_drained = member.state == MemberState::Draining && wanted;
        let owners = group.owners.as_ref().filter(|owners| owners.members().iter().any(|(id, _)| *id == member.instance_id));
        Self {
            member,
            state: if is_drained { "drained" } else { member.state.as_str() },
            drain_requested: wanted && member.state == MemberState::Active,
            slots: owners.map(|owners| owners.slots_of(&member.instance_id).len()),
            holds: None,
        }
    }

    fn as_json(&self) -> Value {
        let Self { member, state, drain_requested, slots, holds } = self;
        json!({
            "instance_id": member.instance_id, "state": state, "drain_requested": drain_requested, "worker": member.worker.map(WorkerHealth::as_str), "slots": slots, "holds": holds,
            "address": member.address.as_ref().map(ToString::to_string), "zone": member.zone, "version": member.version,
            "weight": member.weight.get(), "metadata": member.metadata,
        })
    }

    fn shown_state(&self) -> String {
        let state = if self.drain_requested { "drain requested" } else { self.state };
        let worker = match self.member.worker {
            None => return state.to_owned(),
            Some(WorkerHealth::Absent) => "no worker",
            Some(WorkerHealth::Failing(_)) => "worker fails",
        };
        // Such a member drains for its worker: it does not leave.
        if state == MemberState::Draining.as_str() { worker.to_owned() } else { format!("{state} ({worker})") }
    }

    fn cells(&self) -> Vec<String> {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let mut cells =
            vec![self.member.instance_id.as_str().to_owned(), self.shown_state(), or_dash(self.slots.map(|slots| slots.to_string()))];
        cells.extend(self.holds.map(|holds| holds.to_string()));
        cells.extend([
            self.member.weight.get().to_string(),
            or_dash(self.member.zone.clone()),
            or_dash(self.member.version.clone()),
            or_dash(self.member.address.as_ref().map(ToString::to_string)),
        ]);
        cells
    }
}

/// Notes on stderr which vanished members' keys no member takes over, if there are any, and what to do.
pub(super) fn note_frozen(view: &View, policy: &str) {
    let missing: Vec<String> = view.missing().iter().map(|(id, _)| id.to_string()).collect();
    if missing.is_empty() {
        return;
    }
    let shown = missing.get(..SHOWN_MAX).unwrap_or(&missing).join(", ");
    let more = missing.len().saturating_sub(SHOWN_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    output::note(format_args!(
        "vanished: {shown}{more}. That is more than max_loss allows, so no member takes over their keys until enough members are back. \
         If they are gone for good: shardwise confirm-loss --policy {policy}"
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_drains_for_its_worker_is_not_shown_as_leaving() {
        let shown = |state, worker, drained: &[&str]| {
            let member = Member { state, worker, ..Member::named(InstanceId::new("worker-1").unwrap()) };
            let drained: Vec<_> = drained.iter().map(|id| InstanceId::new(id).unwrap()).collect();
            LiveMember::of(&member, &GroupSnapshot::default(), &drained).shown_state()
        };
        let (absent, fails) = (Some(WorkerHealth::Absent), Some(WorkerHealth::Failing(1)));
        assert_eq!(shown(MemberState::Draining, absent, &[]), "no worker");
        assert_eq!(shown(MemberState::Draining, fails, &["worker-2"]), "worker fails");
        assert_eq!(shown(MemberState::Active, fails, &[]), "active (worker fails)");
        assert_eq!(shown(MemberState::Draining, absent, &["worker-1"]), "drained (no worker)");
        assert_eq!(shown(MemberState::Draining, None, &["worker-1"]), "drained");
        assert_eq!(shown(MemberState::Active, None, &["worker-1"]), "drain requested");
        // One that was just undrained cannot be distinguished from one that leaves.
        assert_eq!(shown(MemberState::Draining, None, &[]), "draining");
    }
}
