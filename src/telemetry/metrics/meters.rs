//! The metrics of one service's driver. The exporter is looked up for each value, so that one installed later receives them too. They are
//! updated when the group changes or a call is answered, never when ownership is queried.

use std::sync::Arc;
use std::time::Duration;

use ::metrics::{Key, Label, Level, Metadata, SharedString, with_recorder};
use shardwise_core::{MemberState, Moment, Ownership, OwnershipMode, Policy, Rebalance, ServiceState, SlotSet, View};
use shardwise_discovery::{Error, ErrorKind};
use tracing::{Span, field};

use super::{
    DEADLINE_MARGIN, DISCOVERY_ERRORS, DRAIN_GUARD_AGE, FENCES_REFUSED, HANDOVER, HEALTH_SPARED, MEMBERS, Metric, OVERLAPS, REBALANCES,
    REBALANCING_FROZEN, RENEWAL, SERVICE_STATE, SLOTS_GAINED, SLOTS_LOST, SLOTS_OWNED, SLOTS_WANTED, VIEW_AGE, VIEW_FINGERPRINT,
    VIEW_REVISION, WORKER_SUSPECTED, WORKER_WORKS,
};

static METADATA: Metadata<'static> = Metadata::new("shardwise", Level::INFO, Some(module_path!()));
/// Ages are updated no more often than this.
const POLL_EVERY: Duration = Duration::from_millis(100);
/// A double represents this many hexadecimal digits of a fingerprint exactly.
const FINGERPRINT_DIGITS: usize = 12;

pub(crate) struct Meters {
    policy: SharedString,
    exclusive: bool,
    sampled: Option<Moment>,
    proven: Option<Moment>,
    refused: u64,
    gap: Option<Gap>,
}

/// Slots that this worker should have and does not hold yet.
struct Gap {
    since: Moment,
    /// A member has vanished without leaving.
    emergency: bool,
    /// Some of the slots have arrived.
    gained: bool,
    /// The span of the handover, once slots are missing.
    span: Span,
}

impl Meters {
    pub(crate) fn new(policy: &Policy) -> Self {
        let exclusive = policy.ownership == OwnershipMode::Exclusive;
        Self { policy: policy.name.as_str().to_owned().into(), exclusive, sampled: None, proven: None, refused: 0, gap: None }
    }

    /// Publishes counters at 0, so that an alert can see their first increase.
    pub(crate) fn begin(&self) {
        for metric in [&FENCES_REFUSED, &OVERLAPS, &WORKER_SUSPECTED] {
            count(metric, self.labels(), 0);
        }
    }

    pub(crate) fn failed(&self, error: &Error) {
        count(&DISCOVERY_ERRORS, self.with("kind", kind_of(error)), 1);
    }

    /// The worker is watched, and works or not.
    pub(crate) fn worker(&self, works: bool) {
        gauge(&WORKER_WORKS, self.labels(), f64::from(u8::from(works)));
    }

    /// Whether the worker's failure is without effect, by a new view.
    pub(crate) fn spared(&self, is_spared: bool) {
        gauge(&HEALTH_SPARED, self.labels(), f64::from(u8::from(is_spared)));
    }

    /// A renewal begun at `started` was answered now, while this deadline was in force.
    pub(crate) fn renewed(&self, now: Moment, started: Moment, deadline: Option<Moment>) {
        time(&RENEWAL, self.labels(), now.since(started));
        if let Some(deadline) = deadline {
            gauge(&DEADLINE_MARGIN, self.labels(), deadline.since(now).as_secs_f64());
        }
    }

    /// Work was still running in slots that were given away.
    pub(crate) fn overlapped(&self, running: usize) {
        count(&OVERLAPS, self.labels(), running as u64);
    }

    pub(crate) fn rebalanced(&self, rebalance: &Rebalance) {
        let cause = rebalance.cause.as_str();
        count(&REBALANCES, self.with("cause", cause), 1);
        for (metric, slots) in [(&SLOTS_GAINED, &rebalance.gained), (&SLOTS_LOST, &rebalance.lost)] {
            count(metric, self.with("cause", cause), u64::from(slots.len()));
        }
    }

    /// The new snapshot, and what the placement gives.
    pub(crate) fn published(&mut self, now: Moment, before: &Ownership, after: &Ownership, wanted: Option<&SlotSet>) {
        if before.state() != after.state() {
            gauge(&SERVICE_STATE, self.with("state", before.state().as_str()), 0.0);
        }
        gauge(&SERVICE_STATE, self.with("state", after.state().as_str()), 1.0);
        // A worker that is cut off or has left does not know the state of the group.
        let knows = matches!(after.state(), ServiceState::Active | ServiceState::Stale | ServiceState::Draining | ServiceState::Refused);
        gauge(&REBALANCING_FROZEN, self.labels(), f64::from(u8::from(knows && after.rebalancing_frozen())));
        let owned = after.slots_owned();
        if let Some(owned) = owned {
            gauge(&SLOTS_OWNED, self.labels(), f64::from(owned));
        }
        if let Some(wanted) = wanted.map(SlotSet::len).or(owned) {
            gauge(&SLOTS_WANTED, self.labels(), f64::from(wanted));
        }
        let changed = !Arc::ptr_eq(before.view(), after.view());
        if changed {
            self.viewed(after.view());
        }
        if let Some(wanted) = wanted.filter(|_| self.exclusive) {
            let vanished = changed && has_vanished(before.view(), after.view());
            if after.state() == ServiceState::Active {
                self.follow_gap(now, wanted, before.slots(), after.slots(), vanished);
            } else {
                // A fenced or leaving worker waits for nothing, and has not completed a handover.
                self.gap = None;
            }
        }
    }

