//! `max_loss`: if more members vanish within one TTL than the policy allows, the cause is more likely a network or a backend than that
//! many deaths. Their slots are then not taken over until enough of them return or an operator confirms the loss.
//!
//! The vanished members stay in the placement: each member that has seen them vanish lists them in its record, and all count the members
//! that the records list ([`View::missing`]). So the placement remains a function of the view alone, the same for members with different
//! pasts and for newcomers. Until its list is in the view, a member owns only what it will also own with the list.

use std::sync::Arc;
use std::time::Duration;

use crate::{InstanceId, Loss, MaxLoss, Member, MemberState, Missing, Moment, View};

/// The most missing members in one record, and the most bytes of their ids in JSON. They keep the record within every backend's limits.
const LISTED_MAX: usize = 128;
const LISTED_BYTES_MAX: usize = 8 * 1_024;

#[derive(Debug, Default)]
pub(super) struct Losses {
    before: Option<Arc<View>>,
    /// Members that vanished within the last TTL, and when this member noticed.
    recent: Vec<(Moment, Missing)>,
    /// The missing members, once they are too many, and the number of members before the loss.
    missing: Vec<Missing>,
    of: usize,
    /// The mark for the record.
    shown: Vec<Missing>,
}

impl Losses {
    /// Forgets the past: after an absence of this member, a new view says nothing about losses.
    pub(super) fn forget(&mut self) {
        (self.before, self.of) = (None, 0);
        self.recent.clear();
        self.missing.clear();
    }

    /// Forgets the past together with the record and its mark.
    pub(super) fn start_over(&mut self) {
        self.forget();
        self.shown.clear();
    }

    /// Takes the next view.
    pub(super) fn take(&mut self, now: Moment, view: &Arc<View>, ttl: Duration, max: MaxLoss) {
        if view.members().iter().any(|member| member.loss == Some(Loss::Confirmed)) {
            self.forget();
        }
        let vanished = self.vanished(view);
        self.before = Some(Arc::clone(view));
        let active = sharing(view).count();
        if self.missing.is_empty() {
            self.recent.retain(|(at, missing)| now.since(*at) < ttl && view.member(&missing.instance_id).is_none());
            self.recent.extend(vanished.into_iter().map(|missing| (now, missing)));
            let of = self.recent.len() + active;
            if max.is_exceeded(self.recent.len(), of) {
                (self.missing, self.of) = (self.recent.drain(..).map(|(_, missing)| missing).collect(), of);
            }
        } else {
            // A member that returned may leave in good order later.
            self.missing.retain(|missing| view.member(&missing.instance_id).is_none());
            self.missing.extend(vanished);
            // They may have returned under other ids: only their number counts.
            if !max.is_exceeded(self.of.saturating_sub(active), self.of) {
                self.missing.clear();
            }
        }
        self.missing.sort_unstable();
        self.missing.dedup();
        self.missing.truncate(fitting(&self.missing));
    }

    /// Members that had a share and are gone without having drained.
    fn vanished(&self, view: &View) -> Vec<Missing> {
        let before = self.before.iter().flat_map(|before| sharing(before));
        let gone = before.filter(|member| view.member(&member.instance_id).is_none());
        gone.map(|member| Missing { instance_id: member.instance_id.clone(), weight: member.weight }).collect()
    }

    /// The view with this member's mark in its record, as all will see it once the mark is written.
    pub(super) fn with_mark(&self, view: &Arc<View>, me: &InstanceId) -> Arc<View> {
        let mark = (!self.missing.is_empty()).then(|| Loss::Missing(self.missing.clone()));
        match view.member(me) {
            Some(member) if member.loss.is_some() || mark.is_some() => view.marked(me, mark.as_ref()),
            _ => Arc::clone(view),
        }
    }

    /// The new mark for the record, if it has changed.
    pub(super) fn changed_mark(&mut self) -> Option<Vec<Missing>> {
        if self.shown == self.missing {
            return None;
        }
        self.shown.clone_from(&self.missing);
        Some(self.missing.clone())
    }
}

/// How many of the missing, sorted by the bytes of their ids, one record lists: the first ones, within the limits. The others count as
/// gone and are taken over, unless another member's record lists them.
fn fitting(missing: &[Missing]) -> usize {
    let mut bytes = 0;
    let fits = |missing: &&Missing| {
        bytes += missing.instance_id.as_str().bytes().map(json_bytes).sum::<usize>();
        bytes <= LISTED_BYTES_MAX
    };
    missing.iter().take(LISTED_MAX).take_while(fits).count()
}

/// The length of one byte within a JSON string.
const fn json_bytes(byte: u8) -> usize {
    match byte {
        0..0x20 => "\\u0000".len(),
        b'"' | b'\\' => 2,
        _ => 1,
    }
}

/// The active members that have a share: they serve what the group serves.
fn sharing(view: &View) -> impl Iterator<Item = &Member> {
    view.eligible(view.group_fingerprint()).filter(|member| member.state == MemberState::Active)
}
