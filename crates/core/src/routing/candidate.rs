//! The members that a pick chooses from, with what this process knows of their load.

use std::cmp::Ordering;

use super::{PeerLoad, RouteTable};
use crate::{Member, Moment};

/// A member that may serve a request.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    member: &'a Member,
    load: &'a PeerLoad,
    now: Moment,
}

impl<'a> Candidate<'a> {
    /// Its record.
    pub const fn member(&self) -> &'a Member {
        self.member
    }

    /// The requests of this process to it that are in flight.
    pub fn in_flight(&self) -> u32 {
        self.load.in_flight()
    }

    /// The load that it last reported, halved every 5 s since.
    pub fn load(&self) -> u32 {
        self.load.load_at(self.now)
    }

    /// Whether an attempt failed there within the last 2 s and no answer came since.
    pub fn is_failing(&self) -> bool {
        self.load.is_failing_at(self.now)
    }

    /// Whether it refused a request because it has too many, for as long as it asked not to be tried again (at most 2 s), unless an answer
    /// came since.
    pub fn is_busy(&self) -> bool {
        self.load.is_busy_at(self.now)
    }

    /// Orders candidates from the least to the most loaded. A failing one comes last, a busy one before it. Then the requests in flight
    /// count, including the one to send now, and then the reported load, both divided by the weight.
    pub fn by_load(&self, other: &Self) -> Ordering {
        let per_weight = |mine: u32, others: u32| {
            let (weight, others_weight) = (self.member.weight.get(), other.member.weight.get());
            (u64::from(mine) * u64::from(others_weight)).cmp(&(u64::from(others) * u64::from(weight)))
        };
        let with_this = |candidate: &Self| candidate.in_flight().saturating_add(1);
        let avoided = |candidate: &Self| (candidate.is_failing(), candidate.is_busy());
        avoided(self)
            .cmp(&avoided(other))
            .then_with(|| per_weight(with_this(self), with_this(other)))
            .then_with(|| per_weight(self.load(), other.load()))
    }
}

/// The members that may serve a request. Reading one allocates nothing, however many there are.
#[derive(Debug, Clone, Copy)]
pub struct Candidates<'a> {
    table: &'a RouteTable,
    set: &'a [u32],
    now: Moment,
}

impl<'a> Candidates<'a> {
    pub(super) const fn new(table: &'a RouteTable, set: &'a [u32], now: Moment) -> Self {
        Self { table, set, now }
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.set.len()
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    /// The one at a position below [`Candidates::len`]; `None` beyond.
    pub fn get(&self, position: usize) -> Option<Candidate<'a>> {
        let index = *self.set.get(position)?;
        let (member, load) = (self.table.member(index)?, self.table.peer_load(index)?);
        Some(Candidate { member, load, now: self.now })
    }

    /// All of them, in the order of the set: for a key its owner first.
    pub fn iter(&self) -> impl Iterator<Item = Candidate<'a>> {
        let among = *self;
        (0..among.len()).filter_map(move |position| among.get(position))
    }
}
