//! The application of the demo: writes events into the outbox at a steady rate, made ones or real ones.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use shardwise_outbox::{HEADERS_BYTES_MAX, NewEvent, PAYLOAD_BYTES_MAX, SqliteStore};
use tokio::time::Instant;

use super::ledger::Ledger;
use crate::events;
use crate::exit::{Code, Failure, Result};

/// The most real events; they are read before the demo begins.
const REAL_EVENTS_MAX: usize = 1_000_000;
/// The most events of one transaction.
const TRANSACTION_MAX: u64 = 500;
/// The most transactions of one turn.
const TRANSACTIONS_MAX: usize = 50;
/// The least time that real events are stretched over, in TTLs, so that a takeover and a handover fit in.
const REAL_TTLS: u32 = 4;

enum Source {
    Made { aggregates: u64 },
    Real(VecDeque<NewEvent>),
}

pub(super) struct Writer {
    source: Source,
    /// From one event to the next.
    interval: Duration,
    /// Events to write at least.
    pub(super) planned: u64,
    /// Lines of a file that were no events.
    pub(super) refused: u64,
    pub(super) written: u64,
    /// Events that the store could not take just now.
    waiting: Vec<NewEvent>,
    started: Instant,
}

impl Writer {
    pub(super) fn made(events: u64, aggregates: u64, rate: u64) -> Self {
        Self::new(Source::Made { aggregates }, events, interval(rate))
    }

    /// Reads all events of `from`; refused lines are told and counted. They are written slowly enough for both changes to fit in.
    pub(super) async fn real(from: &Path, rate: u64, ttl: Duration) -> Result<Self> {
        let mut lines = events::open(from)?;
        let (mut real, mut refused) = (VecDeque::new(), 0);
        while let Some(line) = lines.recv().await {
            let line = line.map_err(|error| events::unreadable(from, &error))?;
            match line.event.and_then(within_limits) {
                Ok(mut event) => {
                    event.id = event.id.or_else(|| Some(format!("line-{}", line.number)));
                    real.push_back(event);
                }
                Err(why) => {
                    refused += 1;
                    crate::output::note(format_args!("line {}: {why}", line.number));
                }
            }
            if real.len() > REAL_EVENTS_MAX {
                return Err(Failure::new(Code::Usage, format!("--from has more than {REAL_EVENTS_MAX} events; give it fewer")));
            }
        }
        if real.is_empty() {
            return Err(Failure::new(
                Code::Usage,
                "--from has no event; each line is {\"aggregatetype\":…,\"aggregateid\":…,\"type\":…,\"payload\":…}",
            ));
        }
        let planned = real.len() as u64;
        let slow_enough = (ttl * REAL_TTLS).div_f64(planned as f64);
        let mut writer = Self::new(Source::Real(real), planned, interval(rate).max(slow_enough));
        writer.refused = refused;
        Ok(writer)
    }

    fn new(source: Source, planned: u64, interval: Duration) -> Self {
        Self { source, interval, planned, refused: 0, written: 0, waiting: Vec::new(), started: Instant::now() }
    }

    /// The clock of the rate begins to run.
    pub(super) fn start(&mut self) {
        self.started = Instant::now();
    }

    /// Writes what is due by now. Beyond the plan only if `go_on`, and real ones never.
    pub(super) async fn write_due(&mut self, store: &SqliteStore, ledger: &mut Ledger, go_on: bool) -> Result<()> {
        let due = u64::try_from(self.started.elapsed().as_nanos() / self.interval.as_nanos().max(1)).unwrap_or(u64::MAX);
        let due = if go_on { due } else { due.min(self.planned) };
        for _ in 0..TRANSACTIONS_MAX {
            self.write_up_to(due, store, ledger).await?;
            let exhausted = matches!(&self.source, Source::Real(events) if events.is_empty());
            if self.written >= due || exhausted || !self.waiting.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Writes one transaction.
    async fn write_up_to(&mut self, due: u64, store: &SqliteStore, ledger: &mut Ledger) -> Result<()> {
        while self.written < due && (self.waiting.len() as u64) < TRANSACTION_MAX {
            let Some(event) = self.next() else { break };
            let id = event.id.clone().unwrap_or_default();
            self.written += 1;
            if ledger.written(&id, &event.key()) {
                self.waiting.push(event);
            } else {
                self.refused += 1;
                crate::output::note(format_args!("the id {id:?} comes twice; the second event was left out"));
            }
        }
        if self.waiting.is_empty() {
            return Ok(());
        }
        match store.enqueue_all(self.waiting.clone()).await {
            Ok(_) => self.waiting.clear(),
            // The machine is busy, and so is the writer of the application: it tries again at its next turn.
            Err(error) if error.is_retryable() => tracing::info!(%error, "the writer waits"),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn next(&mut self) -> Option<NewEvent> {
        let n = self.written;
        match &mut self.source {
            Source::Made { aggregates } => {
                let order = n % *aggregates;
                let event = NewEvent::new("order", order.to_string(), "OrderChanged", format!(r#"{{"change":{}}}"#, n / *aggregates + 1));
                Some(event.with_id(format!("event-{n}")))
            }
            Source::Real(events) => events.pop_front(),
        }
    }
}

/// Refuses what the store would refuse in the middle of the demo.
fn within_limits(event: NewEvent) -> std::result::Result<NewEvent, String> {
    let headers = event.headers.as_ref().map_or(0, |headers| serde_json::to_vec(headers).map_or(usize::MAX, |json| json.len()));
    match event.payload.len() {
        bytes if bytes > PAYLOAD_BYTES_MAX => Err(format!("the payload has {bytes} bytes; at most {PAYLOAD_BYTES_MAX} are allowed")),
        _ if headers > HEADERS_BYTES_MAX => Err(format!("the headers have {headers} bytes; at most {HEADERS_BYTES_MAX} are allowed")),
        _ => Ok(event),
    }
}

/// The time between two events at `rate` events a second.
fn interval(rate: u64) -> Duration {
    Duration::from_secs(1).div_f64(rate as f64)
}
