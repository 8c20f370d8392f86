//! Wrappers: any backend in, the same contract out.

mod faults;
mod faulty_watch;
mod retry;
mod timeout;
mod traced;

use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use shardwise_core::GroupName;

use crate::{Claims, ClaimsStream, Discovery, Error, ErrorKind, Notes, Result};

pub use faults::{Fault, FaultRates, Faults};
pub use retry::Retry;
pub use timeout::Timeout;
pub use traced::Traced;

/// The claims of a wrapped backend. A wrapper without any does not show itself as [`Claims`], so only a caller who knows its type gets here.
fn claims_of<'a>(inner: &'a impl Discovery, operation: &'static str) -> Result<&'a dyn Claims> {
    let none = || Error::new(ErrorKind::Misconfigured, operation, format!("the backend {} has no claims", inner.capabilities().name));
    inner.as_claims().ok_or_else(none)
}

/// The notes of a wrapped backend, likewise.
fn notes_of<'a>(inner: &'a impl Discovery, operation: &'static str) -> Result<&'a dyn Notes> {
    let none = || Error::new(ErrorKind::Misconfigured, operation, format!("the backend {} has no notes", inner.capabilities().name));
    inner.as_notes().ok_or_else(none)
}

fn watched_claims(inner: &impl Discovery, group: &GroupName, prove_every: Duration) -> ClaimsStream {
    match claims_of(inner, "watch_claims") {
        Ok(claims) => claims.watch_claims(group, prove_every),
        Err(error) => stream::iter([Err(error)]).boxed(),
    }
}
