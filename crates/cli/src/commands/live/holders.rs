//! `shardwise holders`: who holds each slot and name of the live group.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::{Value, json};
use shardwise::core::Resource;
use shardwise::{Epoch, Holding, InstanceId, Observer, View};

use super::held;
use super::members::note_frozen;
use super::owner::no_owner;
use crate::commands::group::PolicyArg;
use crate::common::Common;
use crate::exit::{Code, Result};
use crate::output::{self, count, table};

/// The most ranges of slots in a cell.
const RANGES_MAX: usize = 8;

#[derive(Debug, Args)]
#[command(after_help = "\
Only under exclusive ownership. Prints how many slots and names each member holds; then each name that is held (singletons, daemons, timers); \
then the slots whose holder is not the member that the placement names (wanted), and why: handover, drain, version_rule, expiring, unclaimed, \
grace, loss or min_members.
With --json every slot and name, with holder, incarnation, epoch, since, wanted and why; since is null if the holder had it before the command \
started. A member that died is listed for up to a TTL after its last renewal.
Exit code 1: no member holds anything.

  shardwise holders
  shardwise holders --slots --policy my_custom_workers")]
pub(crate) struct HoldersArgs {
    /// List every slot instead of those with another holder
    #[arg(long)]
    slots: bool,
    #[command(flatten)]
    group: PolicyArg,
}

impl HoldersArgs {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        let (factory, policy, observer) = self.group.observe(common).await?;
        let holdings = observer.holders()?;
        output::release_log();
        let view = observer.members();
        common.print(&as_json(&policy, &view, &holdings, &observer), || self.in_words(&policy, &view, &holdings))?;
        note_frozen(&view, &policy);
        if holdings.iter().any(is_without_owner) {
            output::note(no_owner(&factory, &policy, &observer).await);
        }
        Ok(if holdings.iter().any(|holding| holding.held.is_some()) { Code::Ok } else { Code::No })
    }

    fn in_words(&self, policy: &str, view: &View, holdings: &[Holding]) -> String {
        let mut text = table(&["member", "slots", "names"], &by_member(view, holdings)) + "\n";
        let names: Vec<_> = holdings.iter().filter_map(name_row).collect();
        if !names.is_empty() {
            text += &(table(&["name", "holder", "epoch"], &names) + "\n");
        }
        let slots: Vec<_> = holdings.iter().filter_map(slot_row).collect();
        let elsewhere = holdings.iter().filter(|holding| holding.mismatch.is_some()).count();
        if self.slots {
            text += &(table(&["slot", "holder", "epoch", "wanted", "why"], &slots) + "\n");
        } else if elsewhere > 0 {
            text += &(table(&["count", "holder", "epochs", "wanted", "why", "slots"], &mismatches(holdings)) + "\n");
        }
        let free = holdings.iter().filter(|holding| is_without_owner(holding)).count();
        let agree = match (elsewhere, free) {
            (0, 0) => "each is held by the member that the placement names".to_owned(),
            (0, free) => format!("{free} held by no member, and the placement names none"),
            (elsewhere, _) => format!("{elsewhere} not held by the member that the placement names"),
        };
        let (slots, revision, fingerprint) = (count(slots.len() as u64, "slot"), view.revision(), view.fingerprint());
        format!("{text}policy {policy}: {slots}, {agree}; revision {revision}, view {fingerprint}\n")
    }
}

/// Whether no member holds it, and the placement names none, because no member may own anything.
const fn is_without_owner(holding: &Holding) -> bool {
    holding.held.is_none() && holding.mismatch.is_none()
}

fn as_json(policy: &str, view: &View, holdings: &[Holding], observer: &Observer) -> Value {
    let now = observer.now();
    let (mut slots, mut names) = (Vec::new(), Vec::new());
    for holding in holdings {
        let mut fields = held::fields(Some(holding), now);
        let (list, key, resource) = match &holding.resource {
            Resource::Slot(slot) => (&mut slots, "slot", json!(slot)),
            Resource::Name(name) => (&mut names, "name", json!(name)),
        };
        fields.insert(key.to_owned(), resource);
        list.push(Value::Object(fields));
    }
    json!({
        "policy": policy, "revision": view.revision(), "view_fingerprint": view.fingerprint().to_string(), "slots": slots, "names": names,
    })
}

