//! Picks: rules that choose one member of a set.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Candidates, RouteTable};
use crate::{Key, Moment};

/// A rule that chooses one of several members.
pub trait Pick: Send + Sync {
    /// The position in `among` of the member to use. `among` has at least two members. A position beyond them is divided by their number,
    /// and the remainder is used. `key` is the key of the request, if it has one. `random` was drawn for this pick.
    ///
    /// It is called for each attempt, so it should neither block nor allocate.
    fn pick(&self, among: &Candidates<'_>, key: Option<Key<'_>>, random: u64) -> usize;
}

/// The less loaded of two random members ([`Candidate::by_load`](super::Candidate::by_load)): the default. It looks at two members however
/// many there are. Many callers that see the same reports do not all choose the same member.
#[derive(Debug, Clone, Copy, Default)]
pub struct PowerOfTwo;

/// One member after the other. All destinations share the count, so the order is exact only for a pick that serves one destination.
#[derive(Debug, Default)]
pub struct RoundRobin(AtomicUsize);

/// The least loaded member ([`Candidate::by_load`](super::Candidate::by_load)), a random one of several equal ones. It looks at all of
/// them.
#[derive(Debug, Clone, Copy, Default)]
pub struct LeastLoaded;

/// A random member.
#[derive(Debug, Clone, Copy, Default)]
pub struct Random;

/// The lower 32 bits of a random number, and the upper ones.
const fn halves(random: u64) -> (u64, u64) {
    (random & 0xffff_ffff, random >> 32)
}

/// A position below `count`, from 32 random bits; 0 if `count` is 0.
fn below(count: usize, bits: u64) -> usize {
    // Below `count`, so it fits.
    usize::try_from((bits * count as u64) >> 32).unwrap_or(0)
}

impl Pick for PowerOfTwo {
    fn pick(&self, among: &Candidates<'_>, _: Option<Key<'_>>, random: u64) -> usize {
        let (lower, upper) = halves(random);
        let first = below(among.len(), lower);
        let second = below(among.len().saturating_sub(1), upper);
        // Never the first one again.
        let second = if second >= first { second + 1 } else { second };
        match (among.get(first), among.get(second)) {
            (Some(one), Some(other)) if other.by_load(&one).is_lt() => second,
            _ => first,
        }
    }
}

impl Pick for RoundRobin {
    fn pick(&self, among: &Candidates<'_>, _: Option<Key<'_>>, _: u64) -> usize {
        self.0.fetch_add(1, Ordering::Relaxed) % among.len().max(1)
    }
}

impl Pick for LeastLoaded {
    fn pick(&self, among: &Candidates<'_>, _: Option<Key<'_>>, random: u64) -> usize {
        let begin = below(among.len(), halves(random).0);
        let positions = (begin..among.len()).chain(0..begin);
        let candidates = positions.filter_map(|position| Some((position, among.get(position)?)));
        // `min_by` takes the first of several equal ones, and the first position is random.
        candidates.min_by(|(_, one), (_, other)| one.by_load(other)).map_or(0, |(position, _)| position)
    }
}

impl Pick for Random {
    fn pick(&self, among: &Candidates<'_>, _: Option<Key<'_>>, random: u64) -> usize {
        below(among.len(), halves(random).0)
    }
}

/// A destination's set with the pick that chooses from it.
#[derive(Clone, Copy)]
pub struct Choice<'a> {
    /// The table that the set is from.
    pub table: &'a RouteTable,
    /// Indices into the members of the table's view.
    pub set: &'a [u32],
    /// The rule.
    pub pick: &'a dyn Pick,
    /// The key of the request, if it has one.
    pub key: Option<Key<'a>>,
    /// A number that the caller drew at random for this choice.
    pub random: u64,
}

