//! A model of writers that notify only where a publisher sleeps: whatever is committed is read soon, although `poll` is a minute.

use super::*;
use crate::AggregateId;

/// Everything must be read within this time of its commit: a poll every 25 ms, and the delays below.
const SOON_MS: u64 = 60;
const RUN_MS: u64 = 4_000;

/// A known mistake that a test puts back in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SleepMistake {
    /// The announcement is bounded by the end of a snapshot, which is above the last transaction that has ended, and not by a number that
    /// was given after it.
    EndOfSnapshot,
    /// The bound is taken before the announcement.
    BoundFirst,
}

/// A transaction: it gets its number, then reads whether a publisher sleeps, then ends.
struct ModelWriter {
    number: u64,
    reads_at: u64,
    ends_at: u64,
    commits: bool,
    seen: Option<u64>,
}

/// What the store does for a call, when its time has come.
enum ModelCall {
    Draw,
    Bound { ticket: u64, bound: Option<u64> },
    Ask(SleepTicket),
    Read,
    Answer(EngineInput),
}

struct SleepModel {
    now: u64,
    random: Jitter,
    mistake: Option<SleepMistake>,
    engine: Engine,
    next_number: u64,
    last_ended: u64,
    writers: Vec<ModelWriter>,
    /// When each event was committed that is not read yet.
    unread: Vec<u64>,
    events: AggregateId,
    asleep: u64,
    woken: u64,
    calls: Vec<(u64, ModelCall)>,
    /// Notifications on their way, and answers to them.
    told: Vec<(u64, u64)>,
    raised: Vec<(u64, u64)>,
    notifications: u64,
}

