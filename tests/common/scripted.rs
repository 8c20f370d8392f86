//! A backend whose answers a test chooses, call by call.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use shardwise::GroupName;
use shardwise::discovery::{Capabilities, Discovery, Error, ErrorKind, Grant, RecordId, Registration, Result, ViewSnapshot, WatchStream};

/// What becomes of a call.
pub(crate) enum How {
    /// It is carried out.
    Now,
    /// It is carried out, but not at once.
    After(Duration),
    /// It fails, and nothing is changed.
    Fails(ErrorKind),
    /// It is never answered, and nothing is changed.
    Never,
}

/// A call: its name, and the record where it brings one.
pub(crate) type Call<'a> = (&'static str, Option<&'a Registration>);

type Script = Box<dyn FnMut(Call<'_>) -> How + Send>;

/// Asks the script about every call but reads.
pub(crate) struct Scripted<D> {
    inner: D,
    script: Mutex<Script>,
}

impl<D: Discovery> Scripted<D> {
    pub(crate) fn new(inner: D, script: impl FnMut(Call<'_>) -> How + Send + 'static) -> Self {
        Self { inner, script: Mutex::new(Box::new(script)) }
    }

    async fn goes(&self, operation: &'static str, registration: Option<&Registration>) -> Result<()> {
        let how = (self.script.lock().unwrap_or_else(PoisonError::into_inner))((operation, registration));
        match how {
            How::Now => Ok(()),
            How::After(delay) => {
                tokio::time::sleep(delay).await;
                Ok(())
            }
            How::Fails(kind) => Err(Error::new(kind, operation, "as the test wants it")),
            How::Never => std::future::pending().await,
        }
    }
}

#[async_trait]
impl<D: Discovery> Discovery for Scripted<D> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    async fn register(&self, registration: &Registration) -> Result<Grant> {
        self.goes("register", Some(registration)).await?;
        self.inner.register(registration).await
    }
    async fn renew(&self, record_id: &RecordId, ttl: Duration) -> Result<Grant> {
        self.goes("renew", None).await?;
        self.inner.renew(record_id, ttl).await
    }
    async fn update(&self, registration: &Registration) -> Result<()> {
        self.goes("update", Some(registration)).await?;
        self.inner.update(registration).await
    }
    async fn deregister(&self, record_id: &RecordId) -> Result<()> {
        self.goes("deregister", None).await?;
        self.inner.deregister(record_id).await
    }
    async fn step_away(&self, registration: &Registration, rejoin_grace: Duration) -> Result<()> {
        self.goes("step_away", Some(registration)).await?;
        self.inner.step_away(registration, rejoin_grace).await
    }
    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot> {
        self.inner.members(group).await
    }
    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        self.inner.watch(group, prove_every)
    }
}
