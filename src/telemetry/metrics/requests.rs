//! The metrics of requests: what a caller's requests come to, and what a member refuses and reports.

use std::sync::Arc;

#[cfg(feature = "requests")]
use ::metrics::Key;
use ::metrics::{Label, SharedString};
use shardwise_core::Policy;

use super::meters::count;
#[cfg(feature = "requests")]
use super::meters::{gauge, gauge_at};
#[cfg(feature = "requests")]
use super::{LOAD, REQUESTS, REQUESTS_WAITING, SESSIONS_OPEN, WIDE_KEYS};
use super::{REQUESTS_REFUSED, REQUESTS_UNFINISHED};

pub(crate) struct RequestMeters {
    policy: SharedString,
    /// Made once, because each request sets it.
    #[cfg(feature = "requests")]
    waiting: Key,
}

impl RequestMeters {
    pub(crate) fn new(policy: &Policy) -> Self {
        let policy: SharedString = Arc::<str>::from(policy.name.as_str()).into();
        Self {
            #[cfg(feature = "requests")]
            waiting: Key::from_parts(REQUESTS_WAITING.name, vec![Label::new("policy", policy.clone())]),
            policy,
        }
    }

    /// This member has refused a request.
    pub(crate) fn refused(&self, kind: &'static str) {
        count(&REQUESTS_REFUSED, vec![self.policy(), Label::from_static_parts("kind", kind)], 1);
    }

    /// A request that this member had accepted, and whose caller does not wait, was not handled to its end.
    pub(crate) fn unfinished(&self) {
        count(&REQUESTS_UNFINISHED, vec![self.policy()], 1);
    }

    /// A request of this caller has come to that.
    #[cfg(feature = "requests")]
    pub(crate) fn ended(&self, kind: &'static str, outcome: &'static str) {
        let labels = vec![self.policy(), Label::from_static_parts("kind", kind), Label::from_static_parts("outcome", outcome)];
        count(&REQUESTS, labels, 1);
    }

    /// How many requests of this caller wait.
    #[cfg(feature = "requests")]
    pub(crate) fn waiting(&self, waiting: usize) {
        gauge_at(&self.waiting, waiting as f64);
    }

    /// What this member reports and keeps.
    #[cfg(feature = "requests")]
    pub(crate) fn sample(&self, load: u32, wide_keys: usize, sessions: usize) {
        gauge(&LOAD, vec![self.policy()], f64::from(load));
        gauge(&WIDE_KEYS, vec![self.policy()], wide_keys as f64);
        gauge(&SESSIONS_OPEN, vec![self.policy()], sessions as f64);
    }

    fn policy(&self) -> Label {
        Label::new("policy", self.policy.clone())
    }
}
