//! Leases: made, prolonged and ended over one connection.

use std::collections::HashMap;
use std::sync::{MutexGuard, PoisonError};

use crate::client::{EtcdConnection, none_if_gone};
use crate::error::Failure;
use crate::lease_streams::{STREAMS_MAX, Stream};

impl EtcdConnection {
    fn streams(&self) -> MutexGuard<'_, HashMap<i64, Stream>> {
        // Nothing under this lock can panic halfway through a change.
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, lease_id: i64, stream: Stream) {
        let mut streams = self.streams();
        if streams.len() >= STREAMS_MAX {
            streams.clear();
        }
        streams.insert(lease_id, stream);
    }

    /// A new lease and its TTL in seconds.
    pub(crate) async fn grant(&self, ttl_s: i64) -> Result<(i64, i64), Failure> {
        let answer = self
            .ask(|| {
                let mut client = self.lease_client.clone();
                async move { client.grant(ttl_s, None).await }
            })
            .await?;
        Ok((answer.id(), answer.ttl()))
    }

    /// Ends a lease and deletes the keys under it. A lease that has ended already is no error.
    pub(crate) async fn revoke(&self, lease_id: i64) -> Result<(), Failure> {
        self.streams().remove(&lease_id);
        let revoked = self.ask(|| {
            let mut client = self.lease_client.clone();
            async move { none_if_gone(client.revoke(lease_id).await) }
        });
        revoked.await.map(drop)
    }

    /// Prolongs a lease; its TTL in seconds, or nothing if it has ended.
    ///
    /// The stream is out of its place while it is in use: if this is given up in the middle, an answer that comes later must not be taken
    /// for that of the next question.
    pub(crate) async fn keep_alive(&self, lease_id: i64) -> Result<Option<i64>, Failure> {
        let kept = self.streams().remove(&lease_id);
        if let Some(mut stream) = kept
            && let Ok(ttl_s) = stream.prolong().await
        {
            if ttl_s.is_some() {
                self.keep(lease_id, stream);
            }
            return Ok(ttl_s);
        }
        let renewed = self.ask(|| {
            let client = self.lease_client.clone();
            async move {
                let Some(mut stream) = Stream::open(client, lease_id).await? else { return Ok(None) };
                Ok(stream.prolong().await?.map(|ttl_s| (ttl_s, stream)))
            }
        });
        Ok(renewed.await?.map(|(ttl_s, stream)| {
            self.keep(lease_id, stream);
            ttl_s
        }))
    }
}
