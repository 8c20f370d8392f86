//! Failures: whether an attempt is charged to the event, what becomes of the event, and whether its destination seems to be down.

use std::time::Duration;

use shardwise::Moment;
use shardwise::core::exponential;

use super::io::SendId;
use crate::options::RETRY_DELAY_MAX;
use crate::sink::Refusal;
use crate::store::{HeadTrouble, HeadUpdate};
use crate::{AggregateId, Poison, PublisherOptions};

/// The longest wait between attempts that are not charged, and between probes. It bounds the delay of the first event after an outage.
pub(super) const OUTAGE_DELAY_MAX: Duration = Duration::from_secs(30);
/// After this many consecutive refused aggregates, with nothing accepted in between, the destination counts as down.
const DOWN_AFTER: usize = 3;
/// A probe has events of at most 64 aggregates: a destination that takes events and does not answer in time gets them twice.
const PROBE_DOUBLINGS: u32 = 6;
/// After this many refusals in a row, or refusals for this long, a destination is reported however few aggregates it has.
const REFUSING_AFTER: u32 = 3;
const REFUSING_FOR: Duration = Duration::from_secs(10);
/// So long after the last refusal nothing is tried there any more: events that wait for a destination are tried more often. They were given
/// up, or their slots are another publisher's.
const QUIET_AFTER: Duration = RETRY_DELAY_MAX.saturating_mul(2);

/// The failures of the event at an aggregate's head, on this publisher's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct HeadState {
    pub(crate) attempts: u32,
    pub(crate) failures: u32,
    pub(crate) failing_since: Option<Moment>,
    pub(crate) attempted_at: Option<Moment>,
}

impl HeadState {
    pub(crate) fn read(trouble: HeadTrouble, now: Moment) -> Self {
        Self {
            attempts: trouble.attempts,
            failures: trouble.failures,
            failing_since: trouble.failing_for.map(|ago| now.minus(ago)),
            attempted_at: trouble.attempted_ago.map(|ago| now.minus(ago)),
        }
    }
}

/// What may be sent to a destination now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendGate {
    Open,
    /// The first events of so many aggregates, to test whether the destination is up again.
    Probe {
        aggregates: usize,
    },
    Shut {
        until: Moment,
    },
}

#[derive(Debug, Default)]
pub(crate) struct Destination {
    last_accepted: Option<Moment>,
    /// Aggregates refused since something was accepted, up to `DOWN_AFTER`.
    refused: Vec<AggregateId>,
    /// Answers since then that accepted nothing, and the times of the first and of the last; those before a quiet time do not count.
    refusals: u32,
    refused_since: Option<Moment>,
    refused_at: Option<Moment>,
    /// See [`Self::is_refusing`].
    is_refusing: bool,
    down_since: Option<Moment>,
    probes: u32,
    probe_at: Moment,
    /// The send that tests whether the destination is up again.
    probing: Option<SendId>,
    /// See [`Self::said`].
    said: String,
}

impl Destination {
    pub(crate) fn accepted(&mut self, now: Moment) {
        *self = Self { last_accepted: Some(now), ..Self::default() };
    }

    /// The destination refused an event permanently: it is up, although it accepted nothing.
    pub(crate) fn answered(&mut self) {
        *self = Self { last_accepted: self.last_accepted, ..Self::default() };
    }

    /// Notes that this send is the one that [`SendGate::Probe`] allows.
    pub(crate) fn probing(&mut self, send: SendId) {
        self.probing = Some(send);
    }

    /// Notes an answer that accepted nothing and refused the heads of these aggregates temporarily, without those that another event is the
    /// cause of. Call it once for each answer. Do not call it for an answer that accepted something: a refusal together with an acceptance
    /// does not show that the destination is down.
    pub(crate) fn refused(&mut self, send: SendId, aggregates: &[AggregateId], said: &str, backoff: Duration, now: Moment) {
        // An answer to a send that was already under way when the destination went down adds no information.
        if aggregates.is_empty() || (self.is_down() && self.probing != Some(send)) {
            return;
        }
        if self.is_quiet(now) {
            (self.refusals, self.refused_since) = (0, None);
            if !self.is_down() {
                self.refused.clear();
            }
        }
        self.refused_at = Some(now);
        for aggregate in aggregates {
            if self.refused.len() < DOWN_AFTER && !self.refused.contains(aggregate) {
                self.refused.push(*aggregate);
            }
        }
        said.clone_into(&mut self.said);
        self.refusals = self.refusals.saturating_add(1);
        let since = *self.refused_since.get_or_insert(now);
        let is_down = self.refused.len() >= DOWN_AFTER;
        self.is_refusing |= is_down || self.refusals >= REFUSING_AFTER || now.since(since) >= REFUSING_FOR;
        if !is_down {
            return;
        }
        self.probing = None;
        self.down_since.get_or_insert(now);
        self.probe_at = now.plus(exponential(backoff, self.probes, OUTAGE_DELAY_MAX));
        self.probes = self.probes.saturating_add(1);
    }

