//! The group of a command, and the id under which it joins.

use std::sync::Arc;

use clap::Args;
use shardwise::core::{ViewPlacement, WorkerHealth};
use shardwise::settings::{DiscoverySettings, Settings};
use shardwise::{Departure, InstanceId, Member, MemberState, Observer, PolicyName, ShardingFactory, SlotOwners, View};
use tokio_util::sync::CancellationToken;

use super::{IS_IT_THERE, load_settings, outbox_of, waiting, waits_for};
use crate::common::Common;
use crate::exit::{CliFailure, Code, Result};
use crate::output::{self, count};

/// The variable with the policy, if the command line names none.
const POLICY_VARIABLE: &str = "SHARDWISE_POLICY";

/// The policy of a group.
#[derive(Debug, Args)]
pub(crate) struct PolicyArg {
    // A comment, because a doc comment would need backticks.
    #[arg(long, value_name = "NAME", help = "Use this policy [default: $SHARDWISE_POLICY, or the only one]")]
    policy: Option<String>,
}

impl PolicyArg {
    /// The policy to use; the caller checks whether the settings have it.
    pub(crate) fn of(&self, settings: &Settings) -> Result<String> {
        self.policy.clone().map_or_else(|| implied_policy(settings), Ok)
    }

    /// Creates the factory and returns the policy's name.
    pub(crate) fn open(&self, common: &Common) -> Result<(ShardingFactory, String)> {
        let settings = load_settings(common)?;
        let name = self.of(&settings)?;
        let discovery = settings.policy(&name).ok().map(|policy| policy.discovery.clone());
        let factory = ShardingFactory::from_settings(settings)?;
        discovery.iter().for_each(note_no_file);
        Ok((factory, name))
    }

    pub(crate) async fn observe(&self, common: &Common) -> Result<(ShardingFactory, String, Observer)> {
        let settings = load_settings(common)?;
        let name = self.of(&settings)?;
        let factory = ShardingFactory::from_settings(settings.clone())?;
        let observer = waiting(&waits_for(&factory, &name), IS_IT_THERE, factory.observe(&name)).await?;
        note_no_file(&settings.policy(&name)?.discovery);
        Ok((factory, name, observer))
    }
}

/// Notes on stderr that the file of a `local` backend does not exist. Only a member that joins creates it, so with a wrong path every other
/// command finds an empty group.
pub(crate) fn note_no_file(discovery: &DiscoverySettings) {
    let path = discovery.options.path("path").filter(|_| discovery.backend == "local");
    if let Some(path) = path.and_then(|path| std::path::absolute(path).ok()).filter(|path| matches!(path.try_exists(), Ok(false))) {
        output::note(format_args!(
            "shardwise: there is no file {} yet: no member has joined there; if workers run, compare their discovery.local.path",
            path.display()
        ));
    }
}

/// The default policy: that of the environment, else the only one for workers, else the only one.
pub(crate) fn implied_policy(settings: &Settings) -> Result<String> {
    if let Some(name) = std::env::var_os(POLICY_VARIABLE).filter(|name| !name.is_empty()) {
        let name = name.to_string_lossy().into_owned();
        settings.policy(&name).map_err(|error| CliFailure::from(error).and(format_args!("the name is the value of {POLICY_VARIABLE}")))?;
        return Ok(name);
    }
    let all: Vec<_> = settings.policies.keys().map(PolicyName::as_str).collect();
    let of_workers: Vec<_> = all.iter().copied().filter(|name| matches!(outbox_of(settings, name), Ok(None))).collect();
    match (&of_workers[..], &all[..]) {
        ([only], _) | ([], [only]) => Ok((*only).to_owned()),
        (_, []) => {
            let file = settings.file.as_ref().map_or_else(|| "the settings".to_owned(), |file| file.display().to_string());
            let add = "add [default.resilience.sharding.policies.NAME] with a group_name";
            Err(CliFailure::usage(format!("there is no policy in {file}: {add}")))
        }
        _ => {
            let known = all.join(", ");
            Err(CliFailure::usage(format!("which policy? Write --policy NAME or set {POLICY_VARIABLE}; the settings have: {known}")))
        }
    }
}

