//! The state of the model. Times are remaining times and epochs are ranks, so the number of states is finite however long it runs.

/// A call that created or renewed the record, and whose answer is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Renewal {
    /// Ticks since it was sent, by the member's clock.
    pub(crate) age: u8,
    /// Whether the clock has missed a tick since.
    pub(crate) missed: bool,
}

/// A member's knowledge of its claim on one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Hold {
    pub(crate) epoch: u8,
    /// Takes no new work.
    pub(crate) draining: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Member<const S: usize> {
    /// Ticks of true time for which its record lives in the store.
    pub(crate) lease: u8,
    /// Ticks of the member's clock until its deadline; 0 is past it.
    pub(crate) left: u8,
    /// Whether its clock may miss one tick before that deadline.
    pub(crate) may_miss: bool,
    pub(crate) renewal: Option<Renewal>,
    pub(crate) holds: [Option<Hold>; S],
    /// Work in flight, on a slot and under an epoch: it started while the slot was held, and may write at any later time.
    pub(crate) work: Option<(u8, u8)>,
    /// The record in the store belongs to a former incarnation, and has to expire first.
    pub(crate) reborn: bool,
}

/// Members, the store of claims, and the user's own table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct State<const M: usize, const S: usize> {
    pub(crate) members: [Member<S>; M],
    /// The holder of each slot in the store, with its epoch.
    pub(crate) claims: [Option<(u8, u8)>; S],
    /// The highest epoch that wrote in each slot.
    pub(crate) table: [u8; S],
    /// A write of lost work, which may arrive at any time.
    pub(crate) stale_write: Option<(u8, u8)>,
    /// A release abandoned by its caller that may still be carried out: its member, slot and epoch.
    pub(crate) late: Option<(u8, u8, u8)>,
}

impl<const M: usize, const S: usize> State<M, S> {
    pub(crate) const BEGIN: Self = Self {
        members: [Member { lease: 0, left: 0, may_miss: false, renewal: None, holds: [None; S], work: None, reborn: false }; M],
        claims: [None; S],
        table: [0; S],
        stale_write: None,
        late: None,
    };

    /// The epoch under which that member holds that slot, by its own clock: it serves or drains there, or work under a guard continues.
    pub(crate) fn held(&self, m: usize, s: usize) -> Option<u8> {
        let member = &self.members[m];
        let work = member.work.filter(|(slot, _)| usize::from(*slot) == s).map(|(_, epoch)| epoch);
        member.holds[s].map(|hold| hold.epoch).or(work).filter(|_| member.left > 0)
    }

    /// Every epoch known for a slot.
    fn epochs(&mut self, s: usize) -> impl Iterator<Item = &mut u8> {
        let held = self.members.iter_mut().flat_map(move |member| {
            let work = member.work.as_mut().filter(|work| usize::from(work.0) == s).map(|work| &mut work.1);
            member.holds[s].as_mut().map(|hold| &mut hold.epoch).into_iter().chain(work)
        });
        let claim = self.claims[s].as_mut().map(|claim| &mut claim.1);
        let stale_write =
            self.stale_write.as_mut().filter(|stale_write| usize::from(stale_write.0) == s).map(|stale_write| &mut stale_write.1);
        let late = self.late.as_mut().filter(|late| usize::from(late.1) == s).map(|late| &mut late.2);
        held.chain(claim).chain(stale_write).chain(late).chain(std::iter::once(&mut self.table[s]))
    }

    /// An epoch above all that are known for a slot.
    pub(crate) fn next_epoch(&mut self, s: usize) -> u8 {
        self.epochs(s).map(|epoch| *epoch).max().unwrap_or(0) + 1
    }

    /// Replaces epochs by ranks: only their order matters.
    pub(crate) fn rank(&mut self) {
        for s in 0..S {
            let known = self.epochs(s).fold(0_u32, |known, epoch| known | 1 << *epoch);
            for epoch in self.epochs(s) {
                *epoch = u8::try_from((known & ((1 << *epoch) - 1)).count_ones()).unwrap_or(u8::MAX);
            }
        }
    }

    /// The smallest of all states that differ only in the numbering of members and slots, which has no meaning.
    pub(crate) fn first_of_equals(self) -> Self {
        let mut first = self.clone();
        for members in orders::<M>() {
            for slots in orders::<S>() {
                // Most candidates are larger in their first member already.
                if self.members[members[0]].renumbered(&slots) <= first.members[0] {
                    first = first.min(self.renumbered(&members, &slots));
                }
            }
        }
        first
    }

    /// This state with member `members[m]` in place of `m`, and the slots alike.
    fn renumbered(&self, members: &[usize; M], slots: &[usize; S]) -> Self {
        Self {
            members: members.map(|m| self.members[m].renumbered(slots)),
            claims: slots.map(|s| self.claims[s].map(|(holder, epoch)| (now_at(members, holder), epoch))),
            table: slots.map(|s| self.table[s]),
            stale_write: self.stale_write.map(|(slot, epoch)| (now_at(slots, slot), epoch)),
            late: self.late.map(|(m, slot, epoch)| (now_at(members, m), now_at(slots, slot), epoch)),
        }
    }
}

impl<const S: usize> Member<S> {
    fn renumbered(&self, slots: &[usize; S]) -> Self {
        let work = self.work.map(|(slot, epoch)| (now_at(slots, slot), epoch));
        Self { holds: slots.map(|s| self.holds[s]), work, ..*self }
    }
}

/// The new place of `number`.
fn now_at(order: &[usize], number: u8) -> u8 {
    let place = order.iter().position(|was| *was == usize::from(number));
    u8::try_from(place.unwrap_or_default()).unwrap_or_default()
}

/// All orders of up to three.
fn orders<const N: usize>() -> impl Iterator<Item = [usize; N]> {
    const OF_THREE: [[usize; 3]; 6] = [[0, 1, 2], [1, 0, 2], [0, 2, 1], [2, 1, 0], [1, 2, 0], [2, 0, 1]];
    OF_THREE.into_iter().filter(|order| (N..3).all(|fixed| order[fixed] == fixed)).map(|order| std::array::from_fn(|n| order[n]))
}
