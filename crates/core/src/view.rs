//! The group's healthy members at one revision of the backend.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, OnceLock};

use crate::side_by_side::side_by_side;
use crate::{Fingerprint, Incarnation, InstanceId, Loss, Member, MemberState, Serves, Version, Weight, hash_bytes};

/// The most members of a view; a backend that finds more reports an error instead.
pub const MEMBERS_MAX: u32 = 16_384;

/// A record left out because an older one with the same id is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duplicate {
    /// The id that both use.
    pub instance_id: InstanceId,
    /// The younger of the two.
    pub incarnation: Incarnation,
}

/// The change of a member from one view to a later one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberChange {
    /// Its id.
    pub instance_id: InstanceId,
    /// Its state before and now, if it changed.
    pub state: Option<(MemberState, MemberState)>,
    /// Its weight before and now, if it changed.
    pub weight: Option<(Weight, Weight)>,
}

/// The group's healthy members at one revision, sorted by the bytes of their ids, each id once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct View {
    revision: u64,
    members: Vec<Member>,
    duplicates: Vec<Duplicate>,
    foreign: Vec<InstanceId>,
    /// What the group serves, and its fingerprint, cached because they are read often. Members never change, and marks do not affect these.
    serves: Option<Serves>,
    group: Option<Fingerprint>,
    fingerprint: KnownFingerprint,
}

/// [`View::fingerprint`], once it was asked for: all members of a process that see one view ask for it. It follows from the rest of the
/// view, so it counts neither for a comparison nor in a copy, which may be changed.
#[derive(Debug, Default)]
struct KnownFingerprint(OnceLock<Fingerprint>);

impl Clone for KnownFingerprint {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for KnownFingerprint {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for KnownFingerprint {}

impl View {
    /// Sorts the members. Of two records with one id the one that joined first stays and the other becomes a duplicate; a record of an
    /// absent member gives way to any other record with its id.
    pub fn new(revision: u64, mut members: Vec<Member>) -> Self {
        let is_away = |member: &Member| member.state == MemberState::Away;
        let order = |m: &Member| (is_away(m), m.joined, m.incarnation);
        members.sort_by(|a, b| a.instance_id.cmp(&b.instance_id).then_with(|| order(a).cmp(&order(b))));
        let mut duplicates = Vec::new();
        members.dedup_by(|later, kept| {
            let same = later.instance_id == kept.instance_id;
            if same && later.incarnation != kept.incarnation && !is_away(later) {
                duplicates.push(Duplicate { instance_id: later.instance_id.clone(), incarnation: later.incarnation });
            }
            same
        });
        let serves = serves(&members).cloned();
        let group = agreed(members.iter().filter(|member| belongs(member, serves.as_ref())));
        Self { revision, members, duplicates, foreign: Vec::new(), serves, group, fingerprint: KnownFingerprint::default() }
    }

    /// Adds healthy instances without a record of ours: workers of another fleet under the group's name. Each is kept once; one with a
    /// member's id is left out, because other fleets cannot distinguish it from that member.
    #[must_use]
    pub fn with_foreign(mut self, mut foreign: Vec<InstanceId>) -> Self {
        foreign.retain(|id| self.member(id).is_none());
        foreign.sort_unstable();
        foreign.dedup();
        (self.foreign, self.fingerprint) = (foreign, KnownFingerprint::default());
        self
    }

    /// The backend's number for this state of the group. It rises with every change and never falls, even after the backend was restored
    /// or replaced. Two views share a revision only where expired members were left out before their records were deleted.
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// The members, sorted by the bytes of their ids.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Records left out because an older one with the same id is alive.
    pub fn duplicates(&self) -> &[Duplicate] {
        &self.duplicates
    }

    /// Healthy instances under the group's name without a record of ours, sorted by the bytes of their ids, each once, none of them a
    /// member. Only backends that other fleets use too, such as Consul, have any. The placement `ring` ignores them.
    pub fn foreign(&self) -> &[InstanceId] {
        &self.foreign
    }

