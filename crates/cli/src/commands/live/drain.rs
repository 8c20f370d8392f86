//! `shardwise drain` and `shardwise undrain`.

use clap::Args;
use serde_json::json;
use shardwise::{ErrorKind, InstanceId, Member, MemberState, Observer, ShardingFactory, View};

use crate::commands::group::{PolicyArg, meant_by};
use crate::commands::{IS_IT_THERE, waiting, waits_for};
use crate::common::Common;
use crate::exit::{CliFailure, Code, Result};
use crate::output;

/// The most ids in one message.
const NAMED_MAX: usize = 20;

#[derive(Debug, Args)]
#[command(after_help = "\
The backend remembers it until `shardwise undrain`, even if the member restarts. The member sees it within a TTL and finishes what it has \
begun. If the drain leaves no key with an owner, a warning on stderr says so before it begins. Draining a member twice is not an error.
Exit code 1: with --wait, it still owns something after two TTLs and drain_timeout.

  shardwise drain worker-1 --wait")]
pub(crate) struct Drain {
    /// Drain the member of this id; `web` finds web-5f3c2a10
    id: String,
    /// Wait until the member owns nothing
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    group: PolicyArg,
}

#[derive(Debug, Args)]
#[command(after_help = "\
It works for a member that is not running, too.
Exit code 1: the member was not drained.

  shardwise undrain worker-1")]
pub(crate) struct Undrain {
    /// Undrain the member of this id; it may be shortened as for drain
    id: String,
    #[command(flatten)]
    group: PolicyArg,
}

impl Drain {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        let id = &InstanceId::new(&self.id).map_err(|error| CliFailure::usage(error.to_string()))?;
        let (factory, policy) = self.group.open(common)?;
        let observer = waiting(&waits_for(&factory, &policy), IS_IT_THERE, factory.observe(&policy)).await?;
        let known: Vec<_> = observer.members().members().iter().map(|member| member.instance_id.clone()).collect();
        if known.is_empty() {
            return Err(CliFailure::new(
                Code::Refused,
                format!("policy {policy} has no members, so none is called {id}: check that the workers run, or name another --policy"),
            ));
        }
        let id = full_id(id, &known)?;
        let drained = waiting(&waits_for(&factory, &policy), IS_IT_THERE, factory.drained(&policy)).await?;
        warn_no_owner(&observer, &drained, id);
        let changed = waiting(&waits_for(&factory, &policy), IS_IT_THERE, factory.drain(&policy, id)).await?;
        let owns_nothing = if self.wait { Some(factory.wait_until_drained(&policy, id).await?) } else { None };
        let mut json = json!({"policy": policy, "instance_id": id, "drained": true, "changed": changed});
        if let Some(owns_nothing) = owns_nothing {
            json["owns_nothing"] = owns_nothing.into();
        }
        common.print(&json, || match (owns_nothing, changed) {
            (Some(true), _) => format!("{id} is drained and owns nothing\n"),
            (Some(false), _) => format!("{id} was asked to drain and still owns something: check its log and that it is running\n"),
            (None, true) => format!(
                "{id} is asked to drain: it reads that within a TTL and finishes its work; see shardwise members --policy {policy}\n"
            ),
            (None, false) => format!("{id} was asked to drain before; see shardwise members --policy {policy}\n"),
        })?;
        Ok(if owns_nothing == Some(false) { Code::No } else { Code::Ok })
    }
}

impl Undrain {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        let id = &InstanceId::new(&self.id).map_err(|error| CliFailure::usage(error.to_string()))?;
        let (factory, policy) = self.group.open(common)?;
        let known = waiting(&waits_for(&factory, &policy), IS_IT_THERE, factory.drained(&policy)).await?;
        let id = full_id(id, &known)?;
        let changed = waiting(&waits_for(&factory, &policy), IS_IT_THERE, factory.undrain(&policy, id)).await?;
        common.print(&json!({"policy": policy, "instance_id": id, "drained": false, "changed": changed}), || {
            if changed { format!("{id} takes its share again within a TTL\n") } else { format!("{id} is not drained in policy {policy}\n") }
        })?;
        if !changed && let Ok(observer) = factory.observe(&policy).await {
            note_unknown(&observer.members(), &known, id);
        }
        Ok(if changed { Code::Ok } else { Code::No })
    }
}

