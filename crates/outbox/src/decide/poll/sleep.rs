//! Falling asleep, with a store that notifies a publisher only after it has announced that it sleeps
//! ([`Store::fall_asleep`](crate::Store::fall_asleep)).
//!
//! A publisher that is awake gets no notifications and polls often. When it has found nothing for a while it announces its sleep. From then
//! on writers notify, but transactions that were open may not have seen the announcement: it keeps polling until they have ended, and
//! reads once more. Only then it sleeps. Whatever is found, and every notification, ends the sleep; the next one needs a new announcement.

use std::time::Duration;

use shardwise::Moment;

use super::PollSchedule;
use crate::PublisherOptions;
use crate::store::SleepTicket;

/// The shortest interval between two polls of a publisher that is awake. It doubles while nothing is found, up to
/// [`PublisherOptions::POLL_MIN`].
const AWAKE_PAUSE_MIN: Duration = Duration::from_millis(4);
/// For this long nothing is found before the sleep is announced.
const QUIET: Duration = PublisherOptions::POLL_MIN;
/// The same while events are being sent or marked: the writers of a slow destination are rarely quiet for longer.
const QUIET_SENDING: Duration = Duration::from_secs(1);
/// After a failure it polls for this long before it announces its sleep again.
const AGAIN: Duration = Duration::from_secs(10);

/// What to ask of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SleepStep {
    Announce,
    /// Whether the transactions that may not have seen the announcement have ended.
    Ask(SleepTicket),
    /// The publisher ends.
    Withdraw(SleepTicket),
}

/// What the publisher is doing besides.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PublisherActivity {
    /// A reading, or a search for new aggregates, is under way.
    pub(crate) reading: bool,
    /// Events are being sent or marked.
    pub(crate) sending: bool,
    /// It holds slots that it is to publish.
    pub(crate) has_work: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SleepPhase {
    /// No notifications, or the store always sends them: polls become rarer up to `poll`.
    Polls,
    Awake,
    /// `outdated`: something was found, or a notification has come, since the announcement was begun.
    Announcing {
        outdated: bool,
    },
    /// `ended`: all transactions that may not have seen the announcement have ended, and one more reading decides.
    Announced {
        ended: bool,
        ticket: SleepTicket,
    },
    Asleep,
}

#[derive(Debug)]
pub(super) struct SleepSchedule {
    phase: SleepPhase,
    /// Notifications of the store arrive.
    listening: bool,
    /// The store takes no announcements.
    unsupported: bool,
    again_at: Moment,
    /// When something was found, or a notification came.
    found_at: Moment,
    ask_at: Moment,
    /// The last announcement, which is withdrawn at the end.
    last: Option<SleepTicket>,
}

impl Default for SleepSchedule {
    fn default() -> Self {
        let never = Moment::ZERO;
        Self { phase: SleepPhase::Polls, listening: false, unsupported: false, again_at: never, found_at: never, ask_at: never, last: None }
    }
}

impl SleepSchedule {
    /// Whether it polls, without announcing anything.
    pub(super) fn polls(&self) -> bool {
        self.phase == SleepPhase::Polls
    }

    pub(super) fn is_asleep(&self) -> bool {
        self.phase == SleepPhase::Asleep
    }

    pub(super) fn shortest_pause(&self) -> Duration {
        if self.polls() { PublisherOptions::POLL_MIN } else { AWAKE_PAUSE_MIN }
    }

    pub(super) fn ask_at(&self) -> Option<Moment> {
        matches!(self.phase, SleepPhase::Announced { ended: false, .. }).then_some(self.ask_at)
    }

    fn may_announce(&self, now: Moment) -> bool {
        self.listening && !self.unsupported && now >= self.again_at
    }

    fn wake(&mut self, now: Moment) {
        self.found_at = now;
        self.phase = match self.phase {
            SleepPhase::Announcing { .. } => SleepPhase::Announcing { outdated: true },
            _ => SleepPhase::Awake,
        };
    }
}

impl PollSchedule {
    /// The store's notifications arrive, and there is, or may be, something to read.
    pub(crate) fn woken(&mut self, now: Moment) {
        self.sleep.listening = true;
        if !self.sleep.polls() || self.sleep.may_announce(now) {
            self.sleep.wake(now);
            self.mark_due = now.plus(AWAKE_PAUSE_MIN);
        }
        self.read_soon();
    }

