//! What the driver does with the member's record: write it, keep it alive, change what it says, delete it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use shardwise_core::machine::{Failure, Input, Op};
use shardwise_core::{Loss, Missing, ServiceState};
use shardwise_discovery::{Discovery, Error, ErrorKind, Registration, Seat};
use tokio::task::JoinHandle;

use super::{Answer, Driver};
use crate::calls::limited;

/// How often a change of what the record says is tried, and the pause between two tries.
const MARK_ATTEMPTS: u32 = 3;
const MARK_PAUSE: Duration = Duration::from_millis(100);
/// How long leaving may take beyond the drain: the record dies by its TTL anyway.
const DEREGISTER_LIMIT: Duration = Duration::from_secs(2);

impl Driver {
    /// Starts a call and gives up the one before, whose answer nobody waits for any more. A record written by a call that was given up
    /// dies with its TTL.
    pub(super) fn call(&mut self, op: Op, attempt: u64) {
        if let Some(earlier) = self.call.take() {
            earlier.abort();
        }
        let (backend, registration) = (Arc::clone(&self.backend), self.registration.clone());
        let limit = match op {
            Op::Register => self.shared.timing.ttl,
            Op::Renew => self.shared.timing.renew_every,
        };
        self.call = Some(self.answers.spawn(async move {
            let answer = match op {
                Op::Register => limited(limit, &*backend, "register", async { backend.register(&registration).await }).await,
                Op::Renew => {
                    limited(limit, &*backend, "renew", async { backend.renew(&registration.seat(), registration.ttl).await }).await
                }
            };
            match (answer, op) {
                (Ok(grant), Op::Register) => Input::Registered { attempt, started: grant.started, ttl: grant.ttl }.into(),
                (Ok(grant), Op::Renew) => Input::Renewed { attempt, started: grant.started, ttl: grant.ttl }.into(),
                (Err(error), _) => Answer { input: failed(attempt, &error), error: Some(error) },
            }
        }));
    }

    pub(super) fn look(&mut self) {
        let (backend, group, limit) = (Arc::clone(&self.backend), self.registration.group.clone(), self.shared.timing.renew_every);
        self.answers.spawn(async move {
            match limited(limit, &*backend, "members", async { backend.members(&group).await }).await {
                Ok(snapshot) => Input::Viewed { view: snapshot.view, proven: snapshot.proven }.into(),
                // The watch will tell.
                Err(_) => Input::Woken.into(),
            }
        });
    }

    pub(super) fn mark_loss(&mut self, missing: Vec<Missing>) {
        if !missing.is_empty() && self.registration.member.loss.is_none() {
            tracing::warn!(
                policy = %self.shared.policy.name,
                missing = missing.len(),
                "more members have vanished within one TTL than max_loss allows: nobody takes over what they had until enough are back; \
                 if they are gone for good, run shardwise confirm-loss"
            );
        }
        self.registration.member.loss = (!missing.is_empty()).then_some(Loss::Missing(missing));
        self.mark_again();
    }

    /// Says in the record what ought to stand there, if the last try did not succeed: the others go by it.
    pub(super) fn mark_if_missed(&mut self) {
        let idle = self.marking.as_ref().is_none_or(JoinHandle::is_finished);
        if idle && !self.marked.load(Ordering::Relaxed) && self.machine.ownership().state() != ServiceState::Draining {
            self.mark_again();
        }
    }

    fn mark_again(&mut self) {
        self.mark(self.registration.clone(), "could not tell the others which members are missing; it is tried again");
    }

    /// Changes what the record says, after whatever change is still on its way.
    pub(super) fn mark(&mut self, registration: Registration, or_else: &'static str) {
        let (backend, limit, earlier) = (Arc::clone(&self.backend), self.shared.timing.renew_every, self.marking.take());
        self.marked.store(false, Ordering::Relaxed);
        let marked = Arc::clone(&self.marked);
        self.marking = Some(tokio::spawn(async move {
            if let Some(earlier) = earlier {
                // It has a time limit of its own, and nothing depends on what came of it.
                let _ = earlier.await;
            }
            for attempt in 1.. {
                match limited(limit, &*backend, "update", async { backend.update(&registration).await }).await {
                    Err(error) if error.is_retryable() && attempt < MARK_ATTEMPTS => tokio::time::sleep(MARK_PAUSE).await,
                    Err(error) => return tracing::warn!(%error, "{or_else}"),
                    Ok(()) => return marked.store(true, Ordering::Relaxed),
                }
            }
        }));
    }

    pub(super) fn deregister(&mut self) {
        if let Some(earlier) = self.call.take() {
            earlier.abort();
        }
        let (backend, seat, marking) = (Arc::clone(&self.backend), self.registration.seat(), self.marking.take());
        self.answers.spawn(async move {
            if let Some(marking) = marking {
                // It has a time limit of its own, and nothing depends on what came of it.
                let _ = marking.await;
            }
            deregister(&*backend, &seat).await;
            Input::Deregistered.into()
        });
    }
}

async fn deregister(backend: &dyn Discovery, seat: &Seat) {
    if let Err(error) = limited(DEREGISTER_LIMIT, backend, "deregister", async { backend.deregister(seat).await }).await {
        tracing::warn!(%error, "could not deregister; the record dies with its TTL");
    }
}

fn failed(attempt: u64, error: &Error) -> Input {
    let failure = match error.kind() {
        ErrorKind::Lost => return Input::RecordLost { attempt },
        ErrorKind::InUse { address, stamp } => Failure::InUse { address: address.clone(), stamp: *stamp },
        _ if error.is_retryable() => Failure::Retryable,
        _ => Failure::Permanent { message: error.to_string().into() },
    };
    Input::Failed { attempt, failure }
}
