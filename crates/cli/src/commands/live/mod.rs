//! Commands on the live group that do not join it.

mod confirm;
mod drain;
mod explain;
mod members;
mod owner;
mod rebalances;

pub(crate) use confirm::{ConfirmLoss, EndAbsence};
pub(crate) use drain::{Drain, Undrain};
pub(crate) use explain::Explain;
pub(crate) use members::Members;
pub(crate) use owner::Owner;
pub(crate) use rebalances::RebalancesArgs;

use shardwise::{InstanceId, MemberState, Observer, View};

use crate::output;

/// The most ids in one message.
const SHOWN_MAX: usize = 20;

fn no_owner(observer: &Observer) -> String {
    let (active, needed) = (observer.members().active(), observer.policy().min_members);
    format!("no owner: active members: {active}; {needed} needed (min_members)")
}

/// Notes on stderr which vanished members' keys no member takes over, if there are any, and what to do.
fn note_frozen(view: &View, policy: &str) {
    let missing: Vec<String> = view.missing().iter().map(|(id, _)| id.to_string()).collect();
    if missing.is_empty() {
        return;
    }
    let shown = missing.get(..SHOWN_MAX).unwrap_or(&missing).join(", ");
    let more = missing.len().saturating_sub(SHOWN_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    output::note(format_args!(
        "vanished: {shown}{more}. That is more than max_loss allows, so no member takes over their keys until enough members are back. \
         If they are gone for good: shardwise confirm-loss --policy {policy}"
    ));
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
