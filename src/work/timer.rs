//! Periodic jobs, each fired on one member. A note of the group records the last period fired, so that none is fired twice, whichever
//! member holds the timer.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shardwise_core::{ClaimName, Epoch};
use shardwise_discovery::{Clock, Note, WriteOutcome};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::named::{NamedRunner, NamedWorkContext, Tenure, claim_name, note_book};
use super::run::Run;
use crate::error::{Error, ErrorKind, Result};
use crate::membership::NoteBook;
use crate::service::ShardingService;

/// The shortest period of a timer: each one is a write in the backend.
pub const PERIOD_MIN: Duration = Duration::from_secs(1);
/// The longest period of a timer.
pub const PERIOD_MAX: Duration = Duration::from_hours(24 * 366);
/// The pause before a read or a write without an answer is retried.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// The time of day may jump, so it is read at least this often.
const POLL_EVERY: Duration = Duration::from_secs(10);

/// A job that is fired once in each period, by the member that holds the timer. Created by [`ShardingService::timer`].
#[derive(Clone)]
#[must_use = "nothing is fired before `run`"]
pub struct Timer {
    service: ShardingService,
    name: ClaimName,
    book: NoteBook,
    schedule: TimerSchedule,
}

/// One period of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period {
    /// Its start, in milliseconds since the start of 1970 (UTC).
    pub due_ms: u64,
    /// Its number, from 0 at the start of 1970. It counts periods of the present length.
    pub number: u64,
}

/// Length and phase, in milliseconds.
#[derive(Debug, Clone, Copy)]
struct TimerSchedule {
    every: u64,
    phase: u64,
}

impl TimerSchedule {
    const fn period(self, number: u64) -> Period {
        Period { due_ms: self.phase.saturating_add(number.saturating_mul(self.every)), number }
    }

    const fn at(self, now_ms: u64) -> Period {
        self.period(now_ms.saturating_sub(self.phase) / self.every)
    }

    const fn after(self, ms: u64) -> Period {
        if ms < self.phase { self.period(0) } else { self.period(self.at(ms).number.saturating_add(1)) }
    }
}

/// The content of the note: the last period fired.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct FiredNote {
    due_ms: u64,
    epoch: Epoch,
}

impl ShardingService {
    /// A timer with that name, fired once in each `period`: at the start of 1970 (UTC) and every `period` since, by the wall clock of the
    /// member that holds it; [`Timer::phase`] shifts that. The length counts in whole milliseconds.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`] if the policy's ownership is not exclusive, the name is invalid, the backend does not support notes, or
    /// the period is shorter than [`PERIOD_MIN`] or longer than [`PERIOD_MAX`].
    pub fn timer(&self, name: &str, period: Duration) -> Result<Timer> {
        let claim = claim_name(self.policy(), self.backend(), "timer", name, format!("timer/{name}"))?;
        if !(PERIOD_MIN..=PERIOD_MAX).contains(&period) {
            let message = format!("timer {name:?}: a period of {period:?} is not allowed; {PERIOD_MIN:?} to {PERIOD_MAX:?} are");
            return Err(Error::new(ErrorKind::Settings, message));
        }
        let book = note_book(self.policy(), self.backend(), self.membership().timing.renew_every, claim.clone())?;
        Ok(Timer { service: self.clone(), name: claim, book, schedule: TimerSchedule { every: millis(period), phase: 0 } })
    }
}

impl Timer {
    /// Delays the start of each period: a daily timer with a phase of two hours is fired at 02:00 UTC. A phase that is not shorter than the
    /// period is an [`ErrorKind::Settings`].
    pub fn phase(mut self, phase: Duration) -> Result<Self> {
        if millis(phase) >= self.schedule.every {
            let message = format!("{}: the phase {phase:?} is not shorter than the period of {} ms", self.name, self.schedule.every);
            return Err(Error::new(ErrorKind::Settings, message));
        }
        self.schedule.phase = millis(phase);
        Ok(self)
    }