/// The id under which a command joins.
#[derive(Debug, Args)]
pub(crate) struct IdArg {
    /// Join under this id, unique in the group [default: instance.id]
    #[arg(long, value_name = "NAME")]
    id: Option<String>,
}

impl IdArg {
    /// Sets the id in the settings, if one is given.
    pub(crate) fn put(&self, settings: &mut Settings) -> Result<()> {
        if let Some(id) = &self.id {
            settings.instance.id = Some(InstanceId::new(id).map_err(|error| CliFailure::usage(format!("--id {id:?}: {error}")))?);
        }
        Ok(())
    }

    /// Fails if an id is given for a command that joins nothing, because it would be ignored silently.
    pub(crate) fn unused(&self) -> Result<()> {
        match self.id {
            Some(_) => Err(CliFailure::usage("--id has no use here: this command observes and joins nothing")),
            None => Ok(()),
        }
    }
}

/// What an observer sees of a group.
#[derive(Default)]
pub(crate) struct GroupSnapshot {
    pub(crate) view: Arc<View>,
    /// `None` under a key placement, and while no member owns anything.
    pub(crate) owners: Option<Arc<SlotOwners>>,
    /// The members that operators have drained, which look in the view like those that leave. Read by [`follow`] where a member drains.
    pub(crate) drained: Vec<InstanceId>,
}

impl GroupSnapshot {
    pub(crate) fn of(observer: &Observer) -> Self {
        let owners = match observer.placed() {
            Ok(Some(ViewPlacement::Slots(owners))) => Some(owners),
            _ => None,
        };
        Self { view: observer.members(), owners, drained: Vec::new() }
    }

    fn differs(&self, before: &Self) -> bool {
        let placed = |seen: &Self| seen.owners.as_ref().map(|owners| (owners.members().to_vec(), *owners.params()));
        self.view.members() != before.view.members() || placed(self) != placed(before)
    }
}

/// Notes on stderr why the owners are not known, such as a policy that does not match the group's, unless `noted` is the same reason.
pub(crate) fn note_unplaced(observer: &Observer, noted: &mut Option<String>) {
    let why = observer.placed().err().map(|error| error.to_string());
    if why != *noted {
        if let Some(why) = &why {
            output::note(format_args!("shardwise: the owners are not known: {why}"));
        }
        *noted = why;
    }
}

/// Passes the observer with the snapshots before and after each change to `print`, first an empty one and that of the present group, until
/// the command is stopped.
pub(crate) async fn follow(
    factory: &ShardingFactory,
    mut observer: Observer,
    shutdown: &CancellationToken,
    mut print: impl FnMut(&Observer, &GroupSnapshot, &GroupSnapshot) -> Result<()>,
) -> Result<Code> {
    let (mut before, mut noted) = (None, None);
    loop {
        note_unplaced(&observer, &mut noted);
        let mut now = GroupSnapshot::of(&observer);
        if before.as_ref().is_none_or(|before| now.differs(before)) {
            now.drained = tokio::select! {
                drained = drained_of(factory, &observer, &now.view) => drained,
                () = shutdown.cancelled() => return Ok(Code::Ok),
            };
            print(&observer, &before.unwrap_or_default(), &now)?;
            before = Some(now);
        }
        tokio::select! {
            changed = observer.changed() => if !changed { return Ok(Code::Ok) },
            () = shutdown.cancelled() => return Ok(Code::Ok),
        }
    }
}

/// The drained members, if the view has any; none if they cannot be read: then they are shown as draining.
async fn drained_of(factory: &ShardingFactory, observer: &Observer, view: &View) -> Vec<InstanceId> {
    if view.members().iter().all(|member| member.state != MemberState::Draining) {
        return Vec::new();
    }
    factory.drained(observer.policy().name.as_str()).await.unwrap_or_default()
}

/// The number of members, and how many of them are active unless all are.
pub(crate) fn count_in_words(view: &View) -> String {
    let (members, active) = (view.members(), view.members().iter().filter(|member| member.state == MemberState::Active).count());
    let total = count(members.len() as u64, "member");
    if active == members.len() { total } else { format!("{total} ({active} active)") }
}

