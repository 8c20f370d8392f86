//! What follows each attempt of one request, until its deadline.

use std::time::Duration;

use super::{AskError, Choice, NoRoute, Undelivered};
use crate::mistakes::{Mistake, made};
use crate::{Backoff, Incarnation, InstanceId, MemberState, Moment, format_duration};

/// The time limit of a request that states none.
pub const WITHIN_DEFAULT: Duration = Duration::from_secs(10);
/// The longest time limit of a request.
pub const WITHIN_MAX: Duration = Duration::from_mins(5);
/// The shortest time limit, and the shortest time in which an attempt is made: the remaining time travels in whole milliseconds.
pub const WITHIN_MIN: Duration = Duration::from_millis(1);
/// How many members are asked before a pause. It also bounds a chain of hints.
pub const TRIES_IN_A_ROW: usize = 4;

/// The first pause; doubled after each further one, up to the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_LONGEST: Duration = Duration::from_millis(500);

/// A time limit out of range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the time limit is {given:?}; from {} to {} are allowed", format_duration(WITHIN_MIN), format_duration(WITHIN_MAX))]
pub struct WithinError {
    /// The time limit.
    pub given: Duration,
}

/// What to do next with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskStep {
    /// Send it to a member, and hand in the outcome ([`Ask::on_undelivered`]) unless it is an answer.
    Send {
        /// The member, as an index into the view of the table that was passed in.
        index: u32,
        /// The remaining time, at least [`WITHIN_MIN`]. It goes with the attempt; cancel the attempt when it is over.
        within: Duration,
    },
    /// Ask again at that moment, or as soon as the view or the claims change.
    Wait {
        /// Not after the deadline.
        until: Moment,
    },
    /// It has no answer.
    GiveUp(AskError),
}

/// One request on its way to an answer. An answer of a handler ends it, whatever its status; then this value is dropped.
///
/// A request is *repeatable* if handling it twice is harmless: a `GET`, or one with an `Idempotency-Key`. Others are handled at most once:
/// after an attempt whose outcome is unknown they are not sent again.
#[derive(Debug)]
pub struct Ask {
    begun: Moment,
    deadline: Moment,
    repeatable: bool,
    backoff: Backoff,
    /// The members asked since the last pause.
    tried: [Option<Incarnation>; TRIES_IN_A_ROW],
    hint: Option<InstanceId>,
    pause: Option<AskPause>,
    /// The earliest next attempt that a busy member asked for.
    not_before: Option<Moment>,
    last: Option<Undelivered>,
    /// An earlier attempt of a repeatable request may have been handled.
    unknown: Option<String>,
    /// The request ends with this.
    end: Option<AskError>,
}

#[derive(Debug, Clone, Copy)]
struct AskPause {
    until: Moment,
    /// The set at its beginning. Updates that do not change the set do not end the pause, so frequent updates cause no storm of attempts.
    set: Option<u64>,
}

impl Ask {
    /// A request that has `within` for all its attempts together.
    ///
    /// # Errors
    ///
    /// [`WithinError`] below [`WITHIN_MIN`] and above [`WITHIN_MAX`].
    pub fn new(now: Moment, within: Duration, repeatable: bool) -> Result<Self, WithinError> {
        if !(WITHIN_MIN..=WITHIN_MAX).contains(&within) {
            return Err(WithinError { given: within });
        }
        Ok(Self {
            begun: now,
            deadline: now.plus(within),
            repeatable,
            backoff: Backoff::new(PAUSE_FIRST, PAUSE_LONGEST),
            tried: [None; TRIES_IN_A_ROW],
            hint: None,
            pause: None,
            not_before: None,
            last: None,
            unknown: None,
            end: None,
        })
    }

    /// When it gives up.
    pub const fn deadline(&self) -> Moment {
        self.deadline
    }

    /// Handles the outcome of the attempt that [`Ask::next`] asked for. Also that of one that was cancelled at the deadline: `Unsent` if
    /// none of it was sent, else `Unknown`.
    pub fn on_undelivered(&mut self, now: Moment, outcome: Undelivered) {
        match &outcome {
            Undelivered::NotMine(hint) => self.hint.clone_from(hint),
            Undelivered::Busy(after) => self.not_before = after.map(|after| now.plus(after.min(PAUSE_LONGEST))),
            Undelivered::Barred(_) => self.end = Some(self.unless_unknown(AskError::Barred(outcome.reason()))),
            Undelivered::Unknown(_) if self.repeatable => self.unknown = Some(outcome.reason()),
            Undelivered::Unknown(_) => self.end = Some(AskError::Unknown(outcome.reason())),
            Undelivered::Unsent(_) | Undelivered::Unproven(_) => {}
        }
        self.last = Some(outcome);
    }