    fn viewed(&self, view: &View) {
        for state in [MemberState::Active, MemberState::Draining, MemberState::Pausing, MemberState::Away] {
            let members = view.members().iter().filter(|member| member.state == state).count();
            gauge(&MEMBERS, self.with("state", state.as_str()), members as f64);
        }
        gauge(&VIEW_REVISION, self.labels(), view.revision() as f64);
        let digits = view.fingerprint().to_string();
        let number = digits.get(..FINGERPRINT_DIGITS).and_then(|digits| u64::from_str_radix(digits, 16).ok());
        gauge(&VIEW_FINGERPRINT, self.labels(), number.unwrap_or_default() as f64);
    }

    fn follow_gap(&mut self, now: Moment, wanted: &SlotSet, before: &SlotSet, after: &SlotSet, vanished: bool) {
        let mut gap = self.gap.take().unwrap_or(Gap { since: now, emergency: false, gained: false, span: Span::none() });
        gap.emergency |= vanished;
        gap.gained |= !after.minus(before).is_empty();
        let missing = wanted.minus(after);
        if !missing.is_empty() {
            if gap.span.is_none() {
                gap.span = tracing::info_span!(
                    "handover",
                    "shardwise.policy" = &*self.policy,
                    "shardwise.direction" = "gain",
                    "shardwise.slots" = missing.len(),
                    "shardwise.kind" = field::Empty
                );
            }
            self.gap = Some(gap);
        } else if gap.gained {
            let kind = if gap.emergency { "emergency" } else { "graceful" };
            gap.span.record("shardwise.kind", kind);
            time(&HANDOVER, self.with("kind", kind), now.since(gap.since));
        }
    }

    /// The span of the handover that this worker waits for.
    pub(crate) fn handover(&self) -> Span {
        self.gap.as_ref().map_or_else(Span::none, |gap| gap.span.clone())
    }

    /// Updates what changes with time: the age of the view and of the oldest draining work, and the number of refused fences.
    pub(crate) fn sample(&mut self, now: Moment, proven: Option<Moment>, refused: u64, oldest: impl FnOnce() -> Option<Moment>) {
        if self.sampled.is_some_and(|sampled| now.since(sampled) < POLL_EVERY) {
            return;
        }
        self.sampled = Some(now);
        // A fenced worker has no proof, and the last one keeps ageing.
        self.proven = proven.or(self.proven);
        if let Some(proven) = self.proven {
            gauge(&VIEW_AGE, self.labels(), now.since(proven).as_secs_f64());
        }
        if self.exclusive {
            gauge(&DRAIN_GUARD_AGE, self.labels(), oldest().map_or(Duration::ZERO, |since| now.since(since)).as_secs_f64());
        }
        if refused > self.refused {
            count(&FENCES_REFUSED, self.labels(), refused - self.refused);
            self.refused = refused;
        }
    }

    fn labels(&self) -> Vec<Label> {
        vec![Label::new("policy", self.policy.clone())]
    }

    fn with(&self, name: &'static str, value: &'static str) -> Vec<Label> {
        vec![Label::new("policy", self.policy.clone()), Label::from_static_parts(name, value)]
    }
}

/// A caller has reported that this worker does not answer.
pub(crate) fn suspected(policy: &Policy) {
    count(&WORKER_SUSPECTED, vec![Label::new("policy", policy.name.as_str().to_owned())], 1);
}

/// The kind of a backend's failure, in metrics and traces.
pub(crate) const fn kind_of(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::TimedOut => "timed_out",
        ErrorKind::Lost => "lost",
        ErrorKind::InUse { .. } => "in_use",
        ErrorKind::OtherStore => "other_store",
        ErrorKind::Denied => "denied",
        ErrorKind::Misconfigured => "misconfigured",
        ErrorKind::TooLarge => "too_large",
        _ => "other",
    }
}

/// Whether an active member is gone that was not seen leaving.
fn has_vanished(before: &View, after: &View) -> bool {
    let mut active = before.members().iter().filter(|member| member.state == MemberState::Active);
    active.any(|member| after.member(&member.instance_id).is_none())
}

pub(super) fn count(metric: &Metric, labels: Vec<Label>, more: u64) {
    with_recorder(|recorder| recorder.register_counter(&Key::from_parts(metric.name, labels), &METADATA).increment(more));
}

pub(super) fn gauge(metric: &Metric, labels: Vec<Label>, value: f64) {
    gauge_at(&Key::from_parts(metric.name, labels), value);
}

pub(super) fn gauge_at(key: &Key, value: f64) {
    with_recorder(|recorder| recorder.register_gauge(key, &METADATA).set(value));
}

fn time(metric: &Metric, labels: Vec<Label>, took: Duration) {
    with_recorder(|recorder| recorder.register_histogram(&Key::from_parts(metric.name, labels), &METADATA).record(took.as_secs_f64()));
}
