//! `shardwise owner` and `shardwise explain`: a key's owner in the live group, and why.

use clap::Args;
use serde_json::json;
use shardwise::{Holding, InstanceId, MemberState, Mismatch, Observer, OwnershipMode, ShardingFactory, View};

use super::drain::drained_members;
use super::held;
use crate::commands::group::PolicyArg;
use crate::commands::ring;
use crate::common::Common;
use crate::exit::{Code, Result};
use crate::output::{self, Format};

#[derive(Debug, Args)]
#[command(after_help = "\
By the newest view of the group; in a rolling upgrade (version_rule = \"newest\") the owner is the member that holds the key. Under exclusive \
ownership a note on stderr has the holder and its epoch, and why that is not the owner; with --json they are fields. A note also says if \
the owner has vanished or is away, so that no member works on it.
Exit code 1: the key has no owner.

  shardwise owner tenant-7")]
pub(crate) struct Owner {
    /// Look up this key
    key: String,
    #[command(flatten)]
    group: PolicyArg,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The same as `ring explain`, with the members and the placement of the live group. Under exclusive ownership also who holds the key's slot, \
under which epoch, and since when if this command has seen it change; with --json as holder, incarnation, epoch, since, wanted and why.
Exit code 1: the key has no owner.

  shardwise explain tenant-7")]
pub(crate) struct Explain {
    /// Explain the owner of this key
    key: String,
    #[command(flatten)]
    group: PolicyArg,
}

impl Owner {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        let (factory, policy, observer) = self.group.observe(common).await?;
        let (owner, view) = (observer.owner(self.key.as_str())?, observer.members());
        let address = owner.as_ref().and_then(|id| view.member(id)).and_then(|member| member.address.as_ref()).map(ToString::to_string);
        let holding = holding_of(&self.key, &observer);
        match (common.format(), &owner) {
            (Format::Json, _) => {
                let mut line = held::fields(holding.as_ref(), observer.now());
                line.extend([
                    ("key".to_owned(), json!(self.key)),
                    ("owner".to_owned(), json!(owner)),
                    ("address".to_owned(), json!(address)),
                    ("revision".to_owned(), json!(view.revision())),
                ]);
                output::json_line(&line)?;
            }
            (Format::Human, Some(owner)) => {
                // Scripts read the one line on stdout.
                output::text(&format!("{owner}\n"))?;
                if let Some(holding) = holding.as_ref().filter(|holding| holding.mismatch.is_none()) {
                    output::note(format_args!("shardwise: holder {}", held::in_words(holding, observer.now())));
                }
            }
            (Format::Human, None) => {}
        }
        note_holder(holding.as_ref());
        match &owner {
            Some(owner) => note_idle_owner(owner, &view, &policy),
            None => output::note(no_owner(&factory, &policy, &observer).await),
        }
        Ok(if owner.is_some() { Code::Ok } else { Code::No })
    }
}

impl Explain {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        let (factory, policy, observer) = self.group.observe(common).await?;
        let holding = holding_of(&self.key, &observer);
        let Some(placed) = observer.placed()? else {
            note_holder(holding.as_ref());
            output::note(no_owner(&factory, &policy, &observer).await);
            return Ok(Code::No);
        };
        let holder = holding.as_ref().map(|holding| held::in_words(holding, observer.now()));
        ring::explain::print(&placed, &self.key, held::fields(holding.as_ref(), observer.now()), holder.as_deref(), common)?;
        note_holder(holding.as_ref());
        if let Some(owner) = observer.owner(self.key.as_str())? {
            note_idle_owner(&owner, &observer.members(), &policy);
        }
        Ok(Code::Ok)
    }
}

