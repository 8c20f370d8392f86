//! `shardwise ring plan`: what a change of the group would move.

use clap::Args;
use shardwise::core::{Balance, Plan as Moves};
use shardwise::{InstanceId, Weight};

use super::{Members, Placement, list_of, usage};
use crate::args::Common;
use crate::exit::{Code, Result};
use crate::output::{self, Format, count, table};

#[derive(Debug, Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    members: Members,
    /// Who joins: ids separated by commas, each with =WEIGHT if it is not 1
    #[arg(long, value_name = "x,y=2")]
    join: Vec<String>,
    /// Who leaves: ids separated by commas
    #[arg(long, value_name = "a,b")]
    leave: Vec<String>,
    #[command(flatten)]
    placement: Placement,
}

impl Plan {
    pub(super) fn run(&self, common: &Common) -> Result<Code> {
        let before = self.members.read()?;
        let after = self.after(&before)?;
        let plan = Moves::new(before, after, self.placement.params()?);
        match common.format() {
            Format::Json => output::json_line(&plan)?,
            Format::Human => output::text(&in_words(&plan))?,
        }
        Ok(Code::Ok)
    }

    fn after(&self, before: &[(InstanceId, Weight)]) -> Result<Vec<(InstanceId, Weight)>> {
        let mut after = before.to_vec();
        for id in self.leave.iter().flat_map(|list| list.split(',')) {
            match after.iter().position(|(known, _)| known.as_str() == id) {
                Some(at) => drop(after.remove(at)),
                None => {
                    return Err(usage(format!(
                        "--leave {id}: no member of that id is left; give ids of --members, each once and without a weight"
                    )));
                }
            }
        }
        for list in &self.join {
            for (id, weight) in list_of(list)? {
                if after.iter().any(|(known, _)| *known == id) {
                    return Err(usage(format!(
                        "--join {id}: there is a member of that id already; to change a weight, let it leave and join"
                    )));
                }
                after.push((id, weight));
            }
        }
        Ok(after)
    }
}

fn in_words(plan: &Moves) -> String {
    let percent = |slots: f64| format!("{:.2} %", slots * 100.0 / f64::from(plan.slots));
    let name = |id: &Option<InstanceId>| id.as_ref().map_or_else(|| "(nobody)".to_owned(), ToString::to_string);
    let moves: Vec<_> = plan
        .moves
        .iter()
        .map(|pair| vec![name(&pair.from), name(&pair.to), pair.slots.to_string(), percent(f64::from(pair.slots))])
        .collect();
    let balance = |when: &str, balance: &Balance| {
        vec![when.to_owned(), balance.members.to_string(), format!("{:.3}", balance.peak), format!("{:.3}", balance.least)]
    };
    let balances = [balance("before", &plan.before), balance("after", &plan.after)];
    let (moved, exact) = (percent(f64::from(plan.moved)), percent(plan.exact));
    let mut text =
        format!("{} of {} move: {moved}; between exact shares it would be {exact}\n\n", plan.moved, count(u64::from(plan.slots), "slot"));
    if !moves.is_empty() {
        text += &(table(&["from", "to", "slots", "share"], &moves) + "\n");
    }
    text + &table(&["", "members", "peak", "least"], &balances)
}
