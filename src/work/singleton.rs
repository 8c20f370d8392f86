//! Work that runs on exactly one member of a group: a claim on a name, held by one at a time.

use std::fmt::{self, Display};
use std::future::Future;
use std::sync::OnceLock;

use shardwise_core::ClaimName;

use super::named::{NamedRunner, NamedWorkContext, Tenure, claim_name};
use super::run::Run;
use crate::error::Result;
use crate::service::ShardingService;

/// Work of this name, which runs on one member of the group. Made by [`crate::ShardingFactory::singleton`] and [`ShardingService::singleton`].
#[must_use = "nothing runs before `run`"]
pub struct Singleton {
    service: ShardingService,
    name: ClaimName,
    /// What a module above has asked for: it is called when the run begins.
    on_run: OnceLock<Box<dyn FnOnce() + Send + Sync>>,
}

impl ShardingService {
    /// Work of this name, to run on exactly one member of this service's group. Every member offers the same names; one that a single
    /// member offers is run by that member, after a TTL at the latest.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`](crate::ErrorKind::Settings) if the policy's ownership is not exclusive, or the name is none.
    pub fn singleton(&self, name: &str) -> Result<Singleton> {
        Ok(Singleton {
            service: self.clone(),
            name: claim_name(self, "singleton", name, format!("singleton/{name}"))?,
            on_run: OnceLock::new(),
        })
    }
}

impl Singleton {
    /// Runs `work` wherever this worker holds the name: begun when it is claimed, ended when it goes to another member. Work that fails or panics
    /// is begun again after a pause that doubles from 0.5 s to 30 s, under the same epoch and, in between, still by this worker. Work that
    /// ends well is done until the name is claimed again.
    ///
    /// Stopping the run cancels the work if it runs here, drops it where it awaits after `drain_timeout`, and takes the offer back: another
    /// member runs it. Of several runs of one name in one worker the first works, and the next one when that has been stopped.
    ///
    /// The service must have been registered, or be so later.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn run<F, W, E>(self, work: F) -> Run
    where
        F: Fn(Tenure) -> W + Send + Sync + 'static,
        W: Future<Output = std::result::Result<(), E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        if let Some(begin) = self.on_run.into_inner() {
            begin();
        }
        let work_context = NamedWorkContext::of(&self.service);
        Run::spawn(|stop| NamedRunner::new(work_context, self.name, stop, work).run())
    }

    /// Has `begin` called when this value's run begins; of several calls the first one counts.
    pub(crate) fn on_run(&self, begin: impl FnOnce() + Send + Sync + 'static) {
        // A later one would do the same once more.
        let _ = self.on_run.set(Box::new(begin));
    }

    pub(crate) const fn service(&self) -> &ShardingService {
        &self.service
    }

    pub(crate) const fn name(&self) -> &ClaimName {
        &self.name
    }
}

impl fmt::Debug for Singleton {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Singleton").field("service", &self.service).field("name", &self.name).finish_non_exhaustive()
    }
}
