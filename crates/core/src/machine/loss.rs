//! `max_loss`: when more members vanish within one TTL than the policy allows, the cause is more likely a network or a backend than that many
//! deaths. Everybody then keeps what it has, until they return or an operator confirms that they are gone.
//!
//! Each member judges by the views it has seen, and says so in its record. A member without that past (it joined later, or saw the loss
//! in smaller steps) does as the others do: it keeps what it has, which for a newcomer is nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::{InstanceId, LossMark, MaxLoss, MemberState, Moment, View};

/// The most views remembered; with more within one TTL the ones in the middle go first.
const VIEWS_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Loss {
    /// The views of the last TTL, the oldest first, each with the moment at which it was taken.
    seen: VecDeque<(Moment, Arc<View>)>,
    missing: Option<Missing>,
    /// What the record says.
    pub(super) shown: bool,
}

#[derive(Debug)]
struct Missing {
    ids: Vec<InstanceId>,
    /// Of how many active members.
    of: usize,
}

impl Loss {
    /// Whether this member has itself seen too many vanish, and they are still missing.
    pub(super) const fn is_seen(&self) -> bool {
        self.missing.is_some()
    }

    /// Forgets the past: of a view that follows an absence of one's own nothing can be told.
    pub(super) fn forget(&mut self) {
        self.seen.clear();
        self.missing = None;
    }

    /// Takes the next view.
    pub(super) fn take(&mut self, now: Moment, view: &Arc<View>, ttl: Duration, max: MaxLoss) {
        if confirmed(view) {
            self.forget();
        }
        if let Some(missing) = &mut self.missing {
            missing.ids.retain(|id| view.member(id).is_none());
            if !max.is_exceeded(missing.ids.len(), missing.of) {
                self.forget();
            }
        } else {
            while self.seen.get(1).is_some_and(|(taken, _)| now.since(*taken) >= ttl) {
                self.seen.pop_front();
            }
            self.missing = self.vanished(view).filter(|missing| max.is_exceeded(missing.ids.len(), missing.of));
        }
        self.remember(now, view);
    }

    /// Who was active when the last TTL began and is gone without having drained.
    fn vanished(&self, view: &View) -> Option<Missing> {
        let (_, before) = self.seen.front()?;
        let active = || before.members().iter().filter(|member| member.state == MemberState::Active);
        let drained = |id: &InstanceId| {
            let last = self.seen.iter().rev().find_map(|(_, seen)| seen.member(id));
            last.is_some_and(|member| member.state == MemberState::Draining)
        };
        let gone = active().map(|member| &member.instance_id).filter(|id| view.member(id).is_none() && !drained(id));
        Some(Missing { ids: gone.cloned().collect(), of: active().count() })
    }

    fn remember(&mut self, now: Moment, view: &Arc<View>) {
        if self.seen.back().is_some_and(|(_, last)| last.revision() == view.revision() && last.members().len() == view.members().len()) {
            return;
        }
        if self.seen.len() == VIEWS_MAX {
            self.seen.remove(1);
        }
        self.seen.push_back((now, Arc::clone(view)));
    }
}

/// Whether an operator has confirmed the loss.
pub(super) fn confirmed(view: &View) -> bool {
    view.members().iter().any(|member| member.loss == Some(LossMark::Confirmed))
}

/// Whether somebody else says that too many have vanished.
pub(super) fn told_by_others(view: &View, me: &InstanceId) -> bool {
    !confirmed(view) && view.members().iter().any(|member| member.loss == Some(LossMark::Seen) && member.instance_id != *me)
}
