//! Work that runs on exactly one member of a group: a claim on a name, held by one at a time.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use shardwise_core::ClaimName;

use super::named::{NamedRunner, NamedWorkContext, Tenure, claim_name};
use super::run::Run;
use crate::Result;
use crate::messages::SingletonHandle;
use crate::service::ShardingService;

/// Work of this name, which runs on one member of the group. Made by [`crate::ShardingFactory::singleton`] and [`ShardingService::singleton`].
#[derive(Debug)]
#[must_use = "nothing runs before `run`"]
pub struct Singleton {
    service: ShardingService,
    name: ClaimName,
    /// Somebody sends it messages from here, so whoever runs it takes some.
    has_handle: AtomicBool,
}

impl ShardingService {
    /// Work of this name, to run on exactly one member of this service's group. Every member offers the same names; one that nobody else offers
    /// is run by whoever does, after a TTL at the latest.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`](crate::ErrorKind::Settings) if the policy's ownership is not exclusive, or the name is none.
    pub fn singleton(&self, name: &str) -> Result<Singleton> {
        Ok(Singleton {
            service: self.clone(),
            name: claim_name(self, "singleton", name, format!("singleton/{name}"))?,
            has_handle: AtomicBool::new(false),
        })
    }
}

impl Singleton {
    /// Sends messages of type `M` to whoever runs this, and gets replies of type `R`. Every member of the group can; it need not run it. The types
    /// are an agreement between sender and holder: they travel as JSON.
    ///
    /// The holder takes them by [`Tenure::messages`]. Where [`Singleton::run`] follows on the same value, this worker listens from then on, so
    /// that nobody waits for it at a takeover.
    pub fn handle<M, R>(&self) -> SingletonHandle<M, R> {
        self.has_handle.store(true, Ordering::Relaxed);
        SingletonHandle::new(&self.service, self.name.clone())
    }

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
        let work_context = NamedWorkContext::of(&self.service);
        if self.has_handle.into_inner() {
            let post = Arc::clone(&work_context.post);
            // What is wrong with it, the work itself is told too.
            tokio::spawn(async move { post.open().await.inspect_err(|error| tracing::warn!(%error, "no messages can arrive here")) });
        }
        Run::spawn(|stop| NamedRunner::new(work_context, self.name, stop, work).run())
    }
}
