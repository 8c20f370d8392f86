//! Numbered workers, each alive on exactly one member. A note of the group has their number, which can change while they run.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use shardwise_core::ClaimName;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::daemon_count::{DAEMONS_MAX, DaemonCount, DaemonCounter, set_name};
use super::named::{NamedRunner, NamedWorkContext, Tenure, claim_name};
use super::run::Run;
use crate::error::{ErrorKind, Result, inside_runtime};
use crate::service::ShardingService;

/// A set of numbered workers. Created by [`ShardingService::daemons`].
#[derive(Clone)]
pub struct Daemons {
    service: ShardingService,
    names: Arc<[ClaimName]>,
    counter: DaemonCounter,
}

impl ShardingService {
    /// The daemons of that set; a group may have any number of sets. Daemon `i` has the name `daemon/<set>/i`, and in the set without a
    /// name, `""`, `daemon/i`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`] if the policy's ownership is not exclusive, the set's name is too long or invalid, or the backend does not
    /// support notes.
    pub fn daemons(&self, set: &str) -> Result<Daemons> {
        let (policy, prefix) = (self.policy(), set_name(set));
        let name = |number| claim_name(policy, self.backend(), "daemons", set, format!("{prefix}/{number}"));
        let names = (0..DAEMONS_MAX).map(name).collect::<Result<Arc<[_]>>>()?;
        let counter = DaemonCounter::of(policy, self.backend(), self.membership().timing.renew_every, set)?;
        Ok(Daemons { service: self.clone(), names, counter })
    }
}

impl Daemons {
    /// The wanted number.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoRuntime`]; [`ErrorKind::Backend`] if the backend refuses, or the note was edited by hand; retryable,
    /// [`ErrorKind::Unavailable`].
    pub async fn count(&self) -> Result<DaemonCount> {
        inside_runtime()?;
        self.counter.read().await
    }

    /// Changes the number to `number`, if it still is the one in `seen`. Members that run the daemons notice it within a TTL, this one at
    /// once. With a smaller number the highest daemons end, each like a stopped singleton.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] if another writer has changed it since; the message has the present number. [`ErrorKind::Settings`] above
    /// [`DAEMONS_MAX`]. Those of [`Daemons::count`]; after a retryable one it may have been changed.
    pub async fn set_count(&self, seen: DaemonCount, number: u32) -> Result<DaemonCount> {
        inside_runtime()?;
        let count = self.counter.write(seen, number).await?;
        self.service.membership().noted.send_replace(());
        Ok(count)
    }

    /// Sets the number to `number` if it is not set yet, and returns the one in force: for the start of each member. Fails like
    /// [`Daemons::set_count`], except for the conflict.
    pub async fn count_or_set(&self, number: u32) -> Result<DaemonCount> {
        let seen = self.count().await?;
        if seen.is_set() {
            return Ok(seen);
        }
        match self.set_count(seen, number).await {
            Err(error) if error.kind() == ErrorKind::Conflict => self.count().await,
            set => set,
        }
    }

    /// Runs `work(number, tenure)` for each daemon that this worker holds, as [`crate::Singleton::run`] does for one name. Every member of
    /// the group runs the same set. While the number cannot be read, or is invalid, the last one stays in force.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn run<F, W, E>(&self, work: F) -> Run
    where
        F: Fn(u32, Tenure) -> W + Send + Sync + 'static,
        W: Future<Output = std::result::Result<(), E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        let membership = self.service.membership();
        let runner = |stop| DaemonsRunner {
            work_context: NamedWorkContext::of(&self.service),
            noted: membership.noted.subscribe(),
            names: Arc::clone(&self.names),
            counter: self.counter.clone(),
            // With the timeout of a read, a change is seen within a TTL.
            read_every: membership.timing.ttl / 2,
            stop,
            work: Arc::new(work),
            running: Vec::new(),
            ending: JoinSet::new(),
            was_read: false,
            complaint: None,
        };
        Run::spawn(|stop| runner(stop).run())
    }
}

