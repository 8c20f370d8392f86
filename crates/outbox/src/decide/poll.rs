//! When to check for changes, and when to read. `sleep`: what precedes the sleep of a publisher that is notified.

mod sleep;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use shardwise::Moment;

use self::sleep::SleepSchedule;
pub(crate) use self::sleep::{PublisherActivity, SleepStep};
use crate::PublisherOptions;

/// Retries beyond this number are found by the regular reading instead of at their exact time.
const RETRIES_MAX: usize = 10_000;
/// The longest interval between two checks of a store with a cheap change mark, while other writers keep it busy.
const MARKED_PAUSE_MAX: Duration = Duration::from_millis(100);

/// Whether there is, or may be, something new to read.
#[derive(Debug)]
pub(crate) struct PollSchedule {
    poll: Duration,
    /// There is, or may be, something to read.
    dirty: bool,
    /// There may be aggregates without a hash.
    place: bool,
    mark: Option<u64>,
    /// The current interval between checks; it grows while nothing is found.
    wait: Duration,
    mark_due: Moment,
    /// A reading is due by then, whatever the change marks say.
    read_by: Moment,
    retries: BinaryHeap<Reverse<Moment>>,
    sleep: SleepSchedule,
}

impl PollSchedule {
    pub(crate) fn new(poll: Duration) -> Self {
        Self {
            poll,
            dirty: true,
            place: true,
            mark: None,
            wait: PublisherOptions::POLL_MIN,
            mark_due: Moment::ZERO,
            read_by: Moment::ZERO,
            retries: BinaryHeap::new(),
            sleep: SleepSchedule::default(),
        }
    }

    /// There is certainly, or very likely, something to read.
    pub(crate) fn more(&mut self) {
        self.dirty = true;
    }

    /// A writer has reported a commit.
    pub(crate) fn read_soon(&mut self) {
        (self.dirty, self.place, self.wait) = (true, true, self.sleep.shortest_pause());
    }

    pub(crate) fn retry_at(&mut self, at: Moment) {
        if self.retries.len() < RETRIES_MAX {
            self.retries.push(Reverse(at));
        }
    }

    pub(crate) fn should_read_mark(&self, now: Moment) -> bool {
        !self.sleep.is_asleep() && now >= self.mark_due
    }

    pub(crate) fn mark_read(&mut self, mark: Option<u64>, now: Moment) {
        let changed = mark.is_none() || mark != self.mark;
        self.mark = mark;
        (self.dirty, self.place) = (self.dirty || changed, self.place || changed);
        if !changed {
            self.wait = PublisherOptions::POLL_MIN;
        }
        self.mark_due = now.plus(self.wait);
        if !self.sleep.polls() {
            self.wait = (self.wait * 2).min(PublisherOptions::POLL_MIN);
        }
    }

    pub(crate) fn should_place(&self) -> bool {
        self.place
    }

    /// Hashes are being written now; aggregates that arrive later set the flag again.
    pub(crate) fn placing(&mut self) {
        self.place = false;
    }

    pub(crate) fn placed(&mut self, found: usize, limit: usize) {
        self.place |= found == limit;
        self.dirty |= found > 0;
    }

    pub(crate) fn should_read(&mut self, now: Moment) -> bool {
        while self.retries.peek().is_some_and(|Reverse(at)| *at <= now) {
            self.retries.pop();
            self.dirty = true;
        }
        if now >= self.read_by {
            (self.dirty, self.place) = (true, true);
            self.read_by = now.plus(self.poll);
        }
        self.dirty
    }

    /// A reading begins; changes that arrive later set the flag again.
    pub(crate) fn reading(&mut self, now: Moment) {
        self.dirty = false;
        self.read_by = now.plus(self.poll);
    }

    /// A reading has ended; `more`: it was cut short.
    pub(crate) fn read(&mut self, found: bool, more: bool, now: Moment) {
        self.dirty |= more;
        if !self.sleep.polls() {
            self.read_while_notified(found, more, now);
            return;
        }
        let longest = if self.mark.is_some() { MARKED_PAUSE_MAX.min(self.poll) } else { self.poll };
        self.wait = if found { PublisherOptions::POLL_MIN } else { (self.wait * 2).min(longest) };
    }

    pub(crate) fn wake_at(&self) -> impl Iterator<Item = Moment> + use<> {
        let mark_due = (!self.sleep.is_asleep()).then_some(self.mark_due);
        [mark_due, self.sleep.ask_at(), Some(self.read_by), self.retries.peek().map(|Reverse(at)| *at)].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    fn quiet(mark: Option<u64>) -> PollSchedule {
        let mut poller = PollSchedule::new(Duration::from_secs(1));
        poller.mark_read(mark, at(0));
        poller.placing();
        poller.reading(at(0));
        poller.read(false, false, at(0));
        poller
    }

    #[test]
    fn with_marks_an_idle_store_is_read_only_once_a_poll() {
        let mut poller = quiet(Some(4));
        for ms in (50..1_000).step_by(25) {
            assert!(poller.should_read_mark(at(ms)) && !poller.should_read(at(ms)) && !poller.should_place(), "{ms}");
            poller.mark_read(Some(4), at(ms));
            assert!(!poller.should_read_mark(at(ms + 24)));
        }
        assert!(poller.should_read(at(1_000)) && poller.should_place());
    }

    #[test]
    fn a_new_mark_leads_to_a_reading() {
        let mut poller = quiet(Some(4));
        poller.mark_read(Some(5), at(50));
        assert!(poller.should_read(at(50)) && poller.should_place());
    }

    #[test]
    fn without_marks_polls_become_rarer_up_to_poll_and_frequent_again_when_something_is_found() {
        let mut poller = quiet(None);
        let (mut now, mut gaps) = (at(0), Vec::new());
        for _ in 0..7 {
            let next = poller.wake_at().min().unwrap();
            gaps.push(next.since(now).as_millis());
            now = next;
            poller.mark_read(None, now);
            assert!(poller.should_read(now));
            poller.reading(now);
            poller.read(false, false, now);
        }
        assert_eq!(gaps, [25, 50, 100, 200, 400, 800, 1_000]);
        poller.reading(now);
        poller.read(true, false, now);
        poller.mark_read(None, now);
        assert_eq!(poller.wake_at().min().unwrap().since(now), PublisherOptions::POLL_MIN);
    }

    #[test]
    fn a_retry_wakes_at_its_time() {
        let mut poller = quiet(Some(4));
        poller.retry_at(at(333));
        assert!(poller.wake_at().any(|wake| wake == at(333)));
        assert!(!poller.should_read(at(332)) && poller.should_read(at(333)));
    }
}