    pub(crate) const fn is_down(&self) -> bool {
        self.down_since.is_some()
    }

    /// Whether to report that it refuses whatever is tried. If it is not down, this was of so few aggregates that their events may be the
    /// cause, and events are sent as before.
    pub(crate) const fn is_refusing(&self) -> bool {
        self.is_refusing
    }

    /// Whether its last refusal, if any, was long ago.
    pub(crate) fn is_quiet(&self, now: Moment) -> bool {
        self.refused_at.is_none_or(|refused| now.since(refused) >= QUIET_AFTER)
    }

    /// Ends the report, although nothing was accepted. If it is down, it stays so.
    pub(crate) fn end_report(&mut self) {
        (self.refusals, self.refused_since, self.is_refusing) = (0, None, false);
    }

    /// The last refusal's message, until something is accepted.
    pub(crate) fn said(&self) -> &str {
        &self.said
    }

    /// Whether it has accepted something and is not known to be down, however long ago that was.
    pub(crate) const fn is_good(&self) -> bool {
        self.last_accepted.is_some() && !self.is_down()
    }

    pub(crate) fn gate(&self, sends_under_way: usize, now: Moment) -> SendGate {
        match self.down_since {
            None => SendGate::Open,
            Some(_) if now >= self.probe_at && sends_under_way == 0 => SendGate::Probe { aggregates: self.probe_size() },
            Some(_) => SendGate::Shut { until: self.probe_at },
        }
    }

    /// One, and twice as many after each probe that was refused: it may be these events that are refused and not the destination that is
    /// down, and then others, which wait behind them, must be found soon.
    fn probe_size(&self) -> usize {
        1 << self.probes.saturating_sub(1).min(PROBE_DOUBLINGS)
    }

    /// Whether this failure counts as the event's own: the destination accepted something else since the event's last attempt, or the
    /// failures have lasted longer than an outage may.
    fn charges(&self, head: HeadState, outage_limit: Duration, now: Moment) -> bool {
        let others_accepted = head.attempted_at.zip(self.last_accepted).is_some_and(|(attempted, accepted)| accepted > attempted);
        // An event that was put off and not tried has no earlier attempt to compare with.
        let others_accepted = others_accepted && head.failures > 0;
        let since = [head.failing_since, self.down_since].into_iter().flatten().min();
        others_accepted || since.is_some_and(|since| now.since(since) >= outage_limit)
    }

    /// Decides what becomes of the refused event at an aggregate's head. Call it before noting what was accepted after that event.
    /// `jitter` is a random number.
    pub(crate) fn verdict(
        &self,
        refusal: &Refusal,
        head: HeadState,
        sequence: u64,
        options: &PublisherOptions,
        now: Moment,
        jitter: u64,
    ) -> HeadUpdate {
        let charged = !refusal.permanent && !refusal.blameless && self.charges(head, options.outage_limit, now);
        let attempts = if refusal.permanent { options.max_attempts } else { head.attempts + u32::from(charged) };
        let error = refusal.message.clone();
        if attempts >= options.max_attempts {
            return match options.poison {
                Poison::Block => HeadUpdate::Block { sequence, attempts, error },
                Poison::Park => HeadUpdate::Park { sequence, error },
                Poison::Discard => HeadUpdate::Discard { sequence, error },
            };
        }
        let longest = if charged { RETRY_DELAY_MAX } else { OUTAGE_DELAY_MAX };
        let delay = spread(exponential(options.backoff, head.failures, longest), jitter);
        let retry_in = delay.max(refusal.retry_after.unwrap_or_default().min(RETRY_DELAY_MAX));
        HeadUpdate::Retry { sequence, attempts, failures: head.failures.saturating_add(1), retry_in, error }
    }

    /// The update for a head that is not tried because this destination is down: it waits until about the next probe, and no attempt is
    /// charged.
    pub(crate) fn put_off(&self, head: HeadState, sequence: u64, backoff: Duration, now: Moment, jitter: u64) -> HeadUpdate {
        let delay = spread(exponential(backoff, self.probes, OUTAGE_DELAY_MAX), jitter);
        let retry_in = delay.max(self.probe_at.since(now));
        HeadUpdate::Retry { sequence, attempts: head.attempts, failures: head.failures, retry_in, error: self.said.clone() }
    }
}

/// A delay between half of `delay` and all of it, so that events that failed together are not retried together.
pub(super) fn spread(delay: Duration, jitter: u64) -> Duration {
    delay / 2 + (delay / 2).mul_f64((jitter >> 11) as f64 / (1u64 << 53) as f64)
}

