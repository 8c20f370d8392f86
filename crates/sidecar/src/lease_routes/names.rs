//! The singletons, daemons and timers that the worker offers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use shardwise::{Period, Run, Tenure};
use utoipa::ToSchema;

use super::lease::leasable;
use crate::app::App;
use crate::body::{self, Whole};
use crate::daemons;
use crate::leases::Leases;
use crate::leases::offers::{OfferedWork, Offers};
use crate::path_parameters::PolicyPath;
use crate::problem::{BAD_REQUEST, CONFLICT, Result};

/// The most names of a kind in one offer.
const OFFERS_MAX: usize = 64;

/// What the worker can do under a name.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OfferRequest {
    /// The names of singletons.
    #[serde(default)]
    #[schema(max_items = 64)]
    singletons: Vec<String>,
    /// The sets of daemons; the set without a name is "". None of a set runs before its number is set: by `counts`, by an operator with
    /// `PUT …/daemons/{set}`, or by `shardwise daemons`.
    #[serde(default)]
    #[schema(max_items = 64)]
    daemons: Vec<String>,
    /// The number of daemons of sets in this offer, 0 to 1,024 each. It is stored unless the group has a number for that set already.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, u64>)]
    counts: BTreeMap<String, Whole>,
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
    #[schema(value_type = u64, minimum = 1_000)]
    every_ms: Whole,
    /// How much later than the start of 1970 (UTC) the first period starts, in milliseconds.
    #[serde(default)]
    #[schema(value_type = u64)]
    phase_ms: Whole,
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
    params(("shardwise-lease" = Option<String>, Header, description = "The id of the worker's lease")),
    responses((status = 200, description = "It is offered", body = Offered))
)]
pub(crate) async fn offer(State(app): State<Arc<App>>, PolicyPath(joined): PolicyPath, request: Request) -> Result<Json<Offered>> {
    let leases = leasable(&joined)?;
    leases.grants_anything()?;
    let id = leases.shown(request.headers())?;
    let offer: OfferRequest = body::json(&app, request).await?;
    let counts = offer.checked_counts()?;
    let offered = offer.offered()?;
    let lease = leases
        .update(|state, now| state.check(now, id).map(|_| state.live().unwrap_or_default()))
        .map_err(|refusal| leases.refused(refusal))?;
    // All are checked before one is begun.
    let work = offered.into_iter().map(|work| Ok((work.begin(leases, lease)?, work))).collect::<Result<Vec<_>>>()?;
    leases.set_missing_counts(&app, counts).await?;
    let withdrawn = {
        // Runs live as long as the service, on its runtime.
        let _on = app.renewals.enter();
        leases.update(|state, now| state.check(now, id).map(|_| leases.replace_offers(lease, work)))
    };
    let (names, withdrawn) = withdrawn.map_err(|refusal| leases.refused(refusal))?;
    drop(withdrawn);
    Ok(Json(Offered { names }))
}

impl OfferRequest {
    /// The sets with a count, each once.
    fn checked_counts(&self) -> Result<Vec<(String, u32)>> {
        let checked = |(set, count): (&String, &Whole)| {
            if !self.daemons.contains(set) {
                return Err(BAD_REQUEST.because(format!("counts has the set {set:?}, which is not among the daemons of this offer")));
            }
            Ok((set.clone(), daemons::allowed(*count)?))
        };
        self.counts.iter().map(checked).collect()
    }

    /// Each offer once.
    fn offered(self) -> Result<BTreeSet<OfferedWork>> {
        let Self { singletons, daemons, timers, counts: _ } = self;
        if [singletons.len(), daemons.len(), timers.len()].into_iter().any(|length| length > OFFERS_MAX) {
            return Err(BAD_REQUEST.because(format!("at most {OFFERS_MAX} names of a kind")));
        }
        let names: BTreeSet<&str> = timers.iter().map(|timer| timer.name.as_str()).collect();
        let timer = |OfferedTimer { name, every_ms, phase_ms }: &OfferedTimer| OfferedWork::Timer {
            name: name.clone(),
            every: Duration::from_millis(every_ms.0),
            phase: Duration::from_millis(phase_ms.0),
        };
        let different: BTreeSet<OfferedWork> = timers.iter().map(timer).collect();
        if different.len() != names.len() {
            return Err(CONFLICT.because("a timer of one name has two periods or phases"));
        }
        let named = singletons.into_iter().map(OfferedWork::Singleton).chain(daemons.into_iter().map(OfferedWork::Daemons));
        Ok(named.chain(different).collect())
    }
}

/// Begins the work; called inside the service's runtime.
type Begin = Box<dyn FnOnce() -> Run + Send>;

impl OfferedWork {
    fn begin(&self, leases: &Arc<Leases>, lease: u64) -> Result<Begin> {
        let held = Arc::clone(leases);
        let work = move |tenure: Tenure, period: Option<Period>| {
            let leases = Arc::clone(&held);
            async move {
                leases.hold_name(lease, tenure, period).await;
                Ok::<(), String>(())
            }
        };
        Ok(match self {
            Self::Singleton(name) => {
                let singleton = leases.service.singleton(name)?;
                Box::new(move || singleton.run(move |tenure| work(tenure, None)))
            }
            Self::Daemons(set) => {
                let daemons = leases.service.daemons(set)?;
                Box::new(move || daemons.run(move |_, tenure| work(tenure, None)))
            }
            Self::Timer { name, every, phase } => {
                let timer = leases.service.timer(name, *every)?.phase(*phase)?;
                Box::new(move || timer.run(move |period, tenure| work(tenure, Some(period))))
            }
        })
    }
}

impl Leases {
    /// Stores the counts of sets that have none yet. The daemons begin after that, because a set that begins without a number is logged.
    async fn set_missing_counts(&self, app: &App, counts: Vec<(String, u32)>) -> Result<()> {
        if counts.is_empty() {
            return Ok(());
        }
        let sets = counts.into_iter().map(|(set, count)| Ok((self.service.daemons(&set)?, count))).collect::<Result<Vec<_>>>()?;
        let stored = sets.into_iter().map(|(daemons, count)| async move { daemons.count_or_set(count).await });
        app.call(|_| try_join_all(stored)).await?;
        Ok(())
    }

    /// Begins what was not offered yet under that lease. Returns how much is offered now, and what is not offered any more.
    fn replace_offers(&self, lease: u64, wanted: Vec<(Begin, OfferedWork)>) -> (usize, Offers) {
        let mut offers = self.offers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut offers.1);
        let is_its = offers.0 == lease;
        let kept = |begin: Begin, earlier: Option<Run>| earlier.filter(|_| is_its).unwrap_or_else(begin);
        let now: Offers = wanted.into_iter().map(|(begin, work)| (work.clone(), kept(begin, before.remove(&work)))).collect();
        let names = now.len();
        *offers = (lease, now);
        (names, before)
    }
}
