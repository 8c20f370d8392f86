//! Which slots to take and which to release: the slots that the sharding assigns, compared with those that the fence confirms.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use shardwise::core::exponential;
use shardwise::{Moment, SlotSet};

use crate::store::Hold;

/// The first interval between attempts to take a slot that its former holder has not released: short, for a handover…
const TAKE_AGAIN: Duration = Duration::from_millis(20);
/// …and the longest, while the holder seems to be dead and its TTL must expire.
const TAKE_AGAIN_MAX: Duration = Duration::from_millis(100);
/// This many attempts are made at the short interval, for two seconds in all.
const QUICK_TRIES: u32 = 100;

#[derive(Debug)]
pub(crate) struct PublisherSlots {
    wanted: SlotSet,
    until: Option<Moment>,
    /// Slot to epoch, as the store granted them.
    held: BTreeMap<u32, u64>,
    /// Holds whose release has not been answered. The store may still execute a release that was given up, so these holds are not used
    /// again: each is either released once more, or taken again under a new epoch, which the old release does not match.
    releasing: BTreeSet<Hold>,
    /// The holds of the release under way; its answer concerns only these.
    asked: Vec<Hold>,
    /// A known mistake, for the simulation: a hold is used again although its release may still be executed.
    #[cfg(test)]
    pub(crate) forgets_releases: bool,
    /// Until when the store certainly counts this publisher as alive; `None` before it is registered.
    fence_until: Option<Moment>,
    take_at: Moment,
    tries: u32,
    /// Increases with every change, so that dependent state is checked only after a change.
    generation: u64,
}

/// What decides which slots a publisher may send from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CheckedSlots {
    /// How often its slots have changed.
    generation: u64,
    /// Whether the store counts this publisher as alive.
    fence_is_live: bool,
    /// Whether the sharding still assigns it slots.
    is_assigned: bool,
}

impl PublisherSlots {
    pub(crate) fn new(slots: u32) -> Self {
        Self {
            wanted: SlotSet::empty(slots),
            until: None,
            held: BTreeMap::new(),
            releasing: BTreeSet::new(),
            asked: Vec::new(),
            #[cfg(test)]
            forgets_releases: false,
            fence_until: None,
            take_at: Moment::ZERO,
            tries: 0,
            generation: 0,
        }
    }

    /// The newest assignment of the sharding; newly assigned slots are tried immediately.
    pub(crate) fn want(&mut self, slots: SlotSet, until: Option<Moment>) {
        if !slots.minus(&self.wanted).is_empty() {
            (self.take_at, self.tries) = (Moment::ZERO, 0);
        }
        (self.wanted, self.until) = (slots, until);
        self.generation += 1;
    }

    pub(crate) fn alive_until(&mut self, until: Moment) {
        self.fence_until = Some(until);
    }

    pub(crate) fn fence_is_live(&self, now: Moment) -> bool {
        self.fence_until.is_some_and(|until| now < until)
    }

    /// Whether the assignment still holds.
    fn is_assigned(&self, now: Moment) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// Changes whenever the answer of [`PublisherSlots::may_send`] may change.
    pub(crate) fn state(&self, now: Moment) -> CheckedSlots {
        CheckedSlots { generation: self.generation, fence_is_live: self.fence_is_live(now), is_assigned: self.is_assigned(now) }
    }

    fn is_wanted(&self, slot: u32, now: Moment) -> bool {
        self.is_assigned(now) && self.wanted.contains(slot)
    }

    pub(crate) fn wanted_count(&self, now: Moment) -> u32 {
        if self.is_assigned(now) { self.wanted.len() } else { 0 }
    }

    /// Whether events of this hold may be sent now: it is held and wanted, and both deadlines are in the future.
    pub(crate) fn may_send(&self, hold: Hold, now: Moment) -> bool {
        self.fence_is_live(now) && self.is_wanted(hold.slot, now) && self.holds(hold)
    }

    pub(crate) fn holds(&self, hold: Hold) -> bool {
        self.held.get(&hold.slot) == Some(&hold.epoch)
    }