/// A pseudo-random sequence from a seed (xorshift64*); for jitter only.
#[derive(Debug)]
pub(crate) struct Jitter(u64);

impl Jitter {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(if seed == 0 { 0x9e37_79b9_7f4a_7c15 } else { seed })
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn at(secs: u64) -> Moment {
        Moment::from_nanos(secs * 1_000_000_000)
    }

    fn options() -> PublisherOptions {
        PublisherOptions { max_attempts: 3, ..PublisherOptions::default() }
    }

    /// Fails an event `times` times, each time when its retry is due; `between` may change the destination in between.
    fn fail(times: usize, options: &PublisherOptions, mut between: impl FnMut(&mut Destination, Moment)) -> (HeadUpdate, Moment) {
        let (mut destination, mut head, mut now) = (Destination::default(), HeadState::default(), at(1));
        let mut last = HeadUpdate::Next;
        for _ in 0..times {
            destination.refused(0, &[1], "503", options.backoff, now);
            last = destination.verdict(&Refusal::retryable("503"), head, 1, options, now, u64::MAX);
            let HeadUpdate::Retry { attempts, failures, retry_in, .. } = last else { return (last, now) };
            head = HeadState { attempts, failures, failing_since: head.failing_since.or(Some(now)), attempted_at: Some(now) };
            between(&mut destination, now.plus(retry_in / 2));
            now = now.plus(retry_in);
        }
        (last, now)
    }

    #[test]
    fn an_outage_charges_nothing_until_its_limit() {
        let (last, now) = fail(120, &options(), |_, _| {});
        assert!(now.since(at(1)) < Duration::from_hours(1), "{now:?}");
        assert!(matches!(last, HeadUpdate::Retry { attempts: 0, failures: 120, .. }), "{last:?}");
        let (last, now) = fail(1_000, &options(), |_, _| {});
        assert!(matches!(last, HeadUpdate::Block { attempts: 3, .. }), "{last:?}");
        assert!(now.since(at(1)) >= Duration::from_hours(1), "{now:?}");
    }

    #[test]
    fn an_event_that_fails_while_others_pass_is_charged_from_its_second_attempt_on() {
        let (last, _) = fail(3, &options(), Destination::accepted);
        assert!(matches!(last, HeadUpdate::Retry { attempts: 2, .. }), "{last:?}");
        let (last, _) = fail(4, &options(), Destination::accepted);
        assert_eq!(last, HeadUpdate::Block { sequence: 1, attempts: 3, error: "503".into() });
    }

    /// Not even after the longest outage: its own refusal may still be something else.
    #[test]
    fn what_another_event_is_the_cause_of_is_never_charged() {
        let mut destination = Destination::default();
        destination.accepted(at(10_000));
        let head = HeadState { attempts: 2, failures: 50, failing_since: Some(at(1)), attempted_at: Some(at(9_000)) };
        for (refusal, charged) in [(Refusal::blameless("503"), 0), (Refusal::retryable("503"), 1)] {
            let verdict = destination.verdict(&refusal, head, 1, &PublisherOptions { max_attempts: 4, ..options() }, at(10_001), 0);
            assert!(matches!(verdict, HeadUpdate::Retry { attempts, failures: 51, .. } if attempts == 2 + charged), "{verdict:?}");
        }
    }

    #[test]
    fn a_permanent_refusal_is_charged_in_full() {
        let park = PublisherOptions { poison: Poison::Park, ..options() };
        let refusal = Refusal::permanent("too large");
        let verdict = Destination::default().verdict(&refusal, HeadState::default(), 7, &park, at(1), 0);
        assert_eq!(verdict, HeadUpdate::Park { sequence: 7, error: "too large".into() });
    }

    #[test]
    fn three_aggregates_refused_in_a_row_shut_the_gate_and_one_probe_opens_it() {
        let mut destination = Destination::default();
        let second = Duration::from_secs(1);
        for _ in 0..9 {
            destination.refused(0, &[1], "503", second, at(1));
        }
        assert_eq!(destination.gate(0, at(1)), SendGate::Open, "one aggregate alone may be its own fault");
        destination.refused(1, &[2], "503", second, at(1));
        destination.refused(2, &[3, 4, 5], "503", second, at(1));
        assert_eq!(destination.gate(0, at(1)), SendGate::Shut { until: at(2) });
        assert_eq!(destination.gate(0, at(2)), SendGate::Probe { aggregates: 1 });
        assert!(matches!(destination.gate(1, at(2)), SendGate::Shut { .. }), "one probe at a time");
        destination.refused(3, &[6, 7], "503", second, at(2));
        assert_eq!(destination.gate(0, at(2)), SendGate::Probe { aggregates: 1 }, "what was under way before the probe says nothing new");
        destination.probing(4);
        destination.refused(4, &[1, 2, 3], "503", second, at(2));
        assert_eq!(destination.gate(0, at(3)), SendGate::Shut { until: at(4) }, "the next one later");
        let sizes: Vec<_> = (5..14)
            .map(|send| {
                let SendGate::Probe { aggregates } = destination.gate(0, at(send * 100)) else { panic!("none is due") };
                destination.probing(send);
                destination.refused(send, &[send.cast_signed()], "503", second, at(send * 100));
                aggregates
            })
            .collect();
        assert_eq!(sizes, [2, 4, 8, 16, 32, 64, 64, 64, 64]);
        destination.accepted(at(4));
        assert_eq!(destination.gate(0, at(4)), SendGate::Open);
    }

