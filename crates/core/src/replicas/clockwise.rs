//! The clockwise order of members and zones, for a place that moves backwards around the ring.

/// Every member and every zone, in the order in which they follow clockwise of a place.
///
/// A point that the place passes on its way back becomes the first one clockwise, so its member and its zone move to the front; nothing
/// else changes. A pass updates four links, and a list for a slot reads no more than it needs of the two orders.
#[derive(Debug)]
pub(super) struct ClockwiseOrder<'a> {
    zones: &'a [usize],
    members: RecencyList,
    zones_met: RecencyList,
    /// Each zone's first member clockwise.
    first_in: Vec<u32>,
}

impl<'a> ClockwiseOrder<'a> {
    /// Empty; it needs one turn backwards over all points.
    pub(super) fn new(zones: &'a [usize]) -> Self {
        let zones_in_all = zones.iter().max().map_or(0, |highest| highest + 1);
        Self { zones, members: RecencyList::new(zones.len()), zones_met: RecencyList::new(zones_in_all), first_in: vec![0; zones_in_all] }
    }

    /// Moves back past a point of `member`.
    pub(super) fn pass(&mut self, member: u32) {
        let zone = self.zones[member as usize];
        self.members.bring_forward(member as usize);
        self.zones_met.bring_forward(zone);
        self.first_in[zone] = member;
    }

    /// Fills `list` by rule 7 for a slot that begins here and belongs to `owner`; `list` is not empty and not longer than the number of
    /// members. `visit` is called for each zone and member visited: at most `2 * list.len()` times.
    pub(super) fn fill(&self, owner: u32, list: &mut [u32], mut visit: impl FnMut()) {
        let owners_zone = self.zones[owner as usize];
        list[0] = owner;
        let mut have = 1;
        // Each zone occurs once in the order, so all but the owner's are new.
        let mut zones = self.zones_met.iter();
        while have < list.len()
            && let Some(zone) = zones.next()
        {
            visit();
            if zone != owners_zone {
                list[have] = self.first_in[zone];
                have += 1;
            }
        }
        let mut members = self.members.iter();
        while have < list.len()
            && let Some(member) = members.next()
        {
            visit();
            // Member numbers have 32 bits.
            let member = u32::try_from(member).unwrap_or(u32::MAX);
            if !list[..have].contains(&member) {
                list[have] = member;
                have += 1;
            }
        }
    }
}

/// Items numbered from 0, the one moved to the front last being first. Items that were never moved are not in the order.
#[derive(Debug)]
struct RecencyList(Vec<RecencyLink>);

/// The neighbours of an item; the item itself while it is in no order. The last item is the order's end and beginning.
#[derive(Debug, Clone, Copy)]
struct RecencyLink {
    before: usize,
    after: usize,
}

impl RecencyList {
    fn new(things: usize) -> Self {
        Self((0..=things).map(|at| RecencyLink { before: at, after: at }).collect())
    }

    fn bring_forward(&mut self, thing: usize) {
        let RecencyLink { before, after } = self.0[thing];
        self.0[before].after = after;
        self.0[after].before = before;
        let end = self.0.len() - 1;
        let front = self.0[end].after;
        self.0[thing] = RecencyLink { before: end, after: front };
        self.0[front].before = thing;
        self.0[end].after = thing;
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        let end = self.0.len() - 1;
        let known = move |at: usize| (at < end).then_some(at);
        std::iter::successors(known(self.0[end].after), move |at| known(self.0[*at].after))
    }
}
