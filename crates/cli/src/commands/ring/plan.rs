//! `shardwise ring plan`: prints what a change of the group, or of the placement, would move.

use std::path::PathBuf;

use clap::Args;
use shardwise::InstanceId;
use shardwise::core::{Balance, PlacementChange, Plan as Moves, Sample, Side};

use super::text::{MemberWeight, members_of_list, placement_after};
use super::{Placement, RingMembers, from_file, usage};
use crate::common::Common;
use crate::exit::{Code, Result};
use crate::output::{count, table};

#[derive(Debug, Args)]
pub(crate) struct RingPlan {
    #[command(flatten)]
    members: RingMembers,
    /// Add these members: ids with commas, =WEIGHT if it is not 1
    #[arg(long, value_name = "x,y=2")]
    join: Vec<String>,
    /// Add the members of this file, written like --members-file
    #[arg(long, value_name = "FILE")]
    join_file: Option<PathBuf>,
    /// Remove these members; an id with commas needs a separate --leave
    #[arg(long, value_name = "a,b")]
    leave: Vec<String>,
    #[command(flatten)]
    placement: Placement,
    /// Change the placement to this, as the table next of a policy does
    #[arg(long, value_name = "KEY=VALUE,...")]
    to: Vec<String>,
}

impl RingPlan {
    pub(super) fn run(&self, common: &Common) -> Result<Code> {
        let before = self.members.read()?;
        let after = self.after(&before)?;
        let params = self.placement.params()?;
        // A key placement has no slots to print.
        if self.to.is_empty() && params.kind.by_key().is_none() {
            let plan = Moves::new(before, after, params);
            common.print(&plan, || in_words(&plan))?;
        } else {
            let next = if self.to.is_empty() { params } else { placement_after(params, &self.to.join(",")).map_err(usage)? };
            let change = PlacementChange::new((before, params), (after, next)).map_err(usage)?;
            common.print(&change, || change_in_words(&change))?;
        }
        Ok(Code::Ok)
    }

    fn after(&self, before: &[MemberWeight]) -> Result<Vec<MemberWeight>> {
        let mut after = before.to_vec();
        // A member whose id is the whole text, commas included, takes precedence over a list.
        let is_id = |text: &String| before.iter().any(|(known, _)| known.as_str() == text);
        let leaving = self.leave.iter().flat_map(|list| if is_id(list) { vec![list.as_str()] } else { list.split(',').collect() });
        for id in leaving {
            let Some(at) = after.iter().position(|(known, _)| known.as_str() == id) else {
                let why = "give ids of --members, each once and without a weight";
                return Err(usage(format_args!("--leave {id}: no member is called {id}; {why}")));
            };
            after.remove(at);
        }
        let lists =
            self.join.iter().map(|list| members_of_list(list).map_err(usage)).chain(self.join_file.iter().map(|file| from_file(file)));
        for joining in lists {
            for (id, weight) in joining? {
                if after.iter().any(|(known, _)| *known == id) {
                    let why = "there is a member of that id already; to change a weight, let it leave and join";
                    return Err(usage(format_args!("--join {id}: {why}")));
                }
                after.push((id, weight));
            }
        }
        Ok(after)
    }
}

fn name(id: Option<&InstanceId>) -> String {
    id.map_or_else(|| "(none)".to_owned(), ToString::to_string)
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

fn in_words(plan: &Moves) -> String {
    let moves: Vec<_> = plan
        .moves
        .iter()
        .map(|pair| vec![name(pair.from.as_ref()), name(pair.to.as_ref()), pair.slots.to_string(), percent(pair.share)])
        .collect();
    let balances = [balance("before", &plan.before), balance("after", &plan.after)];
    let (moved, exact) = (percent(plan.moved_share), percent(plan.exact_share));
    let mut text =
        format!("{} of {} move: {moved}; between exact shares it would be {exact}\n\n", plan.moved, count(u64::from(plan.slots), "slot"));
    if !moves.is_empty() {
        text += &(table(&["from", "to", "slots", "share"], &moves) + "\n");
    }
    text + &table(&["", "members", "peak", "least"], &balances)
}

fn balance(when: &str, balance: &Balance) -> Vec<String> {
    vec![when.to_owned(), balance.members.to_string(), format!("{:.3}", balance.peak), format!("{:.3}", balance.least)]
}

fn change_in_words(change: &PlacementChange) -> String {
    let moves: Vec<_> =
        change.moves.iter().map(|pair| vec![name(pair.from.as_ref()), name(pair.to.as_ref()), percent(pair.share)]).collect();
    let side = |when, side: &Side| {
        let number = |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let margin = side.load_margin.clone().unwrap_or_else(|| "-".to_owned());
        [balance(when, &side.balance), vec![side.placement.to_owned(), number(side.slots), number(side.virtual_nodes), margin]].concat()
    };
    let (moved, exact) = (percent(change.moved_share), percent(change.exact_share));
    let measured = change.sample.map_or_else(String::new, |Sample { keys, seed }| {
        format!("measured on a sample of {keys} keys, seed {seed}: right to within half a percentage point\n")
    });
    let mut text = format!("{moved} of the keys move; between exact shares it would be {exact}\n{measured}\n");
    if !moves.is_empty() {
        text += &(table(&["from", "to", "share"], &moves) + "\n");
    }
    let heading = ["", "members", "peak", "least", "placement", "slots", "virtual_nodes", "load_margin"];
    text + &table(&heading, &[side("before", &change.before), side("after", &change.after)])
}