/// How many slots and names each holds. Members that hold nothing are listed, and holders that are no longer members.
fn by_member(view: &View, holdings: &[Holding]) -> Vec<Vec<String>> {
    let mut held: BTreeMap<&InstanceId, (u32, u32)> = view.members().iter().map(|member| (&member.instance_id, (0, 0))).collect();
    let mut free = 0_u32;
    for holding in holdings {
        match (&holding.held, &holding.resource) {
            (None, _) => free += 1,
            (Some(claim), Resource::Slot(_)) => held.entry(&claim.claim.holder.instance_id).or_default().0 += 1,
            (Some(claim), Resource::Name(_)) => held.entry(&claim.claim.holder.instance_id).or_default().1 += 1,
        }
    }
    let row = |(id, (slots, names)): (&InstanceId, (u32, u32))| vec![id.to_string(), slots.to_string(), names.to_string()];
    let free = (free > 0).then(|| vec!["(none)".to_owned(), free.to_string(), "-".to_owned()]);
    held.into_iter().map(row).chain(free).collect()
}

fn name_row(holding: &Holding) -> Option<Vec<String>> {
    let Resource::Name(name) = &holding.resource else { return None };
    let [holder, epoch] = held::cells(Some(holding));
    Some(vec![name.to_string(), holder, epoch])
}

fn slot_row(holding: &Holding) -> Option<Vec<String>> {
    let Resource::Slot(slot) = holding.resource else { return None };
    let [holder, epoch] = held::cells(Some(holding));
    let elsewhere = holding.mismatch.map(|why| (name_of(holding.wanted.as_ref()), why.as_str().to_owned()));
    let (wanted, why) = elsewhere.unwrap_or_default();
    Some(vec![slot.to_string(), holder, epoch, wanted, why])
}

fn name_of(member: Option<&InstanceId>) -> String {
    member.map_or_else(|| "-".to_owned(), ToString::to_string)
}

/// A row for the slots that have the same holder, wanted member and reason.
fn mismatches(holdings: &[Holding]) -> Vec<Vec<String>> {
    let mut alike = BTreeMap::<_, (Vec<u32>, Vec<Epoch>)>::new();
    for holding in holdings {
        if let (Resource::Slot(slot), Some(why)) = (&holding.resource, holding.mismatch) {
            let claim = holding.held.as_ref().map(|held| &held.claim);
            let (slots, epochs) = alike.entry((claim.map(|claim| &claim.holder.instance_id), holding.wanted.as_ref(), why)).or_default();
            slots.push(*slot);
            epochs.extend(claim.map(|claim| claim.epoch));
        }
    }
    let rows = alike.into_iter().map(|((holder, wanted, why), (slots, epochs))| {
        let epochs = match (epochs.iter().min(), epochs.iter().max()) {
            (Some(first), Some(last)) if first == last => first.to_string(),
            (Some(first), Some(last)) => format!("{first}-{last}"),
            _ => "-".to_owned(),
        };
        vec![slots.len().to_string(), name_of(holder), epochs, name_of(wanted), why.as_str().to_owned(), ranges(&slots)]
    });
    rows.collect()
}

/// Slots in order as ranges, such as `3, 7-9`; not all if there are many.
fn ranges(slots: &[u32]) -> String {
    let range = |slots: &[u32]| match slots {
        [first, .., last] => format!("{first}-{last}"),
        slots => slots.iter().map(u32::to_string).collect(),
    };
    let ranges: Vec<String> = slots.chunk_by(|slot, next| slot + 1 == *next).map(range).collect();
    match ranges.len().checked_sub(RANGES_MAX) {
        Some(more) if more > 0 => {
            format!("{} and {more} more ranges: see --slots", ranges.iter().take(RANGES_MAX).cloned().collect::<Vec<_>>().join(", "))
        }
        _ => ranges.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_shown_as_ranges_and_not_all_if_there_are_many() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[3, 7, 8, 9, 11, 12]), "3, 7-9, 11-12");
        let many: Vec<u32> = (0..10).map(|n| n * 2).collect();
        assert_eq!(ranges(&many), "0, 2, 4, 6, 8, 10, 12, 14 and 2 more ranges: see --slots");
        assert_eq!(ranges(&many[..8]), "0, 2, 4, 6, 8, 10, 12, 14");
    }
}
