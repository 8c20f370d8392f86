//! The streams over which leases are prolonged.

use std::collections::HashMap;
use std::sync::Mutex;

use etcd_client::{Error, LeaseClient, LeaseKeepAliveStream, LeaseKeeper};

/// The most streams kept for later renewals. A live member above that number opens a new one; the rest belong to abandoned members.
pub(crate) const STREAMS_MAX: usize = 4_096;

/// The streams that are kept for the next renewals, by their leases.
pub(crate) type Streams = Mutex<HashMap<i64, Stream>>;

/// Prolonging a lease takes a separate stream in the etcd client. It is kept: a message each way costs a tenth of a new stream.
pub(crate) struct Stream {
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
}

impl Stream {
    /// A new stream; nothing if the lease has ended.
    pub(crate) async fn open(mut client: LeaseClient, lease_id: i64) -> Result<Option<Self>, Error> {
        match client.keep_alive(lease_id).await {
            Ok((keeper, answers)) => Ok(Some(Self { keeper, answers })),
            // It asks once by itself, and hides the answer: a TTL of 0 is this error, any other TTL is lost.
            Err(Error::LeaseKeepAliveError(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The TTL in seconds; nothing if the lease has ended.
    pub(crate) async fn prolong(&mut self) -> Result<Option<i64>, Error> {
        self.keeper.keep_alive().await?;
        match self.answers.message().await? {
            Some(answer) => Ok(Some(answer.ttl()).filter(|ttl_s| *ttl_s > 0)),
            None => Err(Error::LeaseKeepAliveError("the stream has ended".into())),
        }
    }
}
