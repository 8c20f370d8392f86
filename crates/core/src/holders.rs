//! The holder of each slot and name, and the member that should hold it: what operators see of a group with exclusive ownership.

use std::collections::BTreeMap;

use crate::{Claim, Holder, InstanceId, MemberState, Moment, Policy, Resource, SlotOwners, VersionRule, View};

/// A claim, and since when its holder has had it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldClaim {
    /// The holder, with the epoch.
    pub claim: Claim,
    /// When the reader saw the resource go to this holder; `None` if it was held before the reader looked. A higher epoch of the same
    /// holder does not change it.
    pub since: Option<Moment>,
}

/// The claims of a group, as one reader follows them. A resource that is missing is free.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holders {
    held: BTreeMap<Resource, HeldClaim>,
    is_known: bool,
    changes: u64,
}

impl Holders {
    /// Whether the claims have been read at all.
    pub const fn is_known(&self) -> bool {
        self.is_known
    }

    /// How often claims have changed, as far as the reader has seen.
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// The holder of a resource.
    pub fn get(&self, resource: &Resource) -> Option<&HeldClaim> {
        self.held.get(resource)
    }

    /// Every held resource.
    pub fn iter(&self) -> impl Iterator<Item = (&Resource, &HeldClaim)> {
        self.held.iter()
    }

    /// The claims have been read as a whole: resources that are not among them are free.
    pub fn on_all(&mut self, now: Moment, claims: impl IntoIterator<Item = (Resource, Claim)>) {
        let before = std::mem::take(&mut self.held);
        let since = |resource: &Resource, claim: &Claim| match before.get(resource) {
            Some(held) if held.claim.holder == claim.holder => held.since,
            _ => self.is_known.then_some(now),
        };
        self.held =
            claims.into_iter().map(|(resource, claim)| (resource.clone(), HeldClaim { since: since(&resource, &claim), claim })).collect();
        self.is_known = true;
        self.changes += 1;
    }

    /// Some claims have changed.
    pub fn on_changes(&mut self, now: Moment, changes: impl IntoIterator<Item = (Resource, Option<Claim>)>) {
        for (resource, claim) in changes {
            self.changes += 1;
            let Some(claim) = claim else {
                self.held.remove(&resource);
                continue;
            };
            let same = self.held.get(&resource).filter(|held| held.claim.holder == claim.holder);
            let since = same.map_or(Some(now), |held| held.since);
            self.held.insert(resource, HeldClaim { claim, since });
        }
    }
}

/// One slot or name: who holds it, and where that differs, who should.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holding {
    /// The slot or name.
    pub resource: Resource,
    /// The claim; `None` if the resource is free.
    pub held: Option<HeldClaim>,
    /// Whether and why the holder is not the member that the placement names. Always `None` for a name: its placement depends on all names
    /// that members want, and only those that are held can be seen.
    pub mismatch: Option<Mismatch>,
    /// The member that the placement names, if there is a mismatch and a member is named.
    pub wanted: Option<InstanceId>,
}

impl Holding {
    /// Every slot of the ring in order, then every held name. `owners` is the placement of `view`; `None` if it names no member.
    pub fn all(view: &View, policy: &Policy, owners: Option<&SlotOwners>, holders: &Holders) -> Vec<Self> {
        let slots = owners.map_or(policy.placement.ring_slots(), |owners| owners.params().slots);
        let slots = (0..slots).map(|slot| Self::of_slot(slot, view, policy.version_rule, owners, holders));
        let names = holders.iter().filter(|(resource, _)| matches!(resource, Resource::Name(_)));
        let names = names.map(|(name, held)| Self { resource: name.clone(), held: Some(held.clone()), mismatch: None, wanted: None });
        slots.chain(names).collect()
    }

    /// One slot; the arguments are those of [`Holding::all`].
    pub fn of_slot(slot: u32, view: &View, rule: VersionRule, owners: Option<&SlotOwners>, holders: &Holders) -> Self {
        let resource = Resource::Slot(slot);
        let held = holders.get(&resource).cloned();
        let wanted = owners.and_then(|owners| owners.owner_of_slot(slot));
        let mismatch = Mismatch::of(view, rule, held.as_ref().map(|held| &held.claim.holder), wanted);
        Self { resource, held, mismatch, wanted: wanted.filter(|_| mismatch.is_some()).cloned() }
    }
}

/// Why the holder of a slot is not the member that the placement names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Mismatch {
    /// The named member has vanished, and because of `max_loss` its share waits for it.
    Loss,
    /// The named member is away, and its share waits for it (`rejoin_grace`).
    RejoinGrace,
    /// The group's versions differ, so holders keep what they have (`version_rule = "newest"`).
    VersionRule,
    /// The holder leaves or was drained, and finishes its work first.
    Drain,
    /// The holder is no longer a member: its claim ends with its lease.
    Expiring,
    /// The holder finishes its work, and the named member claims the slot then.
    Handover,
    /// No member holds it yet.
    Unclaimed,
    /// The placement names no member, because fewer than `min_members` are active.
    MinMembers,
}

