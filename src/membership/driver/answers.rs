//! Turns the backend's answers into inputs for the machine, and logs each new failure once.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use shardwise_core::machine::{ClaimInput, Input};
use shardwise_discovery::Error;

use super::{CallOutcome, Driver};

impl Driver {
    pub(super) fn on_answer(&mut self, CallOutcome { input, error }: CallOutcome) -> Input {
        if let Some(error) = &error {
            self.meters.failed(error);
        }
        if let Input::Renewed { started, .. } = &input {
            self.meters.renewed(self.membership.clock.now(), *started, self.machine.ownership().deadline());
        }
        match (&input, error) {
            (Input::Claims(_), Some(error)) => {
                self.membership.failure.store(Some(Arc::new(error.to_string())));
                self.complain_of_claims(&error);
            }
            (Input::Claims(ClaimInput::Acquired { .. }), None) => self.claims_complaint = None,
            (_, Some(error)) => {
                self.complain(&error);
                if !error.is_retryable() {
                    self.answered();
                }
            }
            (Input::Registered { .. } | Input::Renewed { .. }, None) => {
                self.complaint = None;
                self.answered();
                if matches!(input, Input::Renewed { .. }) {
                    self.mark_if_missed();
                }
            }
            _ => {}
        }
        input
    }

    /// Records that the backend answers, if only with a refusal.
    pub(super) fn answered(&self) {
        self.membership.answered.store(true, Ordering::Relaxed);
    }

    fn complain(&mut self, error: &Error) {
        self.membership.failure.store(Some(Arc::new(error.to_string())));
        // All retryable errors count as one reason; others differ by their text, whatever the call.
        let said = if error.is_retryable() { String::new() } else { error.to_string() };
        let reason = said.strip_prefix(error.operation()).unwrap_or(&said).to_owned();
        if self.complaint.as_ref() != Some(&reason) {
            tracing::warn!(%error, retryable = error.is_retryable(), "the discovery backend failed");
            self.complaint = Some(reason);
        }
    }
}