impl SleepModel {
    fn new(seed: u64, mistake: Option<SleepMistake>) -> Self {
        let options = PublisherOptions { poll: Duration::from_mins(1), batch: 1_000, ..options() };
        let mut engine = holding(options, SinkLimits::default());
        engine.on(EngineInput::Woken, at(2));
        Self {
            now: 2,
            random: Jitter::new(seed),
            mistake,
            engine,
            next_number: 100,
            last_ended: 99,
            writers: Vec::new(),
            unread: Vec::new(),
            events: 0,
            asleep: 0,
            woken: 0,
            calls: Vec::new(),
            told: Vec::new(),
            raised: Vec::new(),
            notifications: 0,
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.random.next() >> 16) % limit
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    fn end(&mut self, number: u64) {
        self.last_ended = self.last_ended.max(number);
    }

    fn write(&mut self) {
        // Quiet and busy times, and transactions short and long.
        if (self.now / 250).is_multiple_of(2) && self.below(12) == 0 {
            let number = self.number();
            let reads_at = self.now + self.below(3);
            let longest = if self.below(4) == 0 { 600 } else { 5 };
            let ends_at = reads_at + 1 + self.below(longest);
            let commits = self.below(5) > 0;
            self.writers.push(ModelWriter { number, reads_at, ends_at, commits, seen: None });
        }
        let (asleep, woken, now) = (self.asleep, self.woken, self.now);
        for writer in self.writers.iter_mut().filter(|writer| writer.reads_at == now) {
            writer.seen = (asleep > woken).then_some(asleep);
        }
        let ended: Vec<_> = self.writers.extract_if(.., |writer| writer.ends_at == now).collect();
        for writer in ended {
            self.end(writer.number);
            if writer.commits {
                self.unread.push(now);
                if let Some(seen) = writer.seen {
                    let due = now + self.below(3);
                    self.told.push((due, seen));
                }
            }
        }
    }

    fn notify(&mut self) {
        let told: Vec<_> = self.told.extract_if(.., |(due, _)| *due <= self.now).collect();
        for (_, seen) in told {
            self.notifications += 1;
            self.engine.on(EngineInput::Woken, at(self.now));
            let due = self.now + self.below(6);
            self.raised.push((due, seen));
        }
        let raised: Vec<_> = self.raised.extract_if(.., |(due, _)| *due <= self.now).collect();
        for (_, seen) in raised {
            self.woken = self.woken.max(seen);
        }
    }

    fn bound(&mut self) -> u64 {
        if self.mistake == Some(SleepMistake::EndOfSnapshot) {
            return self.last_ended + 1;
        }
        let own = self.number();
        self.end(own);
        own
    }

    fn execute(&mut self, call: ModelCall) {
        // The longer the announcement takes, the more writers begin between the mistaken bound and it.
        let slowly = if self.mistake == Some(SleepMistake::BoundFirst) { 40 } else { 6 };
        let due = self.now + self.below(slowly);
        let next = match call {
            ModelCall::Answer(input) => {
                self.engine.on(input, at(self.now));
                return;
            }
            ModelCall::Draw => {
                let bound = (self.mistake == Some(SleepMistake::BoundFirst)).then(|| self.bound());
                ModelCall::Bound { ticket: 0, bound }
            }
            ModelCall::Bound { ticket: 0, bound } => {
                self.asleep += 1;
                ModelCall::Bound { ticket: self.asleep, bound }
            }
            ModelCall::Bound { ticket, bound } => {
                let unseen_below = bound.unwrap_or_else(|| self.bound());
                ModelCall::Answer(EngineInput::FellAsleep(Some(SleepTicket { number: ticket, unseen_below })))
            }
            ModelCall::Ask(ticket) => {
                let oldest = self.writers.iter().map(|writer| writer.number).min().unwrap_or(self.next_number);
                ModelCall::Answer(EngineInput::Ended(oldest >= ticket.unseen_below))
            }
            ModelCall::Read => {
                let found = self.unread.drain(..).count();
                let runs = (0..found).map(|_| {
                    self.events += 1;
                    run(self.events, HOLD, 1..=1, 1)
                });
                ModelCall::Answer(EngineInput::Fetched(FetchResult { runs: runs.collect(), resume: None, more: false }))
            }
        };
        self.calls.push((due, next));
    }

    fn publish(&mut self) {
        loop {
            let due: Vec<_> = self.calls.extract_if(.., |(due, _)| *due <= self.now).collect();
            let actions = if due.is_empty() { self.engine.next(at(self.now)) } else { Vec::new() };
            if due.is_empty() && actions.is_empty() {
                return;
            }
            for (_, call) in due {
                self.execute(call);
            }
            for action in actions {
                let call = match action {
                    EngineAction::FallAsleep => ModelCall::Draw,
                    EngineAction::AskEnded(ticket) => ModelCall::Ask(ticket),
                    EngineAction::Fetch(_) => ModelCall::Read,
                    EngineAction::ReadMark => ModelCall::Answer(EngineInput::MarkRead(None)),
                    EngineAction::Place { .. } => ModelCall::Answer(EngineInput::Placed(0)),
                    other => ModelCall::Answer(other_answer(&other, at(self.now))),
                };
                let due = self.now + self.below(3);
                self.calls.push((due, call));
            }
        }
    }

    /// Whether some event was not read in time.
    fn is_late(&mut self) -> bool {
        while self.now < RUN_MS {
            self.now += 1;
            self.write();
            self.notify();
            self.publish();
            if self.unread.first().is_some_and(|committed| self.now - committed > SOON_MS) {
                return true;
            }
        }
        false
    }
}

#[test]
fn whatever_is_committed_is_read_soon_and_not_every_commit_notifies() {
    let (mut notifications, mut announced, mut events) = (0, 0, 0);
    for seed in 1..=200 {
        let mut model = SleepModel::new(seed, None);
        assert!(!model.is_late(), "seed {seed}: at {} ms {:?} are unread", model.now, model.unread);
        notifications += model.notifications;
        announced += model.asleep;
        events += model.events;
    }
    assert!(announced > 200 && notifications > 200 && notifications < events.unsigned_abs(), "{announced} {notifications} {events}");
}

#[test]
fn the_model_finds_announcements_that_writers_may_not_have_seen() {
    for mistake in [SleepMistake::EndOfSnapshot, SleepMistake::BoundFirst] {
        assert!((1..=1_000).any(|seed| SleepModel::new(seed, Some(mistake)).is_late()), "{mistake:?}");
    }
}
