//! A backend that does what every backend has to, and no more.

use std::time::Duration;

use shardwise::GroupName;
use shardwise::discovery::{Capabilities, Discovery, Error, Grant, MemoryBackend, RecordId, Registration, ViewSnapshot, WatchStream};

/// A backend of the user's own that knows nothing of what is optional.
pub(crate) struct Plain(pub(crate) MemoryBackend);

#[async_trait::async_trait]
impl Discovery for Plain {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("plain", self.0.capabilities().margin)
    }
    async fn register(&self, registration: &Registration) -> Result<Grant, Error> {
        self.0.register(registration).await
    }
    async fn renew(&self, record_id: &RecordId, ttl: Duration) -> Result<Grant, Error> {
        self.0.renew(record_id, ttl).await
    }
    async fn update(&self, registration: &Registration) -> Result<(), Error> {
        self.0.update(registration).await
    }
    async fn deregister(&self, record_id: &RecordId) -> Result<(), Error> {
        self.0.deregister(record_id).await
    }
    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot, Error> {
        self.0.members(group).await
    }
    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        self.0.watch(group, prove_every)
    }
}
