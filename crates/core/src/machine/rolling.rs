//! While the group's versions differ and the policy says that they count: what this member should hold follows from the view and from what
//! everybody holds, and not from the placement.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::holdings::Holdings;
use crate::{ClaimName, InstanceId, Placer, Resource, SlotSet, Succession, VersionRule, View};

/// Who should hold what in one view.
#[derive(Debug)]
pub(super) struct RollingUpgrade {
    view: Arc<View>,
    placer: Arc<Placer>,
    me: InstanceId,
    names: BTreeSet<ClaimName>,
    /// `None` until it is known who holds what: whoever asked before could only take from others.
    succession: Option<Succession>,
}

impl RollingUpgrade {
    /// `None` where the placement decides: the rule is not in force, or all are of one version. What missing members had, and of which
    /// version they are, nobody can tell, so that while some are missing everybody keeps what it has.
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

    /// Finds out who should hold what from who does, if that is known.
    pub(super) fn place(&mut self, holdings: &Holdings) {
        let place = || self.placer.succession(&self.view, &self.names, holdings.holders());
        self.succession = holdings.is_told().then(place);
    }

    /// Whether claims went where they should: `moves` is what may have another holder by now. If not, it is to be placed anew.
    pub(super) fn follows(&mut self, moves: &BTreeSet<Resource>, holdings: &Holdings) -> bool {
        let Some(succession) = &mut self.succession else { return !holdings.is_told() };
        // Each of them is taken note of.
        moves.iter().filter(|resource| !succession.follows(resource, holdings.holder_of(resource))).count() == 0
    }

    /// The slots that this member should hold.
    pub(super) fn slots(&self) -> SlotSet {
        self.succession.as_ref().map_or_else(|| SlotSet::empty(self.placer.params().circle()), |succession| succession.slots_of(&self.me))
    }

    /// The names that this member should hold.
    pub(super) fn names(&self) -> BTreeSet<ClaimName> {
        self.succession.iter().flat_map(|succession| succession.names_of(&self.me)).cloned().collect()
    }
}
