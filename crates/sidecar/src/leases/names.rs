//! The singletons, daemons and timers that the worker offers.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use serde::{Deserialize, Serialize};
use shardwise::{Period, Run, Tenure};
use utoipa::ToSchema;

use super::lease::leasable;
use super::{Leases, refused, shown};
use crate::app::{App, PolicyPath};
use crate::body;
use crate::problem::{BAD_REQUEST, Result};

/// The most names and sets of one offer.
const OFFERS_MOST: usize = 64;

/// What the worker can do under a name.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OfferRequest {
    /// The names of singletons.
    #[serde(default)]
    #[schema(max_items = 64)]
    singletons: Vec<String>,
    /// The sets of daemons; the set without a name is "". `shardwise daemons` sets their number.
    #[serde(default)]
    #[schema(max_items = 64)]
    daemons: Vec<String>,
    #[serde(default)]
    #[schema(max_items = 64)]
    timers: Vec<OfferedTimer>,
}

/// A timer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OfferedTimer {
    name: String,
    /// The length of a period in milliseconds.
    #[schema(minimum = 1_000)]
    every_ms: u64,
    /// How much later than the start of 1970 (UTC) the first period starts, in milliseconds.
    #[serde(default)]
    phase_ms: u64,
}

/// What is offered now.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Offered {
    /// How many singletons, sets of daemons and timers.
    names: usize,
}

/// Offer to run singletons, daemons and timers.
///
/// Replaces what this lease offered before. What this member then holds appears among the grants; each period of a timer is a grant, which
/// ends with `grants/finished`.
#[utoipa::path(
    put, path = "/v1/policies/{policy}/names", tag = "worker",
    request_body(content = OfferRequest, content_type = "application/json"),
    params(("shardwise-lease" = String, Header, description = "The id of the worker's lease")),
    responses((status = 200, description = "It is offered", body = Offered))
)]
pub(crate) async fn offer(State(app): State<Arc<App>>, PolicyPath(joined): PolicyPath, request: Request) -> Result<Json<Offered>> {
    let leases = leasable(&joined)?;
    leases.grants_anything()?;
    let id = shown(request.headers())?;
    let offer: OfferRequest = body::json(&app, request).await?;
    let names = offer.singletons.len() + offer.daemons.len() + offer.timers.len();
    if names > OFFERS_MOST || offer.has_twins() {
        return Err(BAD_REQUEST.because(format!("at most {OFFERS_MOST} names in all, each of a kind once")));
    }
    let lease = leases.update(|state, now| state.check(now, id).map(|()| state.live().unwrap_or_default())).map_err(refused)?;
    let runs = {
        // The runs live as long as the service, on its runtime.
        let _on = app.renewals.enter();
        offer.runs(leases, lease)?
    };
    // Together with the check that the lease is still live: its end drops them.
    let earlier = leases.update(|state, now| {
        state.check(now, id)?;
        Ok(std::mem::replace(&mut *leases.offers.lock().unwrap_or_else(PoisonError::into_inner), (lease, runs)))
    });
    drop(earlier.map_err(refused)?);
    Ok(Json(Offered { names }))
}

impl OfferRequest {
    fn has_twins(&self) -> bool {
        let timers: BTreeSet<&str> = self.timers.iter().map(|timer| timer.name.as_str()).collect();
        let (singletons, daemons): (BTreeSet<_>, BTreeSet<_>) = (self.singletons.iter().collect(), self.daemons.iter().collect());
        (timers.len(), singletons.len(), daemons.len()) != (self.timers.len(), self.singletons.len(), self.daemons.len())
    }

    fn runs(&self, leases: &Arc<Leases>, lease: u64) -> Result<Vec<Run>> {
        let service = leases.service.clone();
        let leases = Arc::clone(leases);
        let work = move |tenure: Tenure, period: Option<Period>| {
            let leases = Arc::clone(&leases);
            async move {
                leases.hold_name(lease, tenure, period).await;
                Ok::<(), String>(())
            }
        };
        let mut runs = Vec::new();
        for name in &self.singletons {
            let work = work.clone();
            runs.push(service.singleton(name)?.run(move |tenure| work(tenure, None)));
        }
        for set in &self.daemons {
            let work = work.clone();
            runs.push(service.daemons(set)?.run(move |_, tenure| work(tenure, None)));
        }
        for OfferedTimer { name, every_ms, phase_ms } in &self.timers {
            let work = work.clone();
            let timer = service.timer(name, Duration::from_millis(*every_ms))?.phase(Duration::from_millis(*phase_ms))?;
            runs.push(timer.run(move |period, tenure| work(tenure, Some(period))));
        }
        Ok(runs)
    }
}

impl Leases {
    /// What is offered under a lease that is not live any more.
    pub(super) fn offers_of_ended_lease(&self) -> Vec<Run> {
        self.update(|state, _| {
            let mut offers = self.offers.lock().unwrap_or_else(PoisonError::into_inner);
            if Some(offers.0) == state.live() { Vec::new() } else { std::mem::take(&mut offers.1) }
        })
    }
}