impl Mismatch {
    /// Compares the holder of a slot with the member that the placement of `view` names; `None` if they agree.
    pub fn of(view: &View, rule: VersionRule, holder: Option<&Holder>, wanted: Option<&InstanceId>) -> Option<Self> {
        let in_view = |holder: &Holder| view.member(&holder.instance_id).filter(|member| member.incarnation == holder.incarnation);
        let Some(wanted) = wanted else {
            return holder.map(|holder| if in_view(holder).is_some() { Self::MinMembers } else { Self::Expiring });
        };
        let member = holder.and_then(in_view);
        if member.is_some_and(|member| member.instance_id == *wanted) {
            return None;
        }
        Some(match view.member(wanted).map(|wanted| wanted.state) {
            _ if holder.is_some() && member.is_none() => Self::Expiring,
            _ if member.is_some_and(|member| member.state == MemberState::Draining) => Self::Drain,
            None => Self::Loss,
            Some(state) if state.rests() => Self::RejoinGrace,
            Some(_) if holder.is_some() && rule == VersionRule::Newest && view.versions_differ() => Self::VersionRule,
            Some(_) if holder.is_some() => Self::Handover,
            Some(_) => Self::Unclaimed,
        })
    }

    /// The name in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::RejoinGrace => "grace",
            Self::VersionRule => "version_rule",
            Self::Drain => "drain",
            Self::Expiring => "expiring",
            Self::Handover => "handover",
            Self::Unclaimed => "unclaimed",
            Self::MinMembers => "min_members",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Epoch, Incarnation, Loss, Member, Missing, Weight};

    fn holder(id: &str) -> Holder {
        Holder { instance_id: InstanceId::new(id).unwrap(), incarnation: Incarnation::new(0) }
    }

    fn claim(id: &str, epoch: u64) -> Claim {
        Claim { holder: holder(id), epoch: Epoch::new(epoch).unwrap() }
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn since_when_is_known_only_for_what_was_seen() {
        let (one, two) = (Resource::Slot(1), Resource::Slot(2));
        let mut holders = Holders::default();
        assert!(!holders.is_known());
        holders.on_all(at(5), [(one.clone(), claim("a", 1))]);
        let since = |holders: &Holders, of: &Resource| holders.get(of).map(|held| held.since);
        assert_eq!((since(&holders, &one), since(&holders, &two)), (Some(None), None));
        holders.on_changes(at(6), [(two.clone(), Some(claim("b", 2))), (one.clone(), Some(claim("a", 3)))]);
        assert_eq!((since(&holders, &one), since(&holders, &two)), (Some(None), Some(Some(at(6)))), "a higher epoch of the same holder");
        assert_eq!(holders.get(&one).unwrap().claim.epoch.get(), 3);
        holders.on_changes(at(7), [(one.clone(), None)]);
        holders.on_changes(at(8), [(one.clone(), Some(claim("a", 4)))]);
        assert_eq!(since(&holders, &one), Some(Some(at(8))));
        holders.on_all(at(9), [(one.clone(), claim("a", 4)), (two.clone(), claim("c", 5))]);
        assert_eq!((since(&holders, &one), since(&holders, &two)), (Some(Some(at(8))), Some(Some(at(9)))));
        holders.on_all(at(10), []);
        assert_eq!(holders.iter().count(), 0);
    }

    #[test]
    fn each_difference_has_its_reason() {
        let member = |id: &str, state| Member { state, ..Member::named(InstanceId::new(id).unwrap()) };
        let missing = Loss::Missing(vec![Missing { instance_id: InstanceId::new("gone").unwrap(), weight: Weight::ONE }]);
        let active = Member { loss: Some(missing), ..member("a", MemberState::Active) };
        let (draining, away) = (member("d", MemberState::Draining), member("w", MemberState::Away));
        let old = Member { version: Some("1".into()), ..member("b", MemberState::Active) };
        let view = View::new(1, vec![active, old, draining, away]);
        let of = |rule, held: Option<&str>, wanted: Option<&str>| {
            Mismatch::of(&view, rule, held.map(holder).as_ref(), wanted.map(|id| InstanceId::new(id).unwrap()).as_ref())
        };
        for rule in [VersionRule::None, VersionRule::Newest] {
            assert_eq!((of(rule, Some("a"), Some("a")), of(rule, None, None)), (None, None));
            assert_eq!(of(rule, Some("d"), Some("a")), Some(Mismatch::Drain));
            assert_eq!(of(rule, None, Some("w")), Some(Mismatch::RejoinGrace));
            assert_eq!(of(rule, None, Some("gone")), Some(Mismatch::Loss));
            assert_eq!(of(rule, Some("gone"), Some("a")), Some(Mismatch::Expiring));
            assert_eq!(of(rule, Some("gone"), Some("gone")), Some(Mismatch::Expiring), "it holds it until its lease ends");
            assert_eq!((of(rule, Some("a"), None), of(rule, Some("x"), None)), (Some(Mismatch::MinMembers), Some(Mismatch::Expiring)));
        }
        assert_eq!(of(VersionRule::None, Some("a"), Some("b")), Some(Mismatch::Handover));
        assert_eq!(of(VersionRule::None, None, Some("b")), Some(Mismatch::Unclaimed));
        assert_eq!(of(VersionRule::Newest, Some("a"), Some("b")), Some(Mismatch::VersionRule));
        let former = Holder { incarnation: Incarnation::new(7), ..holder("a") };
        let a = InstanceId::new("a").unwrap();
        assert_eq!(Mismatch::of(&view, VersionRule::None, Some(&former), Some(&a)), Some(Mismatch::Expiring), "a former life of it");
    }
}