    /// The member with that id.
    pub fn member(&self, instance_id: &InstanceId) -> Option<&Member> {
        self.members.binary_search_by(|m| m.instance_id.cmp(instance_id)).ok().map(|at| &self.members[at])
    }

    /// The number of active members: neither draining nor away, and serving what the group serves.
    pub fn active(&self) -> usize {
        self.members.iter().filter(|m| m.state == MemberState::Active && self.belongs(m)).count()
    }

    /// Whether every member that is here is drained or leaving, so that none takes a share. Members that are away or serve something else
    /// than the group do not count. False without members.
    pub fn all_draining(&self) -> bool {
        let mut here = self.members.iter().filter(|m| m.state != MemberState::Away && self.belongs(m)).peekable();
        here.peek().is_some() && here.all(|m| m.state == MemberState::Draining)
    }

    /// What the group serves: the value of the member that joined first, among the records that state one and whose member is not away;
    /// if all are away, among all that state one. `None` if no record states one.
    pub const fn serves(&self) -> Option<&Serves> {
        self.serves.as_ref()
    }

    /// Whether `member` serves what the group serves. A record of an older version, without that field, counts as serving the same.
    pub fn belongs(&self, member: &Member) -> bool {
        belongs(member, self.serves())
    }

    /// The fingerprint that the group serves: the last one that all members list; otherwise the one that most list, the smallest of
    /// several. `None` if no member lists any. Draining members count: the group serves only what they can serve until they are gone.
    /// Members that are away count as long as a present member lists the result; otherwise only the present members count.
    ///
    /// The last fingerprint is the one furthest back in any member's list; of several, the smallest. So members that list the same two in
    /// different orders, during opposite changes, still agree.
    pub const fn group_fingerprint(&self) -> Option<Fingerprint> {
        self.group
    }

    /// A hash of everything in the view that affects placement; workers with equal values see the same group.
    pub fn fingerprint(&self) -> Fingerprint {
        *self.fingerprint.0.get_or_init(|| self.compute_fingerprint())
    }

    fn compute_fingerprint(&self) -> Fingerprint {
        let mut canonical = String::new();
        for member in &self.members {
            let id = hash_bytes(member.instance_id.as_str().as_bytes());
            let draining = if member.state.rests() {
                "away"
            } else if member.state == MemberState::Draining {
                "true"
            } else {
                "false"
            };
            let fingerprints = member.fingerprints.iter().map(ToString::to_string).collect::<String>();
            let loss = member.loss.as_ref().map(|loss| format!(" {loss:?}")).unwrap_or_default();
            let version = member.version.as_ref().map(|version| format!(" version {:016x}", hash_bytes(version.as_bytes())));
            let other = if self.belongs(member) { "" } else { " other" };
            let line = format!("{id:016x} {} {} {draining} ", member.incarnation, member.weight.get());
            canonical.extend([line, fingerprints, loss, version.unwrap_or_default(), other.into(), ";".into()]);
        }
        canonical.extend(self.foreign.iter().map(|id| format!("foreign {:016x};", hash_bytes(id.as_str().as_bytes()))));
        Fingerprint::of(&canonical)
    }

    /// The members that the placement counts: those that list `group` and serve what the group serves; of these, all that are not
    /// draining, or all if every one is draining.
    pub fn eligible(&self, group: Option<Fingerprint>) -> impl Iterator<Item = &Member> {
        let serves = move |m: &&Member| group.is_none_or(|g| m.fingerprints.contains(&g)) && self.belongs(m);
        let any_share = self.members.iter().filter(serves).any(|m| m.state.has_share());
        self.members.iter().filter(serves).filter(move |m| !any_share || m.state.has_share())
    }

    /// Whether the members that the placement counts have different versions ([`Version`]).
    pub fn versions_differ(&self) -> bool {
        let mut versions = self.eligible(self.group).map(|member| Version::of(member.version.as_deref()));
        let first = versions.next();
        versions.any(|version| Some(version) != first)
    }