/// The members that operators have drained; none if the placement or the backend supports no drain.
pub(super) async fn drained_members(factory: &ShardingFactory, policy: &str) -> shardwise::Result<Vec<InstanceId>> {
    match factory.drained(policy).await {
        Err(error) if error.kind() == ErrorKind::Settings => Ok(Vec::new()),
        drained => drained,
    }
}

/// Notes on stderr that the group has no such member, if that is so, and which members are drained.
fn note_unknown(view: &View, drained: &[InstanceId], id: &InstanceId) {
    if view.member(id).is_some() {
        return;
    }
    let drained: Vec<_> = drained.iter().take(NAMED_MAX).map(InstanceId::as_str).collect();
    let drained = if drained.is_empty() { "no member is drained".to_owned() } else { format!("drained are: {}", drained.join(", ")) };
    output::note(format_args!("shardwise: the group has no member {:?}; {drained}", id.as_str()));
}

/// Warns on stderr if no key will have an owner once that member is drained.
fn warn_no_owner(observer: &Observer, drained: &[InstanceId], id: &InstanceId) {
    let (view, policy) = (observer.members(), observer.policy());
    if view.member(id).is_none() {
        return;
    }
    let (active, needed) = (active_without(&view, drained, id), policy.min_members);
    if active >= needed as usize {
        return;
    }
    let left = match active {
        0 => "no active member is left".to_owned(),
        active => format!("active members left: {active}; {needed} needed (min_members)"),
    };
    output::note(format_args!(
        "shardwise: warning: with {id} drained, no key has an owner: {left}. To undo it: shardwise undrain {id} --policy {}",
        policy.name
    ));
}

/// The number of members that have a share once `id` is drained too. `drained` decides and not the records, which follow it within a TTL: a
/// member that was just drained still shows as active, and one that was just undrained as draining. A member that is leaving shows as
/// draining too and is counted, because its record does not differ; that lasts until it has left.
fn active_without(view: &View, drained: &[InstanceId], id: &InstanceId) -> usize {
    let has_share = |member: &&Member| match member.state {
        MemberState::Active => true,
        // With a worker, the member drains because that worker does not work.
        MemberState::Draining => member.worker.is_none(),
        MemberState::Pausing | MemberState::Away => false,
    };
    let stays = |member: &&Member| member.instance_id != *id && !drained.contains(&member.instance_id) && view.belongs(member);
    view.members().iter().filter(has_share).filter(stays).count()
}

/// The one member that is meant. The library reports an id that no member has.
fn full_id<'a>(given: &'a InstanceId, known: &'a [InstanceId]) -> Result<&'a InstanceId> {
    if known.contains(given) {
        return Ok(given);
    }
    match &meant_by(given.as_str(), known)[..] {
        [] => Ok(given),
        [only] => Ok(only),
        several => {
            let ids: Vec<_> = several.iter().map(|id| id.as_str()).collect();
            Err(CliFailure::new(Code::Refused, format!("which member? {given} may be any of {}; write one in full", ids.join(", "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use shardwise::core::WorkerHealth;

    use super::*;

    #[test]
    fn the_list_of_drained_members_counts_and_not_the_records() {
        let id = |name: &str| InstanceId::new(name).unwrap();
        let in_state = |name: &str, state| Member { state, ..Member::named(id(name)) };
        let failing = Member { worker: Some(WorkerHealth::Failing(1)), ..in_state("failing", MemberState::Draining) };
        let view = View::new(
            1,
            vec![in_state("a", MemberState::Active), in_state("b", MemberState::Draining), in_state("away", MemberState::Away), failing],
        );
        let active = |drained: &[&str], of: &str| active_without(&view, &drained.iter().map(|name| id(name)).collect::<Vec<_>>(), &id(of));
        assert_eq!(active(&["b"], "a"), 0, "b is drained");
        assert_eq!(active(&[], "a"), 1, "b was undrained and does not show it yet");
        assert_eq!(active(&["a"], "b"), 0, "a was drained and does not show it yet");
        assert_eq!(active(&["a"], "a"), 1, "a was drained before, and b was undrained");
        assert_eq!(active(&[], "b"), 1);
    }
}
