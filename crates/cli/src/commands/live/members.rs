//! `shardwise members`: the members of the group and their shares.

use std::collections::BTreeMap;

use clap::Args;
use serde::Serialize;
use shardwise::core::ViewPlacement;
use shardwise::{InstanceId, Member, MemberState, Observer};

use super::{GroupArgs, frozen};
use crate::args::Common;
use crate::exit::{Code, Result};
use crate::output::{self, Format, count, table};

/// List a group's members, without joining it
#[derive(Debug, Args)]
#[command(after_help = "\
States: active; draining (leaves); drained (stays and owns nothing, after `shardwise drain`); drain requested (has not seen that yet, in \
JSON drain_requested); pausing and away (leaves or has left for a while and keeps its place).
Without --policy and SHARDWISE_POLICY the only policy of workers is used; those of outboxes do not count.
Exit code 1: there is no member.

  shardwise members
  shardwise members --policy my_custom_workers")]
pub(crate) struct Members {
    #[command(flatten)]
    group: GroupArgs,
}

#[derive(Serialize)]
struct MembersReport<'a> {
    policy: &'a str,
    revision: u64,
    view_fingerprint: String,
    members: Vec<MemberReport<'a>>,
}

#[derive(Serialize)]
struct MemberReport<'a> {
    instance_id: &'a str,
    state: &'static str,
    /// An operator has requested the drain, and the member does not show it yet.
    drain_requested: bool,
    address: Option<String>,
    zone: Option<&'a str>,
    version: Option<&'a str>,
    weight: u8,
    /// `None` under a key placement, or while no member owns anything.
    slots: Option<u32>,
    metadata: &'a BTreeMap<String, String>,
}

impl Members {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        let (factory, policy, observer) = self.group.observe(common).await?;
        output::release_log();
        // If the backend does not support draining, no member is drained.
        let drained = factory.drained(&policy).await.unwrap_or_default();
        let (view, slots) = (observer.members(), slots(&observer));
        let members: Vec<_> = view.members().iter().map(|member| one(member, slots.get(&member.instance_id).copied(), &drained)).collect();
        let code = if members.is_empty() { Code::No } else { Code::Ok };
        let report =
            MembersReport { policy: &policy, revision: view.revision(), view_fingerprint: view.fingerprint().to_string(), members };
        match common.format() {
            Format::Json => output::json_line(&report)?,
            Format::Human => output::text(&in_words(&report))?,
        }
        if let Some(line) = frozen(&view, &policy) {
            output::note(line);
        }
        Ok(code)
    }
}

/// The number of slots of each member; empty if there are no slots.
fn slots(observer: &Observer) -> BTreeMap<InstanceId, u32> {
    let Ok(Some(ViewPlacement::Slots(owners))) = observer.placed() else { return BTreeMap::new() };
    owners.members().iter().map(|(id, _)| (id.clone(), owners.slots_of(id).len())).collect()
}

fn one<'a>(member: &'a Member, slots: Option<u32>, drained: &[InstanceId]) -> MemberReport<'a> {
    let wanted = drained.contains(&member.instance_id);
    let is_drained = member.state == MemberState::Draining && wanted;
    MemberReport {
        instance_id: member.instance_id.as_str(),
        state: if is_drained { "drained" } else { member.state.as_str() },
        drain_requested: wanted && member.state == MemberState::Active,
        address: member.address.as_ref().map(ToString::to_string),
        zone: member.zone.as_deref(),
        version: member.version.as_deref(),
        weight: member.weight.get(),
        slots,
        metadata: &member.metadata,
    }
}

fn in_words(report: &MembersReport<'_>) -> String {
    let text = |text: Option<&str>| text.unwrap_or("-").to_owned();
    let row = |member: &MemberReport<'_>| {
        let slots = member.slots.map_or_else(|| "-".to_owned(), |slots| slots.to_string());
        vec![
            member.instance_id.to_owned(),
            if member.drain_requested { "drain requested" } else { member.state }.to_owned(),
            slots,
            member.weight.to_string(),
            text(member.zone),
            text(member.version),
            text(member.address.as_deref()),
        ]
    };
    let rows: Vec<_> = report.members.iter().map(row).collect();
    let heading = ["member", "state", "slots", "weight", "zone", "version", "address"];
    let total = count(report.members.len() as u64, "member");
    format!(
        "{}\npolicy {}: {total} at revision {}, view {}\n",
        table(&heading, &rows),
        report.policy,
        report.revision,
        report.view_fingerprint
    )
}