    /// One or two aggregates never shut the gate, and an operator must learn of the outage nevertheless.
    #[test]
    fn a_destination_with_few_aggregates_is_reported_and_stays_open() {
        let second = Duration::from_secs(1);
        let reported = |refusals: &[(AggregateId, u64)]| {
            let mut destination = Destination::default();
            let refuse = |(aggregate, secs): &(AggregateId, u64)| {
                destination.refused(0, &[*aggregate], "503", second, at(*secs));
                assert_eq!(destination.gate(0, at(*secs)), SendGate::Open);
                destination.is_refusing()
            };
            refusals.iter().map(refuse).collect::<Vec<_>>()
        };
        assert_eq!(reported(&[(1, 1), (1, 2), (1, 3), (1, 4)]), [false, false, true, true]);
        assert_eq!(reported(&[(1, 1), (2, 1), (1, 2)]), [false, false, true]);
        assert_eq!(reported(&[(1, 1), (1, 10)]), [false, false]);
        assert_eq!(reported(&[(1, 1), (1, 11)]), [false, true], "refused for ten seconds");
        assert_eq!(reported(&[(1, 1), (1, 600)]), [false, true], "the longest wait between two attempts is five minutes");
        assert_eq!(reported(&[(1, 1), (2, 601), (3, 1_201), (3, 1_211)]), [false, false, false, true], "refusals of long ago do not count");
    }

    #[test]
    fn a_poisonous_event_between_accepted_ones_is_no_outage() {
        let (mut destination, second) = (Destination::default(), Duration::from_secs(1));
        for secs in 1..100 {
            for _ in 0..2 {
                destination.refused(0, &[1], "503", second, at(secs));
            }
            assert!(!destination.is_refusing());
            destination.accepted(at(secs));
        }
        // A permanent refusal also shows that it is up.
        let changes: [fn(&mut Destination); 2] = [|destination| destination.accepted(at(101)), Destination::answered];
        for change in changes {
            for _ in 0..3 {
                destination.refused(0, &[1], "503", second, at(100));
            }
            assert_eq!((destination.is_refusing(), destination.said()), (true, "503"));
            change(&mut destination);
            assert!(!destination.is_refusing());
        }
    }

    #[test]
    fn what_is_put_off_waits_for_the_probe_and_is_not_charged_for_it() {
        let mut destination = Destination::default();
        let (second, mut head) = (Duration::from_secs(1), HeadState { attempts: 2, failures: 5, ..HeadState::default() });
        destination.refused(0, &[1, 2, 3], "503", second, at(1));
        for jitter in [0, u64::MAX] {
            let HeadUpdate::Retry { sequence: 9, attempts: 2, failures: 5, retry_in, error } =
                destination.put_off(head, 9, second, at(1), jitter)
            else {
                panic!("charged")
            };
            assert!(retry_in >= second && retry_in <= 2 * second && error == "503", "{retry_in:?} {error}");
        }
        // The event was put off without being tried, and others were accepted: its first attempt is not charged.
        destination.accepted(at(3));
        head = HeadState { attempted_at: Some(at(1)), failing_since: Some(at(1)), ..HeadState::default() };
        let verdict = destination.verdict(&Refusal::retryable("503"), head, 9, &options(), at(4), 0);
        assert!(matches!(verdict, HeadUpdate::Retry { attempts: 0, failures: 1, .. }), "{verdict:?}");
    }

    proptest! {
        #[test]
        fn waits_grow_stay_bounded_and_heed_the_destination(failures in 0u32..100, jitter: u64, after in 0u64..1_000) {
            let head = HeadState { failures, ..HeadState::default() };
            let refusal = Refusal { retry_after: Some(Duration::from_secs(after)), ..Refusal::retryable("busy") };
            let verdict = Destination::default().verdict(&refusal, head, 1, &options(), at(1), jitter);
            let HeadUpdate::Retry { attempts, retry_in, .. } = verdict else { panic!("{verdict:?}") };
            prop_assert_eq!(attempts, 0);
            prop_assert!(retry_in >= Duration::from_millis(500).max(Duration::from_secs(after.min(300))));
            prop_assert!(retry_in <= RETRY_DELAY_MAX);
        }
    }
}
