//! Renewing as a store in a file has it: the record is compared with a moment read before, and afterwards the clock is read again. A
//! renewal that was carried out too late is undone, and nothing that was written after it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use shardwise_core::Moment;
use shardwise_core::mistakes::undoes_by_incarnation;

use super::MemoryBackend;
use crate::{Error, ErrorKind, Grant, RecordId, Result};

/// For how long a renewal stalls, asked each time.
#[derive(Clone)]
pub(super) struct Stall(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Stall {
    pub(super) fn new(stall: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(stall))
    }
}

impl fmt::Debug for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stall")
    }
}

/// A renewal as it was carried out: the record that it left, and when that would have ended without it.
struct RenewedRecord {
    previous: Moment,
    joined: u64,
    renewals: u64,
}

pub(super) async fn renew(backend: &MemoryBackend, record_id: &RecordId, ttl: Duration) -> Result<Grant> {
    if backend.stall.is_none() {
        return in_steps(backend, record_id, ttl).await;
    }
    let (backend, record_id) = (backend.clone(), record_id.clone());
    let task = tokio::spawn(async move { in_steps(&backend, &record_id, ttl).await });
    task.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, "renew", "the runtime is shutting down")))
}

async fn in_steps(backend: &MemoryBackend, record_id: &RecordId, ttl: Duration) -> Result<Grant> {
    let started = backend.clock.now();
    stall(backend).await;
    let renewed = write(backend, record_id, started, started.plus(ttl))?;
    stall(backend).await;
    if backend.clock.now() < renewed.previous {
        return Ok(Grant { started, ttl });
    }
    // Behind a cut connection the record stays until it ends by itself.
    let _ = undo(backend, record_id, &renewed);
    Err(Error::new(ErrorKind::Lost, "renew", format!("the record of {:?} was renewed too late; register again", record_id.instance_id)))
}

async fn stall(backend: &MemoryBackend) {
    if let Some(Stall(stall)) = &backend.stall {
        tokio::time::sleep(stall()).await;
    }
}

/// Keeps the record alive until `ends`, if it lived when the renewal began and it has not been deleted since.
fn write(backend: &MemoryBackend, record_id: &RecordId, started: Moment, ends: Moment) -> Result<RenewedRecord> {
    backend.with_groups("renew", |groups, _| {
        let stored = groups.own(record_id, started, "renew")?;
        let previous = stored.ends;
        stored.ends = previous.max(ends);
        stored.renewals += 1;
        Ok(RenewedRecord { previous, joined: stored.member.joined, renewals: stored.renewals })
    })
}

/// Deletes the record that the renewal left, unless it was registered or renewed since.
fn undo(backend: &MemoryBackend, record_id: &RecordId, renewed: &RenewedRecord) -> Result<()> {
    backend.with_groups("renew", |groups, now| {
        let is_same = |joined, renewals| (joined, renewals) == (renewed.joined, renewed.renewals) || undoes_by_incarnation();
        if groups.there(record_id, now).is_some_and(|stored| is_same(stored.member.joined, stored.renewals)) {
            groups.remove(record_id);
        }
        Ok(())
    })
}