struct DaemonsRunner<F> {
    work_context: NamedWorkContext,
    noted: watch::Receiver<()>,
    names: Arc<[ClaimName]>,
    counter: DaemonCounter,
    read_every: Duration,
    stop: CancellationToken,
    work: Arc<F>,
    running: Vec<Run>,
    ending: JoinSet<()>,
    /// The number was read once.
    was_read: bool,
    /// Why the number could not be read, once that was logged.
    complaint: Option<String>,
}

impl<F, W, E> DaemonsRunner<F>
where
    F: Fn(u32, Tenure) -> W + Send + Sync + 'static,
    W: Future<Output = std::result::Result<(), E>> + Send + 'static,
    E: Display + Send + 'static,
{
    async fn run(mut self) {
        let (gone, stop) = (self.work_context.context.gone.clone(), self.stop.clone());
        tokio::select! {
            () = self.follow() => {}
            () = gone.cancelled() => {}
            () = stop.cancelled() => {}
        }
        self.shrink(0);
        while self.ending.join_next().await.is_some() {}
    }

    /// Runs until the service is gone. Reads nothing while the service is not a member.
    async fn follow(&mut self) {
        let mut next = tokio::time::Instant::now();
        loop {
            let is_member = self.work_context.context.read(shardwise_core::Ownership::is_live_at);
            if is_member && next <= tokio::time::Instant::now() {
                self.settle().await;
                next = tokio::time::Instant::now() + self.read_every;
            }
            tokio::select! {
                // A fixed order, so that a seed reproduces a run.
                biased;
                () = tokio::time::sleep_until(next), if is_member => {}
                changed = self.work_context.ownership.changed() => if changed.is_err() { return },
                changed = self.noted.changed() => match changed {
                    Ok(()) => next = tokio::time::Instant::now(),
                    Err(_) => return,
                },
                Some(_) = self.ending.join_next() => {}
            }
        }
    }

    async fn settle(&mut self) {
        match self.counter.read().await {
            Ok(count) => {
                self.complaint = None;
                if !std::mem::replace(&mut self.was_read, true) && count.get() == 0 {
                    self.warn_that_none_runs(count);
                }
                self.shrink(count.get() as usize);
                self.grow(count.get() as usize);
            }
            Err(error) => {
                let said = error.to_string();
                if self.complaint.as_ref() != Some(&said) {
                    tracing::warn!(%error, running = self.running.len(), "the number of daemons stays what it was");
                    self.complaint = Some(said);
                }
            }
        }
    }

    /// Nothing else would show why a set that is offered does not run.
    fn warn_that_none_runs(&self, count: DaemonCount) {
        let policy = &self.work_context.context.policy.name;
        let set = self.counter.name().as_str().strip_prefix("daemon/").unwrap_or_default();
        let number = if count.is_set() { "0" } else { "not set" };
        tracing::warn!(
            %policy,
            "no daemon of the set {set:?} runs, because its number is {number}; to set it: shardwise daemons {set:?} COUNT --policy {policy}"
        );
    }

    fn grow(&mut self, number: usize) {
        let new = self.names.iter().zip(0..).take(number).skip(self.running.len());
        for (name, number) in new {
            let work = Arc::clone(&self.work);
            let named = |stop| NamedRunner::new(self.work_context.clone(), name.clone(), stop, move |tenure| work(number, tenure)).run();
            self.running.push(Run::spawn(named));
        }
    }

    /// Stops the highest numbers. One that is started again before it has ended waits for its turn.
    fn shrink(&mut self, number: usize) {
        for run in self.running.drain(number.min(self.running.len())..).rev() {
            self.ending.spawn(run.stop());
        }
    }
}

impl std::fmt::Debug for Daemons {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Daemons({} of {:?})", self.counter.name(), self.service)
    }
}