    /// The store's notifications do not arrive: it polls until they do.
    pub(crate) fn notifications_lost(&mut self, now: Moment) {
        self.sleep.listening = false;
        self.poll_again(now);
    }

    /// A call for the sleep has failed: it polls for a while.
    pub(crate) fn sleep_failed(&mut self, now: Moment) {
        self.sleep.again_at = now.plus(AGAIN);
        self.poll_again(now);
    }

    fn poll_again(&mut self, now: Moment) {
        self.sleep.phase = SleepPhase::Polls;
        self.read_soon();
        self.mark_due = now.plus(self.wait);
    }

    /// A reading has ended that is not one of a publisher that polls.
    pub(super) fn read_while_notified(&mut self, found: bool, more: bool, now: Moment) {
        if !found {
            return;
        }
        let slept = !matches!(self.sleep.phase, SleepPhase::Awake);
        self.sleep.wake(now);
        // In a backlog new aggregates are not urgent: polls stay as rare as they are.
        if slept || !more {
            self.wait = AWAKE_PAUSE_MIN;
            let next = now.plus(self.wait);
            self.mark_due = if slept { next } else { self.mark_due.min(next) };
        }
    }

    /// The next step on the way to sleep, if one is due.
    pub(crate) fn sleep_step(&mut self, activity: PublisherActivity, now: Moment) -> Option<SleepStep> {
        let has_read_all = !activity.reading && !self.dirty && !self.place;
        match self.sleep.phase {
            SleepPhase::Polls if self.sleep.may_announce(now) => {
                self.sleep.wake(now);
                self.wait = AWAKE_PAUSE_MIN;
                self.mark_due = self.mark_due.min(now.plus(self.wait));
            }
            SleepPhase::Awake if has_read_all && activity.has_work && now >= self.mark_due => {
                let quiet = if activity.sending { QUIET_SENDING } else { QUIET };
                if now.since(self.sleep.found_at) >= quiet {
                    self.sleep.phase = SleepPhase::Announcing { outdated: false };
                    self.poll_rarely(now);
                    return Some(SleepStep::Announce);
                }
            }
            SleepPhase::Announced { ended: false, ticket } if now >= self.sleep.ask_at => {
                self.sleep.ask_at = now.plus(PublisherOptions::POLL_MIN);
                return Some(SleepStep::Ask(ticket));
            }
            SleepPhase::Announced { ended: true, .. } if has_read_all => self.sleep.phase = SleepPhase::Asleep,
            _ => {}
        }
        None
    }

    fn poll_rarely(&mut self, now: Moment) {
        self.wait = PublisherOptions::POLL_MIN;
        self.mark_due = now.plus(self.wait);
    }

    /// The sleep is announced; `None`: the store takes no announcements.
    pub(crate) fn fell_asleep(&mut self, ticket: Option<SleepTicket>, now: Moment) {
        let Some(ticket) = ticket else {
            self.sleep.unsupported = true;
            self.poll_again(now);
            return;
        };
        self.sleep.last = Some(ticket);
        match self.sleep.phase {
            SleepPhase::Announcing { outdated: true } => self.sleep.phase = SleepPhase::Awake,
            SleepPhase::Announcing { outdated: false } => {
                self.sleep.phase = SleepPhase::Announced { ended: false, ticket };
                self.sleep.ask_at = now;
                self.poll_rarely(now);
            }
            _ => {}
        }
    }

    /// Whether all transactions have ended that may not have seen the announcement. If so, only a reading that begins from now on shows
    /// everything that they committed.
    pub(crate) fn ended(&mut self, all: bool) {
        if let SleepPhase::Announced { ended, .. } = &mut self.sleep.phase
            && all
        {
            *ended = true;
            (self.dirty, self.place) = (true, true);
        }
    }

    /// The announcement to withdraw at the end, once.
    pub(crate) fn withdraw(&mut self) -> Option<SleepStep> {
        self.sleep.last.take().map(SleepStep::Withdraw)
    }

    /// Whether there is nothing to withdraw.
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.sleep.last.is_none()
    }
}

#[cfg(test)]
mod tests;
