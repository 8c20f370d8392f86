//! `shardwise ring`: the placement, offline.

pub(crate) mod explain;
mod owners;
mod plan;
mod text;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use shardwise::core::ViewPlacement;
use shardwise::{LoadMargin, PlacementKind, PlacementParams};

use crate::common::Common;
use crate::exit::{CliFailure, Code, Result};
use crate::files;
use text::{MemberWeight, in_order, members_of_lines, members_of_list, refuse_unused};

/// The most bytes of a members file: enough for more than a hundred thousand members.
const MEMBERS_BYTES_MAX: u64 = 1 << 24;

#[derive(Debug, Subcommand)]
pub(crate) enum Ring {
    /// Read keys from stdin, one a line, and print each with its owner
    #[command(after_help = "\
A key is every byte up to the line feed; an empty line is the empty key. With --json each line is {\"key\":…,\"owner\":…}, and keys must be UTF-8. \
Without members no key has an owner: nothing follows the tab, and JSON has null.

Settings are not read: use the values of your policy. An outbox's policy has 1024 slots unless set.

  printf 'tenant-7\\ntenant-8\\n' | shardwise ring owners --members a,b=2,c")]
    Owners(owners::Owners),
    /// Print what would move if members or the placement changed
    #[command(after_help = "\
The moves are pairs of members, the largest first. Peak and least are the slots of the most and the least loaded member over the mean, or, \
with weights, over the share of its weight. Exact shares follow the weights; real ones are close, so a plan may move a little less or more.
With --to the plan is for a policy with that next, and shares are of all keys; the numbers of slots may differ. From or to another fleet's \
rule they are measured on a sample of keys, which is named.

Settings are not read: use the values of your policy. An outbox's policy has 1024 slots unless set.

  shardwise ring plan --members a,b=2,c --join d,e=2 --leave a
  shardwise ring plan --members a,b=2,c --to slots=65536,load_margin=0.1
  shardwise ring plan --members a,b,c --placement uhashring --to placement=ring")]
    Plan(plan::RingPlan),
    /// Explain step by step why a key has its owner
    #[command(after_help = "\
Settings are not read: use the values of your policy. An outbox's policy has 1024 slots unless set.

  shardwise ring explain tenant-7 --members a,b=2,c")]
    Explain(explain::RingExplain),
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct RingMembers {
    /// Take these members: ids with commas, =WEIGHT if it is not 1
    #[arg(long, value_name = "a,b=2,c")]
    members: Option<String>,
    /// Take the members of this file: lines {"id": …, "weight": …}
    #[arg(long, value_name = "FILE")]
    members_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Placement {
    /// Place by this algorithm; the last three have no slots
    #[arg(long = "placement", value_parser = ["ring", "quota", "uhashring", "modulo", "hashring"], default_value = "ring")]
    kind: String,
    #[arg(long, value_name = "N", help = format!("Divide the ring into N slots [default: {}]", PlacementParams::default().slots))]
    slots: Option<u32>,
    #[arg(long, value_name = "N", help = format!("Use N points per weight, for ring and hashring [default: {}]", PlacementParams::default().virtual_nodes))]
    virtual_nodes: Option<u32>,
    #[arg(long, value_name = "X", help = format!(
        "Allow this much above a fair share: 0 to 10, or none [default: {}]", PlacementParams::default().load_margin
    ))]
    load_margin: Option<String>,
}

impl Ring {
    pub(crate) fn run(&self, common: &Common) -> Result<Code> {
        common.without_settings("set slots, virtual nodes and load margin by their options")?;
        match self {
            Self::Owners(owners) => owners.run(common),
            Self::Plan(plan) => plan.run(common),
            Self::Explain(explain) => explain.run(common),
        }
    }
}

impl Placement {
    fn params(&self) -> Result<PlacementParams> {
        // The argument parser accepts only known names.
        let mut params = PlacementParams { kind: PlacementKind::named(&self.kind).unwrap_or_default(), ..PlacementParams::default() };
        let given =
            [("slots", self.slots.is_some()), ("virtual_nodes", self.virtual_nodes.is_some()), ("load_margin", self.load_margin.is_some())];
        refuse_unused(params.kind, given.into_iter().filter_map(|(name, is_given)| is_given.then_some(name))).map_err(usage)?;
        params.slots = self.slots.unwrap_or(params.slots);
        params.virtual_nodes = self.virtual_nodes.unwrap_or(params.virtual_nodes);
        if let Some(text) = &self.load_margin {
            params.load_margin = LoadMargin::parse(text).map_err(usage)?;
        }
        params.validated().map_err(usage)
    }
}

fn place(members: Vec<MemberWeight>, params: PlacementParams) -> Result<ViewPlacement> {
    ViewPlacement::place(members, params).map_err(usage)
}

fn usage(error: impl std::fmt::Display) -> CliFailure {
    CliFailure::usage(error.to_string())
}

impl RingMembers {
    fn read(&self) -> Result<Vec<MemberWeight>> {
        let members = match (&self.members, &self.members_file) {
            (Some(list), _) => members_of_list(list).map_err(usage)?,
            (None, Some(file)) => from_file(file)?,
            (None, None) => Vec::new(),
        };
        in_order(members).map_err(usage)
    }
}

fn from_file(path: &Path) -> Result<Vec<MemberWeight>> {
    let text = String::from_utf8(files::read(path, MEMBERS_BYTES_MAX)?)
        .map_err(|error| usage(format_args!("{} is not UTF-8 text after byte {}", path.display(), error.utf8_error().valid_up_to())))?;
    members_of_lines(&text)
        .map_err(|(line, why)| usage(format_args!("{} line {line}: {why}; write {{\"id\": \"worker-1\", \"weight\": 2}}", path.display())))
}
