//! `shardwise rebalances`: prints what moves between the members.

use std::collections::BTreeMap;
use std::time::SystemTime;

use clap::Args;
use serde_json::json;
use shardwise::{InstanceId, MemberState, Observer, SlotOwners};

use crate::commands::group::{GroupSnapshot, PolicyArg, count_in_words, follow, state_in_words, vanished_between};
use crate::common::Common;
use crate::exit::{Code, Result};
use crate::{output, signals};

#[derive(Debug, Args)]
#[command(after_help = "\
The first line shows the current group. With --json one object a line: at, revision, members, joined, left, vanished (those of left that \
died or lost their lease; drained ones count as left), state_changed, moved (slots), moved_share, moves. Without slots, or where their number changes, the last three \
are null.
The backend keeps no history; a sidecar (`shardwise serve`) keeps its worker's. Ctrl-C and SIGTERM end the command.

  shardwise rebalances")]
pub(crate) struct RebalancesArgs {
    /// Has no effect: the command always continues until it is stopped
    #[arg(long = "follow")]
    _follow: bool,
    #[command(flatten)]
    group: PolicyArg,
}

impl RebalancesArgs {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        let shutdown = signals::shutdown()?;
        let (factory, _, observer) = self.group.observe(common).await?;
        output::release_log();
        follow(&factory, observer, &shutdown, |observer, before, now| print(observer, before, now, common)).await
    }
}

/// The number of slots that move between each pair of owners.
type Moves<'a> = BTreeMap<(Option<&'a InstanceId>, Option<&'a InstanceId>), u32>;

/// `None` if the placements cannot be compared.
fn moves<'a>(before: Option<&'a SlotOwners>, now: Option<&'a SlotOwners>) -> Option<Moves<'a>> {
    let (before, now) = (before?, now?);
    let slots = now.params().slots;
    (slots == before.params().slots).then(|| {
        (0..slots).fold(Moves::new(), |mut moves, slot| {
            let (from, to) = (before.owner_of_slot(slot), now.owner_of_slot(slot));
            if from != to {
                *moves.entry((from, to)).or_default() += 1;
            }
            moves
        })
    })
}

fn print(observer: &Observer, before: &GroupSnapshot, now: &GroupSnapshot, common: &Common) -> Result<()> {
    let (joined, left) = (now.view.joined_since(&before.view), before.view.joined_since(&now.view));
    let vanished = vanished_between(&before.view, &now.view, &observer.departures());
    let members = now.view.members();
    let changed: Vec<(&InstanceId, MemberState, MemberState)> = members
        .iter()
        .filter_map(|member| Some((&member.instance_id, before.view.member(&member.instance_id)?.state, member.state)))
        .filter(|(_, from, to)| from != to)
        .collect();
    let moves = moves(before.owners.as_deref(), now.owners.as_deref());
    let moved: Option<u32> = moves.as_ref().map(|moves| moves.values().sum());
    let slots = now.owners.as_ref().map_or(1, |owners| owners.params().slots);
    let share = moved.map(|moved| f64::from(moved) / f64::from(slots));
    let at = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
    let json = json!({
        "at": at, "revision": now.view.revision(), "members": members.len(), "joined": joined, "left": left,
        "vanished": vanished, "state_changed": changed.iter().map(|(id, from, to)| {
            json!({"instance_id": id, "from": from.as_str(), "to": to.as_str()})
        }).collect::<Vec<_>>(),
        "moved": moved, "moved_share": share,
        "moves": moves.map(|moves| {
            moves.iter().map(|((from, to), slots)| json!({"from": from, "to": to, "slots": slots})).collect::<Vec<_>>()
        }),
    });
    common.print(&json, || {
        let mut words = vec![format!("{at}  {}", count_in_words(&now.view))];
        words.extend(joined.iter().map(|id| match now.view.member(id) {
            Some(member) if member.state != MemberState::Active => format!("+{id} ({})", state_in_words(member, &now.drained)),
            _ => format!("+{id}"),
        }));
        words.extend(left.iter().map(|id| if vanished.contains(&id) { format!("-{id} (vanished)") } else { format!("-{id}") }));
        let state =
            |group: &GroupSnapshot, id: &InstanceId| group.view.member(id).map_or("", |member| state_in_words(member, &group.drained));
        words.extend(changed.iter().map(|&(id, _, _)| format!("{id}: {} -> {}", state(before, id), state(now, id))));
        if let (Some(moved), Some(share)) = (moved, share) {
            words.push(format!(" {moved} slots move ({:.1} %)", share * 100.0));
        }
        words.join(" ") + "\n"
    })
}