    /// Runs `job(period, tenure)` once in each period, on the member that holds the timer. Every member runs the same timer.
    ///
    /// - No period is fired twice. It is recorded as fired before the job starts; a member that dies after that leaves the job undone.
    /// - A period in which a member holds the timer is fired, late if it had started before. One that passed while none held it is
    ///   skipped, and so is one that starts while a job runs. The first period of a new timer is the next one to start.
    /// - If a job fails or panics, that is logged, and the next period is fired as usual.
    /// - While the note cannot be read, or is invalid, nothing is fired.
    ///
    /// When the timer goes to another member, [`Tenure::cancel`] is cancelled, and the job is dropped where it awaits after
    /// `drain_timeout`. The service must be registered, before or after this call.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn run<F, W, E>(&self, job: F) -> Run
    where
        F: Fn(Period, Tenure) -> W + Send + Sync + 'static,
        W: Future<Output = std::result::Result<(), E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        let (work_context, job) = (NamedWorkContext::of(&self.service), Arc::new(job));
        let (book, schedule, clock) = (self.book.clone(), self.schedule, work_context.context.clock.clone());
        let work = move |tenure: Tenure| {
            let timer_holder = TimerHolder {
                book: book.clone(),
                schedule,
                clock: clock.clone(),
                tenure,
                job: Arc::clone(&job),
                last_ended_ms: 0,
                warned: false,
            };
            timer_holder.run()
        };
        Run::spawn(|stop| NamedRunner::new(work_context, self.name.clone(), stop, work).run())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

struct TimerHolder<F> {
    book: NoteBook,
    schedule: TimerSchedule,
    clock: Clock,
    tenure: Tenure,
    job: Arc<F>,
    /// When the last job ended, by the wall clock, in milliseconds: periods that had started by then are skipped.
    last_ended_ms: u64,
    /// Whether the warning that the note is ahead was logged.
    warned: bool,
}

/// The content of the note, and the version to overwrite.
struct LastFired {
    fired: FiredNote,
    version: u64,
}

impl<F, W, E> TimerHolder<F>
where
    F: Fn(Period, Tenure) -> W + Send + Sync + 'static,
    W: Future<Output = std::result::Result<(), E>> + Send + 'static,
    E: Display + Send + 'static,
{
    /// Runs until the timer goes to another member. Errors are retried after a pause.
    async fn run(mut self) -> Result<()> {
        let cancel = self.tenure.cancel().clone();
        let mut known = None;
        while !cancel.is_cancelled() {
            let last = match known.take() {
                Some(known) => known,
                None => self.known().await?,
            };
            let (now, last_due) = (self.now(), last.fired.due_ms);
            let running = self.schedule.at(now);
            let is_due = running.due_ms <= now && running.due_ms > last_due && running.due_ms > self.last_ended_ms;
            if is_due {
                known = self.fire(running, last.version).await?;
                continue;
            }
            if last_due > now.saturating_add(self.schedule.every) && !std::mem::replace(&mut self.warned, true) {
                let name = self.book.name();
                tracing::warn!(%name, last_due, now, "the last period is far ahead of this clock; nothing is fired until then, or the note is corrected");
            }
            let next = self.schedule.after(now.max(last_due));
            if wait(&cancel, Duration::from_millis(next.due_ms.saturating_sub(now))).await {
                known = Some(last);
            }
        }
        Ok(())
    }

    /// The last period fired; for a new timer, the one that is running now.
    async fn known(&self) -> Result<LastFired> {
        let note = self.retried(|| self.book.read()).await?;
        if let Some(note) = note {
            return self.decoded(&note);
        }
        let fired = FiredNote { due_ms: self.schedule.at(self.now()).due_ms, epoch: self.tenure.epoch() };
        let version = self.written(&fired, 0).await?.ok_or_else(|| self.overtaken())?;
        Ok(LastFired { fired, version })
    }

    /// Records the period as fired and runs its job; does nothing if the record is uncertain.
    async fn fire(&mut self, period: Period, version: u64) -> Result<Option<LastFired>> {
        let fired = FiredNote { due_ms: period.due_ms, epoch: self.tenure.epoch() };
        let Some(version) = self.written(&fired, version).await? else { return Ok(None) };
        // The write may have taken long.
        if !self.tenure.is_held() || self.tenure.cancel().is_cancelled() {
            tracing::warn!(name = %self.book.name(), period = period.number, "the timer was lost before this period fired: the period is skipped");
            return Ok(None);
        }
        let (job, tenure) = (Arc::clone(&self.job), self.tenure.clone());
        // A separate task, so that a panic ends only that; dropped with this future.
        let task = AbortOnDropHandle::new(tokio::spawn(async move { job(period, tenure).await }));
        let (name, number) = (self.book.name(), period.number);
        match task.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%name, period = number, %error, "a timer's job failed; the next period goes on"),
            Err(_) => tracing::error!(%name, period = number, "a timer's job panicked; the next period goes on"),
        }
        self.last_ended_ms = self.now();
        Ok(Some(LastFired { fired, version }))
    }

    /// Retries the write over that version until its outcome is known. After a lost answer, the same text proves that this write
    /// succeeded: no other writer has its epoch, and of two runs in one worker only one is active.
    async fn written(&self, fired: &FiredNote, version: u64) -> Result<Option<u64>> {
        let text = serde_json::to_string(fired).map_err(|error| Error::new(ErrorKind::Backend, error.to_string()))?;
        Ok(match self.retried(|| self.book.write(version, &text)).await? {
            WriteOutcome::Written(version) => Some(version),
            WriteOutcome::Other(_) => None,
        })
    }

    /// Calls the backend until it answers, at a constant pause: with one that doubles, a few lost answers would cost whole periods.
    async fn retried<T, C: Future<Output = std::result::Result<T, shardwise_discovery::Error>>>(&self, call: impl Fn() -> C) -> Result<T> {
        loop {
            match call().await {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_retryable() && !self.tenure.cancel().is_cancelled() => {
                    wait(self.tenure.cancel(), RETRY_PAUSE).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn decoded(&self, note: &Note) -> Result<LastFired> {
        let fired: FiredNote = serde_json::from_str(&note.text).map_err(|_| {
            let said = shardwise_discovery::one_line(&note.text);
            let message = format!(
                "{}: the last period cannot be read: {said:?}; the note was edited by hand; nothing is fired until it is corrected or deleted",
                self.book.name()
            );
            Error::new(ErrorKind::Backend, message)
        })?;
        if fired.epoch > self.tenure.epoch() {
            return Err(self.overtaken());
        }
        Ok(LastFired { fired, version: note.version })
    }

    fn overtaken(&self) -> Error {
        Error::new(ErrorKind::Conflict, format!("{}: another member has written under a later epoch", self.book.name()))
    }

    fn now(&self) -> u64 {
        millis(self.clock.since_1970())
    }
}

/// Waits for `left`, but not longer than the wall clock can be trusted. Returns whether the wait is complete.
async fn wait(cancel: &CancellationToken, left: Duration) -> bool {
    tokio::select! {
        // A fixed order, so that a seed reproduces a run.
        biased;
        () = cancel.cancelled() => true,
        () = tokio::time::sleep(left.min(POLL_EVERY)) => left <= POLL_EVERY,
    }
}