    /// Vanished members that keep their share: those that the members' records list as missing and that are not in the view, in the order
    /// of the ids' bytes. Empty once an operator has confirmed the loss.
    pub fn missing(&self) -> Vec<(&InstanceId, Weight)> {
        let marks = || self.members.iter().filter_map(|member| member.loss.as_ref());
        if marks().any(|loss| *loss == Loss::Confirmed) {
            return Vec::new();
        }
        let listed = marks().flat_map(|loss| if let Loss::Missing(missing) = loss { missing.as_slice() } else { &[] });
        let mut missing: Vec<_> = listed.filter(|m| self.member(&m.instance_id).is_none()).map(|m| (&m.instance_id, m.weight)).collect();
        missing.sort_unstable();
        missing.dedup_by(|b, a| a.0 == b.0);
        missing
    }

    /// This view with another mark in that member's record; the same view if the record has it already.
    #[must_use]
    pub fn marked(self: &Arc<Self>, instance_id: &InstanceId, loss: Option<&Loss>) -> Arc<Self> {
        match self.members.binary_search_by(|m| m.instance_id.cmp(instance_id)) {
            Ok(at) if self.members[at].loss.as_ref() != loss => {
                let mut marked = (**self).clone();
                marked.members[at].loss = loss.cloned();
                Arc::new(marked)
            }
            _ => Arc::clone(self),
        }
    }

    /// The members with each id, of this view and of `before`.
    fn beside<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = (Option<&'a Member>, Option<&'a Member>)> {
        side_by_side(&self.members, &before.members, |member| &member.instance_id)
    }

    /// The members of both views, by id and incarnation, as they are now and as they were.
    fn stayed_since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = (&'a Member, &'a Member)> {
        self.beside(before).filter_map(|(now, then)| now.zip(then)).filter(|(now, then)| now.incarnation == then.incarnation)
    }

    /// Members of `before` that are not in this view, by id and incarnation.
    pub fn gone_since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = &'a Member> {
        self.beside(before).filter_map(|(now, then)| then.filter(|then| now.is_none_or(|now| now.incarnation != then.incarnation)))
    }

    /// Members active in `before` and not in this view, by id and incarnation: gone without having shown that they leave. Members that
    /// serve something else than the group do not count, because they delete their records themselves.
    pub fn vanished_since(&self, before: &Self) -> Vec<InstanceId> {
        let active = self.gone_since(before).filter(|m| m.state == MemberState::Active && before.belongs(m));
        active.map(|m| m.instance_id.clone()).collect()
    }

    /// Members whose state or weight differs from `before`.
    pub fn changed_since(&self, before: &Self) -> Vec<MemberChange> {
        let change = |(now, then): (&Member, &Member)| {
            let state = (then.state != now.state).then_some((then.state, now.state));
            let weight = (then.weight != now.weight).then_some((then.weight, now.weight));
            let is_other = state.is_some() || weight.is_some();
            is_other.then(|| MemberChange { instance_id: now.instance_id.clone(), state, weight })
        };
        self.stayed_since(before).filter_map(change).collect()
    }

    /// Members that have asked since `before` for what others hold in their place.
    pub fn reclaiming_since(&self, before: &Self) -> Vec<InstanceId> {
        let asking = self.stayed_since(before).filter(|(now, then)| then.reclaims != now.reclaims);
        asking.map(|(now, _)| now.instance_id.clone()).collect()
    }

    /// Members in this view and not in `before`, by id and incarnation.
    pub fn joined_since(&self, before: &Self) -> Vec<InstanceId> {
        before.gone_since(self).map(|m| m.instance_id.clone()).collect()
    }
}

/// The group's fingerprint, counting members that are away unless no present member could serve the result. A group that was stopped as a
/// whole and restarts with other settings need not wait for the records of its former members.
fn agreed<'a>(members: impl Iterator<Item = &'a Member>) -> Option<Fingerprint> {
    let mut members: Vec<_> = members.collect();
    let all = group_fingerprint(&members);
    members.retain(|member| member.state != MemberState::Away);
    let listed_here = all.is_none_or(|group| members.iter().any(|member| member.fingerprints.contains(&group)));
    if listed_here { all } else { group_fingerprint(&members).or(all) }
}