/// Who holds the slot of a key; `None` under eventual ownership.
fn holding_of(key: &str, observer: &Observer) -> Option<Holding> {
    let is_exclusive = observer.policy().ownership == OwnershipMode::Exclusive;
    match observer.holder(key) {
        _ if !is_exclusive => None,
        Ok(holding) => Some(holding),
        // The owner by the placement is known all the same.
        Err(error) => {
            output::note(format_args!("shardwise: the holder is not known: {error}"));
            None
        }
    }
}

/// Notes on stderr who holds the slot, if that is not the member that the placement names.
fn note_holder(holding: Option<&Holding>) {
    let Some((holding, why)) = holding.and_then(|holding| Some((holding, holding.mismatch?))) else { return };
    let why = match why {
        Mismatch::VersionRule => "the versions differ, and with version_rule = \"newest\" holders keep what they have",
        Mismatch::Drain => "the holder leaves or was drained, and finishes its work first",
        Mismatch::Expiring => "the holder is no longer a member, and its claim ends with its lease",
        Mismatch::Handover => "the holder finishes its work first",
        Mismatch::MinMembers => "fewer than min_members are active",
        // The note about an idle owner says more.
        Mismatch::Loss | Mismatch::RejoinGrace => return,
        _ => "it has not been claimed yet",
    };
    let holder = match &holding.held {
        Some(held) => format!("{} holds it under epoch {}", held.claim.holder.instance_id, held.claim.epoch),
        None => "no member holds it".to_owned(),
    };
    let wanted = holding.wanted.as_ref().map_or_else(|| "no member".to_owned(), ToString::to_string);
    output::note(format_args!("shardwise: {holder}; the placement names {wanted}: {why}"));
}

/// The line that no key has an owner, and why.
pub(super) async fn no_owner(factory: &ShardingFactory, policy: &str, observer: &Observer) -> String {
    format!("no owner: {}", why_no_owner(factory, policy, observer).await)
}

/// Why a key is not served, if the cause is that no key has an owner.
pub(super) async fn why_unserved(factory: &ShardingFactory, policy: &str, observer: &Observer) -> Option<String> {
    match observer.placed() {
        Ok(Some(_)) => None,
        Ok(None) => Some(why_no_owner(factory, policy, observer).await),
        Err(error) => Some(error.to_string()),
    }
}

/// The end of a line that refers to the list of members.
pub(super) fn see_members(policy: &str) -> String {
    format!("; see shardwise members --policy {policy}")
}

/// Why no key has an owner. In a view, drained members look like leaving ones, so the backend is asked which members are drained.
async fn why_no_owner(factory: &ShardingFactory, policy: &str, observer: &Observer) -> String {
    let (view, needed) = (observer.members(), observer.policy().min_members);
    if view.all_draining() {
        let drained = match drained_members(factory, policy).await {
            Ok(drained) => drained,
            Err(error) => {
                return format!("every member is draining, and the list of drained members cannot be read: {error}");
            }
        };
        if let Some(id) = drained.iter().find(|id| view.member(id).is_some()) {
            return format!("all members are drained; to undo it: shardwise undrain {id} --policy {policy}");
        }
    }
    if view.members().iter().any(|member| member.worker.is_some()) && view.active() == 0 {
        return format!("no member has a worker that works{}", see_members(policy));
    }
    match view.active() {
        0 => format!("active members: none; {needed} needed (min_members)"),
        active => format!("active members: {active}; {needed} needed (min_members)"),
    }
}

/// Notes on stderr that no member works on the keys of this owner, if that is so.
fn note_idle_owner(owner: &InstanceId, view: &View, policy: &str) {
    match view.member(owner).map(|member| member.state) {
        None => output::note(format_args!(
            "shardwise: {owner} has vanished, and because of max_loss no member takes over its keys: see shardwise members --policy {policy}"
        )),
        Some(MemberState::Away) => output::note(format_args!(
            "shardwise: {owner} is away, and no member works on its keys until it is back or rejoin_grace ends. If it does not come back: \
             shardwise end-absence {owner} --policy {policy}"
        )),
        Some(_) => {}
    }
}