/// The members, with the states of those that are not active.
pub(crate) fn members_in_words(view: &View, drained: &[InstanceId]) -> String {
    let in_words = |member: &Member| match member.state {
        MemberState::Active => member.instance_id.to_string(),
        _ => format!("{} {}", member.instance_id, state_in_words(member, drained)),
    };
    let members: Vec<_> = view.members().iter().map(in_words).collect();
    format!("{}: {}", count_in_words(view), members.join(", "))
}

/// The state of a member: for one that drains, the cause.
pub(crate) fn state_in_words(member: &Member, drained: &[InstanceId]) -> &'static str {
    match (member.state, member.worker) {
        (MemberState::Draining, _) if drained.contains(&member.instance_id) => "drained",
        (MemberState::Draining, Some(WorkerHealth::Absent)) => "no worker",
        (MemberState::Draining, Some(WorkerHealth::Failing(_))) => "worker fails",
        (state, _) => state.as_str(),
    }
}

/// The members of `before` that are gone from `now` without having left, as far as these departures show.
pub(crate) fn vanished_between<'v>(before: &'v View, now: &View, departures: &[Departure]) -> Vec<&'v InstanceId> {
    let is_here = |member: &Member| now.member(&member.instance_id).is_some_and(|now| now.incarnation == member.incarnation);
    let is_it = |gone: &Departure, member: &Member| gone.instance_id == member.instance_id && gone.incarnation == member.incarnation;
    let has_vanished = |member: &Member| departures.iter().any(|gone| gone.vanished() && is_it(gone, member));
    let gone = before.members().iter().filter(|member| !is_here(member) && has_vanished(member));
    gone.map(|member| &member.instance_id).collect()
}

/// The members that a shortened id may mean: their ids continue it after a `-`, `.`, `/` or `:`, or end with it after their last `/`.
pub(crate) fn meant_by<'a>(short: &str, known: impl IntoIterator<Item = &'a InstanceId>) -> Vec<&'a InstanceId> {
    let is_meant = |id: &&InstanceId| {
        let id = id.as_str();
        let goes_on = id.strip_prefix(short).is_some_and(|rest| rest.starts_with(['-', '.', '/', ':']));
        goes_on || id.rsplit_once('/').is_some_and(|(_, last)| last == short)
    };
    known.into_iter().filter(is_meant).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_states_of_members_that_are_not_active_are_named() {
        let id = |name: &str| InstanceId::new(name).unwrap();
        let in_state = |name: &str, state| Member { state, ..Member::named(id(name)) };
        let active = View::new(1, vec![in_state("a", MemberState::Active), in_state("b", MemberState::Active)]);
        assert_eq!(members_in_words(&active, &[id("b")]), "2 members: a, b", "b does not show yet that it is drained");
        let failing = Member { worker: Some(WorkerHealth::Failing(1)), ..in_state("c", MemberState::Draining) };
        let members = vec![in_state("a", MemberState::Draining), in_state("b", MemberState::Draining), failing];
        let drained = View::new(2, members);
        assert_eq!(members_in_words(&drained, &[id("a")]), "3 members (0 active): a drained, b draining, c worker fails");
        let away = View::new(3, vec![in_state("a", MemberState::Active), in_state("b", MemberState::Away)]);
        assert_eq!(members_in_words(&away, &[]), "2 members (1 active): a, b away");
    }

    #[test]
    fn a_shortened_id_means_whole_parts_of_an_id() {
        let known =
            ["worker-1", "worker-10", "web-5f3c2a10", "group/worker-2", "web.example-00c0ffee"].map(|id| InstanceId::new(id).unwrap());
        let meant = |short| meant_by(short, &known).into_iter().map(InstanceId::as_str).collect::<Vec<_>>();
        assert_eq!(meant("worker-2"), ["group/worker-2"]);
        assert_eq!(meant("web"), ["web-5f3c2a10", "web.example-00c0ffee"]);
        assert_eq!(meant("web.example"), ["web.example-00c0ffee"]);
        assert_eq!(meant("worker"), ["worker-1", "worker-10"]);
        assert_eq!(meant("work"), [""; 0]);
        assert_eq!(meant("worker-3"), [""; 0]);
    }
}
