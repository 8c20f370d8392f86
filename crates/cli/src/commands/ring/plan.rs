//! `shardwise ring plan`: what a change of the group, or of the placement, would move.

use clap::Args;
use shardwise::core::{Balance, Change, Plan as Moves, Side};
use shardwise::{InstanceId, LoadMargin, PlacementKind, PlacementParams, Weight};

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
    /// How the placement would change: what may stand in the table next of a policy, such as slots=65536
    #[arg(long, value_name = "KEY=VALUE,...")]
    to: Vec<String>,
}

impl Plan {
    pub(super) fn run(&self, common: &Common) -> Result<Code> {
        let before = self.members.read()?;
        let after = self.after(&before)?;
        let params = self.placement.params()?;
        match (self.next(params)?, common.format()) {
            (None, Format::Json) => output::json_line(&Moves::new(before, after, params))?,
            (None, Format::Human) => output::text(&in_words(&Moves::new(before, after, params)))?,
            (Some(next), Format::Json) => output::json_line(&Change::new((before, params), (after, next)))?,
            (Some(next), Format::Human) => output::text(&change_in_words(&Change::new((before, params), (after, next))))?,
        }
        Ok(Code::Ok)
    }

    /// What `--to` makes of the placement; `None` without it.
    fn next(&self, now: PlacementParams) -> Result<Option<PlacementParams>> {
        let (mut next, mut named) = (now, Vec::new());
        for part in self.to.iter().flat_map(|list| list.split(',')) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            if named.contains(&key) {
                return Err(usage(format!("--to {part}: {key} is given twice")));
            }
            named.push(key);
            let number =
                || value.parse().map_err(|_| usage(format!("--to {part}: {value:?} is not a whole number that can be meant here")));
            match (key, value) {
                ("placement", "ring") => next.kind = PlacementKind::Ring,
                ("placement", _) => {
                    return Err(usage(format!("--to {part}: there is no plan for this placement yet; ring can be planned")));
                }
                ("slots", _) => next.slots = number()?,
                ("virtual_nodes", _) => next.virtual_nodes = number()?,
                ("load_margin", _) => next.load_margin = LoadMargin::parse(value).map_err(|error| usage(format!("--to: {error}")))?,
                _ => {
                    let known = "write KEY=VALUE with placement, slots, virtual_nodes or load_margin, separated by commas";
                    return Err(usage(format!("--to {part}: {known}")));
                }
            }
        }
        let next = next.validated().map_err(|error| usage(format!("--to: {error}")))?;
        Ok((!named.is_empty()).then_some(next))
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

fn name(id: Option<&InstanceId>) -> String {
    id.map_or_else(|| "(nobody)".to_owned(), ToString::to_string)
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

fn in_words(plan: &Moves) -> String {
    let share = |slots: f64| percent(slots / f64::from(plan.slots));
    let moves: Vec<_> = plan
        .moves
        .iter()
        .map(|pair| vec![name(pair.from.as_ref()), name(pair.to.as_ref()), pair.slots.to_string(), share(f64::from(pair.slots))])
        .collect();
    let balances = [balance("before", &plan.before), balance("after", &plan.after)];
    let (moved, exact) = (share(f64::from(plan.moved)), share(plan.exact));
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

fn change_in_words(change: &Change) -> String {
    let moves: Vec<_> =
        change.moves.iter().map(|pair| vec![name(pair.from.as_ref()), name(pair.to.as_ref()), percent(pair.share)]).collect();
    let side = |when, side: &Side| {
        let constants = [side.placement.to_owned(), side.slots.to_string(), side.virtual_nodes.to_string(), side.load_margin.clone()];
        [balance(when, &side.balance), constants.to_vec()].concat()
    };
    let (moved, exact) = (percent(change.moved_share), percent(change.exact_share));
    let mut text = format!("{moved} of the keys move; between exact shares it would be {exact}\n\n");
    if !moves.is_empty() {
        text += &(table(&["from", "to", "share"], &moves) + "\n");
    }
    let heading = ["", "members", "peak", "least", "placement", "slots", "virtual_nodes", "load_margin"];
    text + &table(&heading, &[side("before", &change.before), side("after", &change.after)])
}