    /// The next step. `from` is the destination's present set, or why it has none; call it anew for each step, because the set may have
    /// changed.
    pub fn next(&mut self, now: Moment, from: Result<Choice<'_>, NoRoute>) -> AskStep {
        if let Some(end) = &self.end {
            return AskStep::GiveUp(end.clone());
        }
        let within = self.deadline.since(now);
        if within < WITHIN_MIN {
            return AskStep::GiveUp(self.too_late(from.err()));
        }
        let choice = match from {
            Err(no_route) if !no_route.may_change() => return AskStep::GiveUp(self.unless_unknown(no_route.into())),
            from => from.ok(),
        };
        if let Some(until) = self.pausing(now, choice.as_ref()) {
            return AskStep::Wait { until };
        }
        let Some(index) = choice.and_then(|choice| self.hinted(&choice).or_else(|| self.untried(&choice, now))) else {
            return AskStep::Wait { until: self.wait(now, choice.as_ref()) };
        };
        AskStep::Send { index, within }
    }

    /// The end of the present pause, unless it is over or the set has changed since it began.
    fn pausing(&mut self, now: Moment, choice: Option<&Choice<'_>>) -> Option<Moment> {
        let pause = self.pause?;
        if now < pause.until && pause.set == mark(choice) {
            return Some(pause.until);
        }
        (self.pause, self.not_before) = (None, None);
        None
    }

    /// Begins a pause, and returns its end: 10 ms after the first row of attempts, up to 500 ms after later ones.
    fn wait(&mut self, now: Moment, choice: Option<&Choice<'_>>) -> Moment {
        let longest = self.backoff.fail();
        // At random from the upper half, so that many callers do not come back together.
        let random = choice.map_or(0, |choice| choice.random);
        let until = now.plus(longest.saturating_sub(at_random(longest / 2, random)).max(PAUSE_FIRST));
        // Never earlier than the busy member asked for, and later at random: it refuses many callers at the same moment.
        let asked_for = self.not_before.map(|not_before| not_before.plus(at_random(not_before.since(now) / 2, random)));
        let until = asked_for.map_or(until, |asked_for| until.max(asked_for)).min(self.deadline);
        self.pause = Some(AskPause { until, set: mark(choice) });
        (self.tried, self.hint) = ([None; TRIES_IN_A_ROW], None);
        until
    }

    /// The member that the last one named. It is only a hint: that member must be in the view and not asked since the last pause.
    fn hinted(&mut self, choice: &Choice<'_>) -> Option<u32> {
        let hint = self.hint.take()?;
        let set = choice.table.instance(&hint).ok()?;
        set.as_slice().first().copied().filter(|index| made(Mistake::HintsWithoutEnd) || self.try_now(choice, *index))
    }

    /// The chosen member, or one after it in the set that was not asked since the last pause.
    fn untried(&mut self, choice: &Choice<'_>, now: Moment) -> Option<u32> {
        if self.tried.iter().all(Option::is_some) {
            return None;
        }
        let chosen = choice.index(now)?;
        if self.try_now(choice, chosen) {
            return Some(chosen);
        }
        let from = choice.set.iter().position(|index| *index == chosen)?;
        // At most so many were asked, so one more is enough.
        let others = choice.set.iter().cycle().skip(from).take(choice.set.len().min(TRIES_IN_A_ROW));
        others.copied().find(|index| self.try_now(choice, *index))
    }

    /// Whether that member is asked now: it is there, was not asked since the last pause, and not too many were.
    fn try_now(&mut self, choice: &Choice<'_>, index: u32) -> bool {
        let Some(member) = choice.table.member(index).filter(|member| member.state != MemberState::Away) else { return false };
        if self.tried.contains(&Some(member.incarnation)) {
            return false;
        }
        let Some(free) = self.tried.iter_mut().find(|tried| tried.is_none()) else { return false };
        *free = Some(member.incarnation);
        true
    }

    fn too_late(&self, no_route: Option<NoRoute>) -> AskError {
        let within = self.deadline.since(self.begun);
        let why = || no_route.map_or_else(|| "no member was asked".to_owned(), |no_route| no_route.to_string());
        self.unless_unknown(match &self.last {
            Some(Undelivered::Busy(_)) => AskError::Busy { within },
            last => AskError::TooLate { within, why: last.as_ref().map_or_else(why, Undelivered::reason) },
        })
    }

    /// That error, unless an earlier attempt may have been handled.
    fn unless_unknown(&self, error: AskError) -> AskError {
        self.unknown.clone().map_or(error, AskError::Unknown)
    }
}

/// A part of that duration, by the upper eight bits of a random number.
fn at_random(duration: Duration, random: u64) -> Duration {
    duration * u32::from(u8::try_from(random >> 56).unwrap_or(0)) / 256
}

/// A number for the members of a set, whatever the view's number.
fn mark(choice: Option<&Choice<'_>>) -> Option<u64> {
    let choice = choice?;
    let members = choice.set.iter().filter_map(|index| choice.table.member(*index));
    Some(members.fold(0, |mark: u64, member| (mark ^ member.incarnation.get()).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)))
}

#[cfg(test)]
mod tests;