impl Choice<'_> {
    /// The chosen member as an index into the members of the table's view; `None` if the set is empty. A set of one needs no pick.
    pub fn index(&self, now: Moment) -> Option<u32> {
        match self.set {
            [] => None,
            [only] => Some(*only),
            set => {
                let position = self.pick.pick(&self.table.candidates(set, now), self.key, self.random);
                set.get(position % set.len()).copied()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::{InFlight, Undelivered};
    use crate::{InstanceId, Member, View, Weight};
    use proptest::prelude::*;
    use std::sync::Arc;

    const NOW: Moment = Moment::from_nanos(1_000_000_000);

    fn table(weights: &[u8]) -> RouteTable {
        let member = |(i, weight): (usize, &u8)| Member {
            weight: Weight::new(u64::from(*weight)).unwrap(),
            ..Member::named(InstanceId::new(format!("m{i:02}")).unwrap())
        };
        RouteTable::eventual(Arc::new(View::new(1, weights.iter().enumerate().map(member).collect())), None, None, None)
    }

    fn begin(table: &RouteTable, index: u32, requests: usize) -> Vec<InFlight> {
        (0..requests).map(|_| table.peer_load(index).unwrap().begin()).collect()
    }

    fn chosen(table: &RouteTable, set: &[u32], pick: &dyn Pick, random: u64) -> Option<u32> {
        Choice { table, set, pick, key: None, random }.index(NOW)
    }

    /// How often each member is chosen with evenly spread random numbers.
    fn counts(table: &RouteTable, set: &[u32], pick: &dyn Pick) -> Vec<usize> {
        let mut counts = vec![0; set.len()];
        for step in 0..10_000_u64 {
            let random = step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let index = chosen(table, set, pick, random).unwrap();
            counts[set.iter().position(|member| *member == index).unwrap()] += 1;
        }
        counts
    }

    #[test]
    fn without_load_every_member_is_chosen_alike() {
        let table = table(&[1; 4]);
        let all = [0, 1, 2, 3];
        for pick in [&PowerOfTwo as &dyn Pick, &RoundRobin::default(), &LeastLoaded, &Random] {
            let counts = counts(&table, &all, pick);
            assert!(counts.iter().all(|count| (2_300..2_700).contains(count)), "{counts:?}");
        }
    }

    #[test]
    fn round_robin_goes_around() {
        let (table, pick) = (table(&[1; 3]), RoundRobin::default());
        let chosen: Vec<_> = (0..5).filter_map(|_| chosen(&table, &[2, 0, 1], &pick, 7)).collect();
        assert_eq!(chosen, [2, 0, 1, 2, 0]);
    }

    #[test]
    fn own_requests_count_before_the_reported_load() {
        let table = table(&[1; 2]);
        let both = [0, 1];
        table.peer_load(0).unwrap().on_answer(NOW, Some(5));
        table.peer_load(1).unwrap().on_answer(NOW, Some(6));
        for pick in [&PowerOfTwo as &dyn Pick, &LeastLoaded] {
            assert_eq!(counts(&table, &both, pick), [10_000, 0], "the lower load");
            let held = begin(&table, 0, 1);
            assert_eq!(counts(&table, &both, pick), [0, 10_000], "one request in flight against none");
            drop(held);
        }
    }

    #[test]
    fn weight_divides() {
        let table = table(&[1, 3]);
        let held = begin(&table, 1, 2);
        assert_eq!(chosen(&table, &[0, 1], &LeastLoaded, 0), Some(0), "3 on weight 3 are as many as 1 on weight 1");
        table.peer_load(0).unwrap().on_answer(NOW, Some(10));
        table.peer_load(1).unwrap().on_answer(NOW, Some(29));
        assert_eq!(counts(&table, &[0, 1], &PowerOfTwo), [0, 10_000]);
        drop(held);
    }

    #[test]
    fn a_member_that_failed_comes_last() {
        let table = table(&[1; 3]);
        let held = [begin(&table, 1, 50), begin(&table, 2, 50)];
        table.peer_load(0).unwrap().on_failure(NOW);
        assert_eq!(chosen(&table, &[0, 1], &LeastLoaded, 0), Some(1));
        assert_eq!(counts(&table, &[0, 1, 2], &PowerOfTwo)[0], 0);
        table.peer_load(1).unwrap().on_failure(NOW);
        assert_eq!(chosen(&table, &[0, 1], &LeastLoaded, 0), Some(0), "if all failed, the load decides");
        drop(held);
    }

    #[test]
    fn a_busy_member_comes_after_the_others_and_before_one_that_failed() {
        let table = table(&[1; 3]);
        let held = begin(&table, 1, 50);
        table.peer_load(0).unwrap().on_undelivered(NOW, &Undelivered::Busy(None));
        assert_eq!(counts(&table, &[0, 1], &PowerOfTwo), [0, 10_000], "it would look idle");
        table.peer_load(2).unwrap().on_undelivered(NOW, &Undelivered::Unsent("refused".to_owned()));
        assert_eq!(counts(&table, &[0, 2], &LeastLoaded), [10_000, 0]);
        table.peer_load(1).unwrap().on_undelivered(NOW, &Undelivered::NotMine(None));
        assert_eq!(counts(&table, &[0, 1], &LeastLoaded), [0, 10_000], "another view says nothing of the load");
        drop(held);
    }

    #[test]
    fn a_set_of_one_needs_no_pick_and_an_empty_one_has_no_member() {
        struct Panics;
        impl Pick for Panics {
            fn pick(&self, _: &Candidates<'_>, _: Option<Key<'_>>, _: u64) -> usize {
                panic!("a set of one needs no pick")
            }
        }
        let table = table(&[1; 3]);
        assert_eq!((chosen(&table, &[2], &Panics, 0), chosen(&table, &[], &Panics, 0)), (Some(2), None));
    }

    #[test]
    fn a_position_beyond_the_set_is_divided_by_its_size() {
        struct Fixed(usize);
        impl Pick for Fixed {
            fn pick(&self, _: &Candidates<'_>, _: Option<Key<'_>>, _: u64) -> usize {
                self.0
            }
        }
        let table = table(&[1; 4]);
        let picked = [0, 2, 3, 7, usize::MAX].map(|position| chosen(&table, &[3, 1, 0], &Fixed(position), 0));
        assert_eq!(picked, [Some(3), Some(0), Some(3), Some(1), Some(3)]);
    }

    proptest! {
        #[test]
        fn every_pick_stays_in_the_set(weights in prop::collection::vec(1u8..5, 1..20), set in prop::collection::vec(0u32..25, 0..20), random in any::<u64>()) {
            let table = table(&weights);
            for pick in [&PowerOfTwo as &dyn Pick, &RoundRobin::default(), &LeastLoaded, &Random] {
                let chosen = chosen(&table, &set, pick, random);
                prop_assert_eq!(chosen.is_none(), set.is_empty());
                prop_assert!(chosen.is_none_or(|index| set.contains(&index)));
                let among = table.candidates(&set, NOW);
                prop_assert!(set.is_empty() || pick.pick(&among, None, random) < set.len());
            }
        }
    }
}