    pub(crate) fn held_count(&self) -> u32 {
        u32::try_from(self.held.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn holds_slot(&self, slot: u32) -> bool {
        self.held.contains_key(&slot)
    }

    pub(crate) fn has_work(&self, now: Moment) -> bool {
        self.fence_is_live(now) && self.held.keys().any(|slot| self.is_wanted(*slot, now))
    }

    /// The slots that are wanted and not held, if the next attempt is due.
    pub(crate) fn to_take(&self, now: Moment) -> Option<SlotSet> {
        if !self.fence_is_live(now) || now < self.take_at {
            return None;
        }
        let missing = self.missing(now);
        (!missing.is_empty()).then_some(missing)
    }

    fn missing(&self, now: Moment) -> SlotSet {
        if self.wanted_count(now) == 0 {
            return SlotSet::empty(self.wanted.slots());
        }
        self.wanted.minus(&SlotSet::from_slots(self.wanted.slots(), self.held.keys().copied()))
    }

    pub(crate) fn took(&mut self, holds: &[Hold], now: Moment) {
        self.held.extend(holds.iter().map(|hold| (hold.slot, hold.epoch)));
        self.releasing.retain(|hold| !self.held.contains_key(&hold.slot));
        self.tries = self.tries.saturating_add(1);
        let wait = exponential(TAKE_AGAIN, self.tries.saturating_sub(QUICK_TRIES), TAKE_AGAIN_MAX);
        self.take_at = now.plus(wait);
    }

    /// Holds that are no longer wanted and not in use, and unwanted holds whose release was given up.
    pub(crate) fn to_release(&self, in_use: &BTreeMap<u32, usize>, now: Moment) -> Vec<Hold> {
        let idle = self.unwanted(now).filter(|hold| !in_use.contains_key(&hold.slot));
        let given_up = self.releasing.iter().filter(|hold| !self.is_wanted(hold.slot, now));
        idle.chain(given_up.copied()).collect()
    }

    /// Begins to release these holds. They are no longer held: a slot that is wanted again before the answer is taken again, under a new
    /// epoch.
    pub(crate) fn release(&mut self, holds: &[Hold]) {
        self.drop_holds(holds);
        #[cfg(test)]
        if self.forgets_releases {
            return;
        }
        self.releasing.extend(holds);
        self.asked = holds.to_vec();
    }

    /// The store has executed the release under way.
    pub(crate) fn released(&mut self) {
        for hold in self.asked.drain(..) {
            self.releasing.remove(&hold);
        }
    }

    pub(crate) fn unwanted(&self, now: Moment) -> impl Iterator<Item = Hold> + '_ {
        self.held.iter().filter(move |(slot, _)| !self.is_wanted(**slot, now)).map(|(slot, epoch)| Hold { slot: *slot, epoch: *epoch })
    }

    /// Forgets holds that are released or lost.
    pub(crate) fn drop_holds(&mut self, holds: &[Hold]) {
        self.generation += 1;
        self.held.retain(|slot, epoch| !holds.contains(&Hold { slot: *slot, epoch: *epoch }));
    }

    pub(crate) fn drop_all(&mut self) {
        self.generation += 1;
        self.held.clear();
        (self.take_at, self.tries) = (Moment::ZERO, 0);
    }

    /// Adopts the store's list of holds. Holds that the store does not have are lost and returned. Holds that only the store has came from
    /// a call whose answer was lost; they are adopted unless their release was requested.
    pub(crate) fn reconcile(&mut self, in_store: &[Hold]) -> Vec<Hold> {
        self.releasing.retain(|hold| in_store.contains(hold));
        let theirs = in_store.iter().filter(|hold| !self.releasing.contains(hold));
        let theirs: BTreeMap<u32, u64> = theirs.map(|hold| (hold.slot, hold.epoch)).collect();
        let lost = self.held.iter().filter(|(slot, epoch)| theirs.get(slot) != Some(epoch));
        let lost = lost.map(|(slot, epoch)| Hold { slot: *slot, epoch: *epoch }).collect();
        self.generation += 1;
        self.held = theirs;
        lost
    }

    /// When something here changes without an input.
    pub(crate) fn wake_at(&self, now: Moment) -> impl Iterator<Item = Moment> + use<> {
        let take = (self.fence_is_live(now) && !self.missing(now).is_empty()).then_some(self.take_at);
        let fence = self.fence_until.filter(|_| !self.held.is_empty());
        [take, fence, self.until.filter(|until| now < *until)].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    fn slots(members: &[u32]) -> SlotSet {
        SlotSet::from_slots(8, members.iter().copied())
    }

    fn hold(slot: u32, epoch: u64) -> Hold {
        Hold { slot, epoch }
    }

    #[test]
    fn newly_wanted_slots_are_taken_at_once_and_then_every_twenty_milliseconds() {
        let mut book = PublisherSlots::new(8);
        book.want(slots(&[1, 2]), None);
        assert_eq!(book.to_take(at(0)), None, "not registered yet");
        book.alive_until(at(10_000));
        assert_eq!(book.to_take(at(0)), Some(slots(&[1, 2])));
        book.took(&[hold(1, 7)], at(0));
        assert_eq!(book.to_take(at(19)), None);
        assert_eq!(book.to_take(at(20)), Some(slots(&[2])));
        book.want(slots(&[1, 2, 3]), None);
        assert_eq!(book.to_take(at(19)), Some(slots(&[2, 3])), "a new one does not wait for an old one's turn");
    }

    #[test]
    fn unwanted_slots_are_released_once_nothing_is_in_use() {
        let mut book = PublisherSlots::new(8);
        book.alive_until(at(10_000));
        book.took(&[hold(1, 7), hold(2, 8)], at(0));
        book.want(slots(&[2]), Some(at(500)));
        assert!(!book.may_send(hold(1, 7), at(1)) && book.may_send(hold(2, 8), at(1)));
        assert!(book.to_release(&BTreeMap::from([(1, 1)]), at(1)).is_empty());
        assert_eq!(book.to_release(&BTreeMap::new(), at(1)), [hold(1, 7)]);
        assert_eq!(book.to_release(&BTreeMap::new(), at(500)), [hold(1, 7), hold(2, 8)], "past the ownership's deadline nothing is wanted");
    }

    #[test]
    fn nothing_is_sent_past_the_fence_or_under_another_epoch() {
        let mut book = PublisherSlots::new(8);
        book.want(slots(&[1]), None);
        book.alive_until(at(100));
        book.took(&[hold(1, 7)], at(0));
        assert!(book.may_send(hold(1, 7), at(99)));
        assert!(!book.may_send(hold(1, 7), at(100)));
        assert!(!book.may_send(hold(1, 6), at(99)));
    }

    /// The store may execute a release long after it was given up, with the epoch named in it.
    #[test]
    fn what_a_release_that_was_given_up_names_is_never_used_again() {
        let mut book = PublisherSlots::new(8);
        book.want(slots(&[1, 2]), None);
        book.alive_until(at(10_000));
        book.took(&[hold(1, 7), hold(2, 8)], at(0));
        book.want(slots(&[2]), None);
        let release = book.to_release(&BTreeMap::new(), at(1));
        book.release(&release);
        assert_eq!(book.reconcile(&[hold(1, 7), hold(2, 8)]), []);
        assert_eq!(book.to_release(&BTreeMap::new(), at(2)), [hold(1, 7)], "not wanted: released once more");
        book.want(slots(&[1, 2]), None);
        assert!(!book.may_send(hold(1, 7), at(2)) && book.to_release(&BTreeMap::new(), at(2)).is_empty());
        assert_eq!(book.to_take(at(2)), Some(slots(&[1])), "wanted again: taken under another epoch");
        book.took(&[hold(1, 9)], at(2));
        assert!(book.may_send(hold(1, 9), at(3)));
        assert_eq!(book.reconcile(&[hold(1, 9), hold(2, 8)]), [], "the late release does not fit");
        book.want(slots(&[2]), None);
        assert_eq!(book.to_release(&BTreeMap::new(), at(3)), [hold(1, 9)]);
    }

    #[test]
    fn the_answer_to_one_release_says_nothing_of_another_that_was_given_up() {
        let mut book = PublisherSlots::new(8);
        book.alive_until(at(10_000));
        book.want(slots(&[1, 2]), None);
        book.took(&[hold(1, 7), hold(2, 8)], at(0));
        book.release(&[hold(1, 7)]);
        assert_eq!(book.reconcile(&[hold(1, 7), hold(2, 8)]), [], "given up, and not executed yet");
        book.release(&[hold(2, 8)]);
        book.released();
        book.reconcile(&[hold(1, 7)]);
        assert!(!book.holds(hold(1, 7)), "its own release is still on its way");
        assert_eq!(book.to_take(at(10_000 - 1)), Some(slots(&[1, 2])), "taken again under another epoch");
    }

    #[test]
    fn the_stores_list_wins() {
        let mut book = PublisherSlots::new(8);
        book.took(&[hold(1, 7), hold(2, 8)], at(0));
        assert_eq!(book.reconcile(&[hold(2, 9), hold(3, 1)]), [hold(1, 7), hold(2, 8)]);
        assert!(book.holds(hold(2, 9)) && book.holds(hold(3, 1)));
    }
}
