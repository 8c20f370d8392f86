//! A rolling upgrade under `version_rule = "newest"`: while the group's versions differ, this member's share follows from the view and
//! from what all members hold, not from the placement.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::holdings::Holdings;
use crate::{ClaimName, InstanceId, Placer, Resource, SlotSet, Succession, VersionRule, View};

/// The assignments in one view.
#[derive(Debug)]
pub(super) struct RollingUpgrade {
    view: Arc<View>,
    placer: Arc<Placer>,
    me: InstanceId,
    names: BTreeSet<ClaimName>,
    /// `None` until the holders are known: asking earlier could only take from others.
    succession: Option<Succession>,
}

impl RollingUpgrade {
    /// `None` where the placement decides: the rule is not in force, or all versions are equal. What missing members held and which
    /// version they had is unknown, so while members are missing, each member keeps what it holds.
    pub(super) fn of(
        rule: VersionRule,
        view: &Arc<View>,
        placer: &Arc<Placer>,
        me: &InstanceId,
        names: &BTreeSet<ClaimName>,
    ) -> Option<Self> {
        let counts = rule == VersionRule::Newest && (view.versions_differ() || !view.missing().is_empty());
        let (view, placer, me, names) = (Arc::clone(view), Arc::clone(placer), me.clone(), names.clone());
        counts.then_some(Self { view, placer, me, names, succession: None })
    }

    /// Computes the assignments from the present holders, if they are known.
    pub(super) fn place(&mut self, holdings: &Holdings) {
        let place = || self.placer.succession(&self.view, &self.names, holdings.holders());
        self.succession = holdings.are_claims_known().then(place);
    }

    /// Whether all claims went as assigned; `moves` are the resources whose holder may have changed. If not, recompute.
    pub(super) fn follows(&mut self, moves: &BTreeSet<Resource>, holdings: &Holdings) -> bool {
        let Some(succession) = &mut self.succession else { return !holdings.are_claims_known() };
        // `count` visits each of them, so that all are recorded.
        moves.iter().filter(|resource| !succession.follows(resource, holdings.holder_of(resource))).count() == 0
    }

    pub(super) fn slots(&self) -> SlotSet {
        self.succession
            .as_ref()
            .map_or_else(|| SlotSet::empty(self.placer.params().ring_slots()), |succession| succession.slots_of(&self.me))
    }

    pub(super) fn names(&self) -> BTreeSet<ClaimName> {
        self.succession.iter().flat_map(|succession| succession.names_of(&self.me)).cloned().collect()
    }
}
