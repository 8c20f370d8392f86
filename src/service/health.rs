//! The health of the worker that a service speaks for.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use shardwise_core::{WorkerChecks, WorkerHealth};
use shardwise_discovery::LogThrottle;
use tokio::sync::watch;

use super::ShardingService;
use crate::error::{Error, ErrorKind, Result, inside_runtime};
use crate::membership::{OwnershipContext, WorkerReport};

/// How often a worker is checked, and how long a check may take. After three failures in a row it does not work.
const CHECK_EVERY: Duration = Duration::from_secs(2);
const CHECK_WITHIN: Duration = Duration::from_secs(1);
/// Suspicion may bring the next check forward so often.
const SUSPECTED_EVERY: Duration = Duration::from_millis(500);

type HealthCheck = Box<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

impl ShardingService {
    /// Watches the worker that this service speaks for: `check` is called 2 s after each answer, has 1 s to answer, and says why the worker
    /// does not work. A service that watches a worker joins drained until the first success. Three failures in a row drain it: what it owns
    /// is finished and taken over. Three successes bring it back. It stays active in spite of failures if fewer than half of the group
    /// would stay active without it, because then something that all share has failed ([`ShardingService::is_spared`]).
    ///
    /// Call it before [`ShardingService::register_self`]: a member that is watched later gives up what it owns until the first success.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] if it is watched already, [`ErrorKind::Settings`] under a key placement, whose members cannot be drained,
    /// [`ErrorKind::NoRuntime`] outside a tokio runtime.
    pub fn health<W>(&self, check: impl Fn() -> W + Send + Sync + 'static) -> Result<()>
    where
        W: Future<Output = Result<(), String>> + Send + 'static,
    {
        inside_runtime()?;
        self.can_be_drained()?;
        let context = &self.membership().ownership_context;
        let mut is_first = false;
        context.worker.update(|report| {
            is_first = !report.watched;
            if is_first {
                (report.watched, report.checked) = (true, Some(WorkerHealth::Absent));
            }
        });
        if !is_first {
            return Err(Error::new(ErrorKind::Conflict, format!("policy {}: the worker's health is watched already", self.policy().name)));
        }
        let check: HealthCheck = Box::new(move || Box::pin(check()));
        tokio::spawn(watch_worker(Arc::downgrade(context), check));
        Ok(())
    }

    /// Reports that the worker is suspected not to work: the next check is made at once. The report itself changes nothing.
    pub fn suspect(&self) {
        self.membership().suspect();
    }

    /// Whether the worker that this service speaks for holds a lease, for a process that leases this service's share to another one, as the
    /// sidecar does. Without the lease the member is drained: it gives up what it owns, and the rule of [`ShardingService::health`]
    /// that keeps half of a group active does not apply. Leases do not count before the first call; make it before
    /// [`ShardingService::register_self`] so that the member owns nothing before the first lease.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`] under a key placement, whose members cannot be drained.
    pub fn set_worker_leased(&self, is_leased: bool) -> Result<()> {
        self.worker_leased(is_leased, None)
    }

    /// Like [`ShardingService::set_worker_leased`] with `false`, and logs why the lease has ended: whether the worker has stopped or died.
    ///
    /// # Errors
    ///
    /// As [`ShardingService::set_worker_leased`].
    pub fn end_worker_lease(&self, why: &str) -> Result<()> {
        self.worker_leased(false, Some(why))
    }

    fn worker_leased(&self, is_leased: bool, why: Option<&str>) -> Result<()> {
        self.can_be_drained()?;
        let mut before = None;
        self.membership().worker.update(|report| before = report.leased.replace(is_leased));
        if before != Some(is_leased) {
            let policy = &self.policy().name;
            // Warnings, because a member without a share has to be seen where only warnings are shown, and so does its end.
            match (before, is_leased) {
                (_, true) => tracing::warn!(%policy, "the worker has a lease: this member takes its share"),
                (None, false) => tracing::warn!(%policy, "this member owns nothing until its worker opens a lease"),
                (Some(_), false) => tracing::warn!(%policy, why, "the worker's lease has ended: this member gives up its share"),
            }
        }
        Ok(())
    }

    fn can_be_drained(&self) -> Result<()> {
        let policy = self.policy();
        if policy.placement.kind.by_key().is_none() {
            return Ok(());
        }
        let message = format!("policy {}: placement {} has no drain, so no health", policy.name, policy.placement.kind.as_str());
        Err(Error::new(ErrorKind::Settings, message))
    }

    /// What the checks of [`ShardingService::health`] and the lease say, now and whenever that changes.
    pub fn worker(&self) -> watch::Receiver<WorkerReport> {
        self.membership().worker.report.subscribe()
    }

    /// Whether the worker's checks fail and it stays active all the same, because fewer than half of the group would stay active.
    pub fn is_spared(&self) -> bool {
        self.membership().worker.is_spared.load(Ordering::Relaxed)
    }
}

/// Ends with the service.
async fn watch_worker(context: Weak<OwnershipContext>, check: HealthCheck) {
    let (mut checks, throttle) = (WorkerChecks::default(), LogThrottle::default());
    loop {
        // The call itself may panic too.
        let answered = AssertUnwindSafe(async { check().await }).catch_unwind();
        let answer =
            tokio::time::timeout(CHECK_WITHIN, answered).await.map(|answer| answer.unwrap_or_else(|_| Err("the check panicked".into())));
        let failure = answer.unwrap_or_else(|_| Err(format!("no answer within {CHECK_WITHIN:?}"))).err();
        let Some(living) = context.upgrade() else { return };
        let before = (checks.health(), checks.fails());
        // Only for the order in which members drain.
        let since_1970 = u64::try_from(living.clock.since_1970().as_millis()).unwrap_or(u64::MAX);
        checks.checked(failure.is_none(), since_1970);
        report(&living, &checks, failure, before, &throttle);
        let suspected = async {
            tokio::time::sleep(SUSPECTED_EVERY).await;
            living.worker.suspected.notified().await;
        };
        tokio::select! {
            () = tokio::time::sleep(CHECK_EVERY) => {}
            () = suspected => {}
        }
    }
}

fn report(
    context: &OwnershipContext,
    checks: &WorkerChecks,
    failure: Option<String>,
    (health_before, failed_before): (Option<WorkerHealth>, bool),
    throttle: &LogThrottle<Arc<str>>,
) {
    let failure: Option<Arc<str>> = failure.map(Into::into);
    let policy = &context.policy.name;
    let had_no_share = failed_before || health_before == Some(WorkerHealth::Absent);
    if let Some(why) = &failure {
        if checks.fails() && !failed_before {
            tracing::warn!(%policy, %why, "the worker does not work: this member gives up its share, if the group can do without it");
        } else if let Some(count) = throttle.another(Arc::clone(why)) {
            tracing::warn!(%policy, %why, count, "checks of the worker failed; for each reason one line a minute at most");
        }
    } else if had_no_share && checks.health().is_none() {
        tracing::warn!(%policy, "the worker works: this member takes its share");
    }
    context.worker.update(|report| (report.checked, report.fails, report.failure) = (checks.health(), checks.fails(), failure));
}
