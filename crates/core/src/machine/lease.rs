//! The member's record and the calls that keep it alive: when they are due, when they count, and when they are too late.

use std::time::Duration;

use super::{Action, MemberRefusal, Op, OpFailure};
use crate::{Backoff, Incarnation, InstanceId, Moment, PolicyError, Timing, hash_bytes, slot_of};

const RETRY_FIRST: Duration = Duration::from_millis(50);
/// Longest pause: the member returns within 2 s of the backend's first answer after an outage.
const RETRY_LONGEST: Duration = Duration::from_secs(1);
/// The longest pause of a refused member, so that a fixed cause takes effect soon even with a longer TTL.
const REFUSED_LONGEST: Duration = Duration::from_secs(30);
/// A view unproven for this many TTLs ends ownership.
const VIEW_LASTS_TTLS: u32 = 2;

#[derive(Debug)]
pub(super) struct Lease {
    timing: Timing,
    incarnation: Incarnation,
    attempt: u64,
    in_flight: bool,
    backoff: Backoff,
    due: Option<Moment>,
    /// Start of the registration that created the record; `None` without a record.
    held_since: Option<Moment>,
    ends: Moment,
    /// Follows from the TTL granted last.
    renewed_after: Duration,
    proven: Moment,
    /// Stamp of another incarnation's record when this member first found it.
    rival: Option<u64>,
}

impl Lease {
    pub(super) const fn new(timing: Timing, incarnation: Incarnation) -> Self {
        let (ends, proven, renewed_after) = (Moment::ZERO, Moment::ZERO, timing.renew_every);
        Self {
            timing,
            incarnation,
            attempt: 0,
            in_flight: false,
            backoff: Backoff::new(RETRY_FIRST, RETRY_LONGEST),
            due: None,
            held_since: None,
            ends,
            renewed_after,
            proven,
            rival: None,
        }
    }

    pub(super) const fn ttl(&self) -> Duration {
        self.timing.ttl
    }

    /// A lower bound on the life of the record, whatever happens to the view.
    pub(super) fn lives_until(&self) -> Moment {
        self.ends.plus(self.timing.ttl.saturating_sub(self.timing.owned_for(self.timing.ttl)))
    }

    pub(super) const fn is_held(&self) -> bool {
        self.held_since.is_some()
    }

    /// Whether the view was proven after the registration, so that it can show the record.
    pub(super) fn is_seen(&self) -> bool {
        self.held_since.is_some_and(|since| self.proven >= since)
    }

    pub(super) fn prove(&mut self, at: Moment) {
        self.proven = self.proven.max(at);
    }

    pub(super) const fn proven_at(&self) -> Moment {
        self.proven
    }

    /// When ownership ends: with the lease, or with the view's last proof plus two TTLs.
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.is_held().then(|| if self.is_seen() { self.ends.min(self.proven.plus(self.timing.ttl * VIEW_LASTS_TTLS)) } else { self.ends })
    }

    pub(super) fn call(&mut self, op: Op, now: Moment, actions: &mut Vec<Action>) {
        self.attempt += 1;
        self.in_flight = true;
        self.due = Some(now);
        actions.push(Action::Call { op, attempt: self.attempt });
    }

    /// Whether this answers the call under way; if so, no call is under way any more.
    pub(super) fn answered(&mut self, attempt: u64) -> bool {
        let awaited = self.in_flight && attempt == self.attempt;
        self.in_flight &= !awaited;
        awaited
    }

    /// Records a successful registration; false if its lease has already expired.
    pub(super) fn registered(&mut self, now: Moment, started: Moment, ttl: Duration) -> bool {
        if now >= started.plus(self.timing.owned_for(ttl)) {
            return false;
        }
        self.held_since = Some(started);
        self.rival = None;
        self.ends = Moment::ZERO;
        self.renewed(started, ttl);
        true
    }

    pub(super) fn renewed(&mut self, started: Moment, ttl: Duration) {
        self.backoff.reset();
        self.ends = self.ends.max(started.plus(self.timing.owned_for(ttl)));
        // A backend that grants less than the requested TTL, as Consul does for claims, gets as many renewals within it.
        self.renewed_after = self.timing.renewed_after(ttl);
        self.due = Some(started.plus(self.renewed_after));
    }

    /// The timeout of a renewal: until the next one is due.
    pub(super) const fn renewal_takes(&self) -> Duration {
        self.renewed_after
    }

    /// Fails if a lease of this length is too short.
    pub(super) fn check(&self, granted: Duration) -> Result<(), PolicyError> {
        self.timing.check_lease(granted)
    }

    /// Retries after a pause that doubles up to a second. The pause is at most half of the remaining lease, so that a backend that
    /// recovers before the end is asked before the end.
    pub(super) fn fail(&mut self, now: Moment) {
        let pause = self.backoff.fail();
        // After the deadline, with `keep`, no lease is left to save.
        let left = self.deadline().filter(|deadline| now < *deadline).map(|deadline| deadline.since(now) / 2);
        let most = left.map_or(RETRY_LONGEST, |left| left.clamp(RETRY_FIRST, RETRY_LONGEST));
        self.ask_again_after(pause.min(most), now);
    }

    /// Retries after a TTL, but not sooner than the longest usual pause and not later than 30 s.
    pub(super) fn ask_again_slowly(&mut self, now: Moment) {
        self.backoff.reset();
        self.ask_again_after(self.timing.ttl.clamp(RETRY_LONGEST, REFUSED_LONGEST), now);
    }

    /// Shortens the pause by up to half so that a fleet does not retry in step. Incarnation and attempt determine the part reproducibly.
    fn ask_again_after(&mut self, pause: Duration, now: Moment) {
        let draw = slot_of(hash_bytes(&[self.incarnation.get().to_le_bytes(), self.attempt.to_le_bytes()].concat()), 512);
        self.due = Some(now.plus(pause).minus(pause * draw / 1_024));
    }

    pub(super) fn ask_again_soon(&mut self, now: Moment) {
        self.backoff.reset();
        self.fail(now);
    }

    /// The refusal, if an early retry of this failed call is pointless.
    pub(super) fn refusal(&mut self, me: &InstanceId, failure: OpFailure) -> Option<MemberRefusal> {
        match failure {
            OpFailure::Retryable => None,
            OpFailure::Permanent { message } => Some(MemberRefusal::Backend { message }),
            OpFailure::InUse { address, stamp } => {
                self.rival_seen(stamp).then(|| MemberRefusal::InUse { instance_id: me.clone(), address })
            }
        }
    }

    /// Whether the other incarnation's record has been renewed since this member first found it.
    fn rival_seen(&mut self, stamp: u64) -> bool {
        self.rival.replace(self.rival.unwrap_or(stamp)).is_some_and(|first| first != stamp)
    }

    pub(super) fn drop_record(&mut self) {
        (self.held_since, self.in_flight, self.due, self.rival) = (None, false, None, None);
        self.backoff.reset();
    }

    /// Whether a call has failed since the last success, or is unanswered.
    pub(super) const fn is_failing(&self) -> bool {
        self.in_flight || self.backoff.failures() > 0
    }

    pub(super) const fn is_in_flight(&self) -> bool {
        self.in_flight
    }

    pub(super) fn is_due(&self, now: Moment) -> bool {
        !self.in_flight && self.due.is_some_and(|due| now >= due)
    }

    pub(super) fn wake_at(&self) -> Option<Moment> {
        self.due.filter(|_| !self.in_flight)
    }
}