/// See [`View::serves`]. The member that joined first decides, so a newcomer never changes what the group serves.
fn serves(members: &[Member]) -> Option<&Serves> {
    let stating = members.iter().filter_map(|member| member.serves.as_ref().map(|serves| (member, serves)));
    stating.min_by_key(|(member, _)| (member.state == MemberState::Away, member.joined, member.incarnation)).map(|(_, serves)| serves)
}

fn belongs(member: &Member, group: Option<&Serves>) -> bool {
    let both = member.serves.as_ref().zip(group);
    both.is_none_or(|(serves, group)| serves.is_same_as(group))
}

/// See [`View::group_fingerprint`]. Takes time linear in the listed fingerprints, however many differ.
fn group_fingerprint(members: &[&Member]) -> Option<Fingerprint> {
    struct ListedMember {
        by: usize,
        last_by: usize,
        last_position: usize,
    }
    let mut tally: HashMap<Fingerprint, ListedMember> = HashMap::new();
    for (at, member) in members.iter().enumerate() {
        for (position, fingerprint) in member.fingerprints.iter().enumerate() {
            match tally.entry(*fingerprint) {
                // A repetition within one member's list does not count.
                Entry::Occupied(known) if known.get().last_by == at => {}
                Entry::Occupied(mut known) => {
                    let listed = known.get_mut();
                    *listed = ListedMember { by: listed.by + 1, last_by: at, last_position: position.max(listed.last_position) };
                }
                Entry::Vacant(new) => {
                    new.insert(ListedMember { by: 1, last_by: at, last_position: position });
                }
            }
        }
    }
    let all = tally.iter().filter(|(_, listed)| listed.by == members.len());
    let last_of_all = all.max_by_key(|(fingerprint, listed)| (listed.last_position, Reverse(**fingerprint)));
    let most = || tally.iter().max_by_key(|(fingerprint, listed)| (listed.by, Reverse(**fingerprint)));
    last_of_all.or_else(most).map(|(fingerprint, _)| *fingerprint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn member(id: &str, joined: u64) -> Member {
        Member { joined, incarnation: Incarnation::new(joined), ..Member::named(InstanceId::new(id).unwrap()) }
    }

    fn serving(id: &str, fingerprints: &[&str]) -> Member {
        Member { fingerprints: fingerprints.iter().map(|f| Fingerprint::of(f)).collect(), ..member(id, 0) }
    }

    #[test]
    fn members_are_sorted_and_the_older_of_two_stays() {
        let view = View::new(3, vec![member("b", 1), member("a", 9), member("a", 2)]);
        let ids: Vec<_> = view.members().iter().map(|m| (m.instance_id.as_str(), m.joined)).collect();
        assert_eq!(ids, [("a", 2), ("b", 1)]);
        assert_eq!(view.duplicates(), [Duplicate { instance_id: InstanceId::new("a").unwrap(), incarnation: Incarnation::new(9) }]);
    }

    #[test]
    fn foreign_instances_are_carried_and_counted_by_none_that_do_not_ask() {
        let ids = |ids: &[&str]| ids.iter().map(|id| InstanceId::new(*id).unwrap()).collect::<Vec<_>>();
        let plain = View::new(1, vec![member("b", 1)]);
        let view = plain.clone().with_foreign(ids(&["z", "a", "b", "z"]));
        assert_eq!(view.foreign(), ids(&["a", "z"]));
        assert_eq!((view.members(), view.active(), view.eligible(None).count()), (plain.members(), 1, 1));
        assert_ne!(view, plain, "who watches hears of them");
        assert_ne!(view.fingerprint(), plain.fingerprint());
        assert_ne!(view.fingerprint(), plain.clone().with_foreign(ids(&["a"])).fingerprint());
        assert_ne!(view.fingerprint(), view.clone().with_foreign(ids(&["a"])).fingerprint(), "though it was asked for before");
        assert_eq!(plain.clone().with_foreign(ids(&["b"])).fingerprint(), plain.fingerprint(), "without any it is as ever");
        let loss = Some(&Loss::Confirmed);
        assert_eq!(Arc::new(view.clone()).marked(&ids(&["b"])[0], loss).foreign(), view.foreign());
    }

    #[test]
    fn draining_members_leave_the_placement_unless_all_drain() {
        let draining = |id| Member { state: MemberState::Draining, ..member(id, 0) };
        let ids = |view: &View| view.eligible(None).map(|m| m.instance_id.to_string()).collect::<Vec<_>>();
        assert_eq!(ids(&View::new(1, vec![member("a", 0), draining("b")])), ["a"]);
        assert_eq!(ids(&View::new(1, vec![draining("a"), draining("b")])), ["a", "b"]);
    }

    fn away(id: &str) -> Member {
        Member { state: MemberState::Away, ..member(id, 0) }
    }

    #[test]
    fn an_away_member_keeps_its_share_and_is_not_active() {
        let ids = |view: &View| view.eligible(None).map(|m| m.instance_id.to_string()).collect::<Vec<_>>();
        let pausing = Member { state: MemberState::Pausing, ..member("p", 0) };
        let draining = Member { state: MemberState::Draining, ..member("d", 0) };
        let view = View::new(1, vec![member("a", 0), away("b"), draining.clone(), pausing]);
        assert_eq!((ids(&view), view.active()), (vec!["a".to_owned(), "b".into(), "p".into()], 1));
        assert_eq!(ids(&View::new(1, vec![away("b"), draining])), ["b"]);
        let fingerprint = |member| View::new(1, vec![member]).fingerprint();
        assert_ne!(fingerprint(away("b")), fingerprint(member("b", 0)), "its slots are nobody's to take");
    }

    #[test]
    fn all_drain_if_no_other_member_is_here() {
        let in_state = |id, state| Member { state, ..member(id, 0) };
        let all_drain = |members: Vec<Member>| View::new(1, members).all_draining();
        let drained = || in_state("d", MemberState::Draining);
        assert!(all_drain(vec![drained(), in_state("e", MemberState::Draining)]));
        assert!(all_drain(vec![drained(), away("b")]), "a member that is away can do nothing about it");
        assert!(!all_drain(vec![drained(), member("a", 0)]));
        assert!(!all_drain(vec![drained(), in_state("p", MemberState::Pausing)]));
        assert!(!all_drain(vec![]) && !all_drain(vec![away("b")]));
    }

    #[test]
    fn beside_a_life_of_the_member_its_away_record_means_nothing() {
        for (former, present) in [(1, 2), (2, 1)] {
            let gone = Member { state: MemberState::Away, ..member("a", former) };
            let view = View::new(1, vec![gone.clone(), member("a", present)]);
            assert_eq!((view.members(), view.duplicates()), (&[member("a", present)][..], &[][..]));
            let two = View::new(1, vec![gone, Member { state: MemberState::Away, ..member("a", present) }]);
            assert_eq!((two.members().len(), two.duplicates()), (1, &[][..]));
        }
    }

    #[test]
    fn what_away_members_list_counts_as_long_as_a_present_member_lists_it() {
        let group = |members: Vec<Member>| View::new(1, members).group_fingerprint();
        let away = |id, names: &[&str]| Member { state: MemberState::Away, ..serving(id, names) };
        let (old, new) = (Some(Fingerprint::of("old")), Some(Fingerprint::of("new")));
        assert_eq!(group(vec![away("a", &["old"]), serving("b", &["old", "new"])]), old, "it cannot serve the new one");
        assert_eq!(group(vec![away("a", &["old", "new"]), serving("b", &["old", "new"])]), new);
        assert_eq!(
            group(vec![away("a", &["old"]), away("b", &["old"]), serving("c", &["new"])]),
            new,
            "the fleet was started with other settings"
        );
        assert_eq!(group(vec![away("a", &["old"]), away("b", &["old"])]), old);
        assert_eq!(group(vec![away("a", &["old"]), serving("b", &[])]), old);
    }

    #[test]
    fn the_groups_fingerprint_is_the_last_that_all_list_else_what_most_list() {
        let group = |members: Vec<Member>| View::new(1, members).group_fingerprint();
        let (old, new) = (Fingerprint::of("old"), Fingerprint::of("new"));
        assert_eq!(group(vec![]), None);
        assert_eq!(group(vec![serving("a", &["old"]), serving("b", &["old", "new"])]), Some(old));
        assert_eq!(group(vec![serving("a", &["old", "new"]), serving("b", &["old", "new"])]), Some(new));
        assert_eq!(group(vec![serving("a", &["new"]), serving("b", &["old", "new"])]), Some(new));
        assert_eq!(group(vec![serving("a", &["old"]), serving("b", &["new"]), serving("c", &["new"])]), Some(new));
        assert_eq!(group(vec![serving("a", &["old"]), serving("b", &["new"])]), Some(old.min(new)));
    }

    #[test]
    fn a_view_that_was_changed_keeps_its_groups_fingerprint() {
        let new = Some(Fingerprint::of("new"));
        let view = View::new(1, vec![serving("a", &["old", "new"]), serving("b", &["old", "new"])]);
        let id = |id: &str| InstanceId::new(id).unwrap();
        assert_eq!(view.clone().with_foreign(vec![id("z")]).group_fingerprint(), new);
        let marked = Arc::new(view).marked(&id("a"), Some(&Loss::Confirmed));
        assert_eq!((marked.members()[0].loss.as_ref(), marked.group_fingerprint()), (Some(&Loss::Confirmed), new));
    }

    /// Regression: a list of this length took minutes when each fingerprint was compared with all others.
    #[test]
    fn long_lists_take_time_for_each_fingerprint_once() {
        let many: Vec<_> = (0..200_000u32).map(|i| Fingerprint::of(&i.to_string())).collect();
        let lists = [many.clone(), many.iter().rev().chain(&many).copied().collect()];
        let members = lists.into_iter().zip(["a", "b"]).map(|(fingerprints, id)| Member { fingerprints, ..member(id, 0) });
        // Each stands last in one of the two lists or near it; the first and the last of `many` stand furthest back.
        let expected = many[0].min(many[many.len() - 1]);
        assert_eq!(View::new(1, members.collect()).group_fingerprint(), Some(expected));
    }

    #[test]
    fn of_two_that_all_list_in_different_orders_each_takes_the_smaller() {
        let (old, new) = (Fingerprint::of("old"), Fingerprint::of("new"));
        let view = View::new(1, vec![serving("a", &["old", "new"]), serving("b", &["new", "old"]), serving("c", &["old", "new"])]);
        assert_eq!(view.group_fingerprint(), Some(old.min(new)));
    }

    proptest! {
        /// The rule of `docs/reference/placement.md`, "Which constants count", from sets and counts, whatever the order of the records.
        #[test]
        fn the_groups_fingerprint_is_a_function_of_the_view_alone(
            lists in proptest::collection::vec(proptest::collection::vec(0u8..4, 0..4), 0..7), seed in any::<u64>(),
        ) {
            let print = |name: &u8| Fingerprint::of(&name.to_string());
            let members = lists.iter().enumerate().map(|(i, list)| Member {
                fingerprints: list.iter().map(print).collect(),
                ..member(&format!("m{i}"), 0)
            });
            let mut members: Vec<_> = members.collect();
            let fingerprint = View::new(1, members.clone()).group_fingerprint();
            members.sort_by_key(|member| hash_bytes(member.instance_id.as_str().as_bytes()).wrapping_mul(seed | 1));
            prop_assert_eq!(View::new(1, members).group_fingerprint(), fingerprint);

            let listing = |name: &u8| lists.iter().filter(|list| list.contains(name)).count();
            let place = |name: &u8| lists.iter().filter_map(|list| list.iter().position(|other| other == name)).max();
            let smallest = |names: Vec<u8>| names.iter().map(print).min();
            let listed: Vec<u8> = (0..4).filter(|name| listing(name) > 0).collect();
            let by_all: Vec<u8> = listed.iter().copied().filter(|name| listing(name) == lists.len()).collect();
            let most = listed.iter().map(listing).max();
            let last = by_all.iter().filter_map(place).max();
            let expected = match last {
                Some(_) => smallest(by_all.into_iter().filter(|name| place(name) == last).collect()),
                None => smallest(listed.into_iter().filter(|name| Some(listing(name)) == most).collect()),
            };
            prop_assert_eq!(fingerprint, expected);
        }

        /// Members under the old policy, under the one with `next`, and under the new one, with no more than two of the three at once.
        #[test]
        fn a_rolling_change_leaves_no_member_behind(step in 0usize..3, done in 0usize..6, of in 1usize..6) {
            let lists: [&[&str]; 4] = [&["old"], &["old", "new"], &["new"], &["new"]];
            let members = (0..of).map(|i| serving(&format!("m{i}"), lists[if i < done { step + 1 } else { step }]));
            let view = View::new(1, members.collect());
            let group = view.group_fingerprint();
            prop_assert_eq!(view.eligible(group).count(), of, "everybody serves {:?}", group);
            let switched = step > 0 || done >= of;
            prop_assert_eq!(group, Some(Fingerprint::of(if switched { "new" } else { "old" })));
        }
    }

    #[test]
    fn a_member_that_serves_something_else_is_left_out() {
        let view = View::new(1, vec![serving("a", &["x"]), serving("b", &["x"]), serving("c", &["y"])]);
        let ids: Vec<_> = view.eligible(view.group_fingerprint()).map(|m| m.instance_id.as_str()).collect();
        assert_eq!(ids, ["a", "b"]);
    }

    fn working(id: &str, joined: u64, serves: Option<&str>) -> Member {
        let serves = serves.map(|id| Serves::from_parts(id.into(), Some("events".into())));
        Member { serves, ..member(id, joined) }
    }

    #[test]
    fn the_first_that_joined_says_what_the_group_works_for_and_others_get_no_share() {
        let ids = |view: &View| view.eligible(None).map(|m| m.instance_id.to_string()).collect::<Vec<_>>();
        let view = View::new(1, vec![working("a", 3, Some("keys")), working("b", 2, Some("5eed")), working("c", 4, Some("5eed"))]);
        assert_eq!(view.serves().map(Serves::id), Some("5eed"));
        assert_eq!((ids(&view), view.active()), (vec!["b".to_owned(), "c".into()], 2));
        let without = View::new(1, vec![working("a", 3, None), working("b", 2, Some("5eed")), working("c", 4, Some("5eed"))]);
        assert_eq!(ids(&without), ["a", "b", "c"], "an older version does not say what it works for");
        assert_ne!(view.fingerprint(), without.fingerprint(), "it has no share");
        assert_eq!(View::new(1, vec![working("a", 1, None)]).serves(), None);
    }

    #[test]
    fn away_members_decide_only_where_all_are() {
        let gone = Member { state: MemberState::Away, ..working("a", 1, Some("5eed")) };
        assert_eq!(View::new(1, vec![gone.clone(), working("b", 2, Some("keys"))]).serves(), Some(&Serves::Keys));
        assert_eq!(View::new(1, vec![gone, working("b", 2, None)]).serves().map(Serves::id), Some("5eed"));
    }

    #[test]
    fn who_works_for_something_else_has_no_say_in_the_groups_constants() {
        let at = |id, joined, serves, fingerprints: &[&str]| {
            let fingerprints = fingerprints.iter().map(|name| Fingerprint::of(name)).collect();
            Member { fingerprints, ..working(id, joined, Some(serves)) }
        };
        let view = View::new(1, vec![at("a", 1, "5eed", &["x"]), at("b", 2, "keys", &["y"]), at("c", 3, "keys", &["y"])]);
        assert_eq!(view.group_fingerprint(), Some(Fingerprint::of("x")));
    }

    #[test]
    fn a_restarted_member_counts_as_joined() {
        let before = View::new(1, vec![member("a", 1), member("b", 1)]);
        let after = View::new(2, vec![member("a", 1), member("b", 2), member("c", 3)]);
        let joined: Vec<_> = after.joined_since(&before).iter().map(ToString::to_string).collect();
        assert_eq!(joined, ["b", "c"]);
    }
}
