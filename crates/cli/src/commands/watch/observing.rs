//! Observes a group without joining it.

use std::sync::Arc;
use std::time::SystemTime;

use shardwise::core::ViewPlacement;
use shardwise::{Observer, ShardingFactory, View};

use super::printer::ChangePrinter;
use super::{AwayMember, WatchLine};
use crate::commands::{waiting, waits_for};
use crate::exit::{Code, Result};
use crate::{output, signals};

/// Prints every change of the group until the command is stopped.
pub(super) async fn observe(factory: &ShardingFactory, policy: &str, mut printer: ChangePrinter) -> Result<Code> {
    output::note(format_args!(
        "shardwise: observing policy {policy}: this process joins nothing and owns nothing (--join joins as a worker)"
    ));
    let shutdown = signals::shutdown()?;
    let observing = waiting(waits_for(policy), factory.observe(policy));
    let mut observer = tokio::select! {
        observer = observing => observer?,
        () = shutdown.cancelled() => return Ok(Code::Ok),
    };
    output::release_log();
    let mut before: Option<ObservedGroup> = None;
    loop {
        let now = ObservedGroup::of(&observer);
        if before.as_ref().is_none_or(|before| now.differs(before)) {
            printer.print(&line(policy, &observer, &now))?;
            before = Some(now);
        }
        tokio::select! {
            changed = observer.changed() => if !changed { return Ok(Code::Ok) },
            () = shutdown.cancelled() => return Ok(Code::Ok),
        }
    }
}

fn line<'a>(policy: &'a str, observer: &Observer, now: &'a ObservedGroup) -> WatchLine<'a> {
    let view = &now.view;
    WatchLine {
        at: humantime::format_rfc3339_micros(SystemTime::now()).to_string(),
        monotonic_ns: None,
        owned_until_ns: None,
        policy,
        instance_id: None,
        state: "observing",
        revision: view.revision(),
        view_fingerprint: view.fingerprint().to_string(),
        policy_fingerprint: view.group_fingerprint().map(|fingerprint| fingerprint.to_string()),
        members: view.members().iter().map(|member| member.instance_id.as_str()).collect(),
        slots: now.slots,
        slots_owned: None,
        stands_still: !view.missing().is_empty(),
        away: observer.absences().into_iter().map(AwayMember::from).collect(),
        gained: None,
        lost: None,
        which: None,
        items_owned: None,
    }
}

struct ObservedGroup {
    view: Arc<View>,
    /// The group's number of slots; `None` under a key placement and while no member owns anything.
    slots: Option<u32>,
}

impl ObservedGroup {
    fn of(observer: &Observer) -> Self {
        let slots = match observer.placed() {
            Ok(Some(ViewPlacement::Slots(owners))) => Some(owners.params().slots),
            _ => None,
        };
        Self { view: observer.members(), slots }
    }

    fn differs(&self, before: &Self) -> bool {
        self.view.members() != before.view.members() || self.slots != before.slots
    }
}
