//! Renewing as a store in a file has it: the record is compared with a moment read before, and afterwards the clock is read again. A
//! renewal that was carried out too late is undone, and nothing that was written after it.

use std::time::Duration;

use shardwise_core::mistakes::undoes_by_incarnation;

use super::MemoryBackend;
use super::groups::StoredRecord;
use crate::{Error, ErrorKind, Grant, RecordId, Result};

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
    let (previous, renewed) = backend.with_groups("renew", |groups, _| {
        let stored = groups.own(record_id, started, "renew")?;
        let previous = stored.ends;
        stored.ends = previous.max(started.plus(ttl));
        stored.renewals += 1;
        Ok((previous, (stored.member.joined, stored.renewals)))
    })?;
    stall(backend).await;
    if backend.clock.now() < previous {
        return Ok(Grant { started, ttl });
    }
    // Deletes what the renewal left, unless that was registered or renewed since. Behind a cut connection it stays until it ends by itself.
    let _ = backend.with_groups("renew", |groups, now| {
        let is_same = |stored: &mut StoredRecord| (stored.member.joined, stored.renewals) == renewed || undoes_by_incarnation();
        if groups.there(record_id, now).is_some_and(is_same) {
            groups.remove(record_id);
        }
        Ok(())
    });
    Err(Error::new(ErrorKind::Lost, "renew", format!("the record of {:?} was renewed too late; register again", record_id.instance_id)))
}

async fn stall(backend: &MemoryBackend) {
    if let Some(stall) = &backend.stall {
        tokio::time::sleep(stall()).await;
    }
}
