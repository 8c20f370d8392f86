//! Carries out actions on claims: acquires, releases and follows them, and signals the work under them.

use std::future::Future;
use std::sync::Arc;

use shardwise_core::holdings::{CallFailure, ClaimAction};
use shardwise_core::machine::{ClaimInput, Input};
use shardwise_core::{Epoch, Resource};
use shardwise_discovery::{Claims, ClaimsEvent, Discovery, Error, ErrorKind};
use tracing::{Instrument, Span};

use super::{CallOutcome, Driver};
use crate::membership::calls::limited;

/// No service is created with exclusive ownership over a backend without claims.
fn able(backend: &dyn Discovery) -> Result<&dyn Claims, Error> {
    let unable = || Error::new(ErrorKind::Misconfigured, "claims", "this backend has none; choose another one or ownership = \"eventual\"");
    backend.as_claims().ok_or_else(unable)
}

impl Driver {
    pub(super) fn claim(&mut self, action: ClaimAction) {
        let guards = &self.membership.guards;
        match action {
            ClaimAction::OpenStore { attempt } => self.open_store(attempt),
            ClaimAction::Acquire { attempt, wanted } => self.acquire(attempt, wanted),
            ClaimAction::Release { attempt, held } => self.release(attempt, held),
            ClaimAction::Gained(_) => {}
            ClaimAction::Kept(resources) => {
                guards.keep(&resources);
                if guards.gives_nothing() {
                    self.giving = Span::none();
                }
            }
            ClaimAction::Drain(resources) => {
                if self.giving.is_none() {
                    self.giving = tracing::info_span!(
                        "handover",
                        "shardwise.policy" = %self.membership.policy.name,
                        "shardwise.direction" = "lose",
                        "shardwise.slots" = resources.len()
                    );
                }
                guards.drain(resources);
            }
            ClaimAction::Cancel(resources) => {
                let now = self.membership.clock.now();
                for (resource, in_flight, since) in guards.cancel(&resources) {
                    tracing::warn!(
                        policy = %self.membership.policy.name, %resource, in_flight, age = ?now.since(since),
                        "work did not end within drain_timeout and was cancelled; until it does, on_drain_timeout decides who has the slot"
                    );
                }
            }
            ClaimAction::Lost(resources) => {
                self.giving = Span::none();
                tracing::warn!(policy = %self.membership.policy.name, claims = resources.len(), "this worker has lost claims");
                guards.revoke(&resources);
            }
            ClaimAction::Overlap(resources) => {
                let running = guards.cancel(&resources).len();
                if running > 0 {
                    self.meters.overlapped(running);
                    let policy = &self.membership.policy.name;
                    tracing::warn!(%policy, running, "slots were given away while work in them still ran (on_drain_timeout = \"release\")");
                }
                guards.revoke(&resources);
            }
        }
    }

    fn open_store(&mut self, attempt: u64) {
        let (backend, group, floor) = (Arc::clone(&self.backend), self.registration.group.clone(), self.membership.policy.epoch_floor);
        self.ask(attempt, "claim_store", async move {
            let store = able(&*backend)?.claim_store(&group, floor).await?;
            Ok(ClaimInput::Opened { attempt, store })
        });
    }

    fn acquire(&mut self, attempt: u64, wanted: Vec<Resource>) {
        // The machine acquires only once it knows the store.
        let Some(store) = self.machine.claim_store() else { return };
        let (backend, record_id, handover) = (Arc::clone(&self.backend), self.registration.record_id(), self.meters.handover());
        let _within = handover.enter();
        self.ask(attempt, "acquire", async move {
            let answers = able(&*backend)?.acquire(&record_id, &store, &wanted).await?;
            Ok(ClaimInput::Acquired { attempt, answers })
        });
    }

    fn release(&mut self, attempt: u64, held: Vec<(Resource, Epoch)>) {
        let (backend, record_id, giving) = (Arc::clone(&self.backend), self.registration.record_id(), self.giving.clone());
        // What has no work is released at once, the rest when its work ends; the last release ends the span.
        if self.membership.guards.oldest_drain().is_none() {
            self.giving = Span::none();
        }
        let _within = giving.enter();
        self.ask(attempt, "release", async move {
            able(&*backend)?.release(&record_id, &held).await?;
            Ok(ClaimInput::Released { attempt })
        });
    }

    /// A call about claims that takes longer than a lease is abandoned: the watch finds whatever it claimed.
    fn ask(&mut self, attempt: u64, operation: &'static str, call: impl Future<Output = Result<ClaimInput, Error>> + Send + 'static) {
        let (backend, limit) = (Arc::clone(&self.backend), self.membership.timing.ttl);
        let asked = async move {
            match limited(limit, &*backend, operation, call).await {
                Ok(input) => Input::Claims(input).into(),
                Err(error) => {
                    CallOutcome { input: Input::Claims(ClaimInput::Failed { attempt, failure: failure(&error) }), error: Some(error) }
                }
            }
        };
        self.answers.spawn(asked.in_current_span());
    }

    pub(super) fn complain_of_claims(&mut self, error: &Error) {
        let reason = error.to_string();
        if self.claims_complaint.as_ref() != Some(&reason) {
            tracing::warn!(%error, retryable = error.is_retryable(), "the discovery backend failed about claims");
            self.claims_complaint = Some(reason);
        }
    }

    pub(super) fn on_claims(&mut self, event: Result<ClaimsEvent, Error>) -> Option<Input> {
        self.membership.holders.update(self.membership.clock.now(), &event);
        match event {
            Ok(ClaimsEvent::All { claims, .. }) => Some(Input::Claims(ClaimInput::All(claims))),
            Ok(ClaimsEvent::Changed { changes, .. }) => {
                Some(Input::Claims(ClaimInput::Changed(changes.into_iter().map(|change| (change.resource, change.claim)).collect())))
            }
            Ok(_) => None,
            Err(error) => {
                self.meters.failed(&error);
                self.complain_of_claims(&error);
                None
            }
        }
    }
}

fn failure(error: &Error) -> CallFailure {
    match error.kind() {
        ErrorKind::OtherStore => CallFailure::OtherStore,
        _ if error.is_retryable() => CallFailure::Retryable,
        _ => CallFailure::Permanent(error.to_string().into()),
    }
}
