//! Work that runs on exactly one member of a group: a claim on a name, held by one at a time.

use std::fmt::{self, Display};
use std::future::Future;
use std::sync::OnceLock;

use shardwise_core::ClaimName;

use super::named::{NamedRunner, NamedWorkContext, Tenure, claim_name};
use super::run::Run;
use crate::error::Result;
use crate::service::ShardingService;

/// Work that runs on one member of the group. Created by [`ShardingService::singleton`].
#[must_use = "nothing runs before `run`"]
pub struct Singleton {
    service: ShardingService,
    name: ClaimName,
    /// A callback for a module above, called when the run starts.
    on_run: OnceLock<Box<dyn FnOnce() + Send + Sync>>,
}

impl ShardingService {
    /// Work with that name, to run on exactly one member of this service's group. Normally every member offers the same names; one that a
    /// single member offers runs on that member, after a TTL at the latest.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`](crate::ErrorKind::Settings) if the policy's ownership is not exclusive, or the name is invalid.
    pub fn singleton(&self, name: &str) -> Result<Singleton> {
        Ok(Singleton {
            service: self.clone(),
            name: claim_name(self.policy(), self.backend(), "singleton", name, format!("singleton/{name}"))?,
            on_run: OnceLock::new(),
        })
    }
}

impl Singleton {
    /// Runs `work` while this worker holds the name. Work that fails or panics is started again by this worker, under the same epoch, after
    /// a pause that doubles from 0.5 s to 30 s. Work that ends well is done until the name is claimed again.
    ///
    /// Stopping the run cancels the work if it runs here, drops it where it awaits after `drain_timeout`, and withdraws the offer:
    /// another member runs it. Of several runs of one name in one worker only the first is active; once it is stopped, the next one is.
    ///
    /// The service must be registered, before or after this call.
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

    /// Calls `begin` when this value's run starts; only the first call takes effect.
    #[cfg(feature = "requests")]
    pub(crate) fn on_run(&self, begin: impl FnOnce() + Send + Sync + 'static) {
        // A later callback would do the same again.
        let _ = self.on_run.set(Box::new(begin));
    }

    #[cfg(feature = "requests")]
    pub(crate) const fn service(&self) -> &ShardingService {
        &self.service
    }

    #[cfg(feature = "requests")]
    pub(crate) const fn name(&self) -> &ClaimName {
        &self.name
    }
}

impl fmt::Debug for Singleton {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Singleton").field("service", &self.service).field("name", &self.name).finish_non_exhaustive()
    }
}
