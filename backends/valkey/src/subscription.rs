//! Subscriptions to the changes of groups, each over one connection.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::connection::LiveConnection;
use crate::error::{Failure, ValkeyResult};

/// How long subscribing may take.
const SUBSCRIBE_LIMIT: Duration = Duration::from_secs(3);
/// How long leaving a channel may take.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);

/// A reader's subscription. Dropping it leaves the channel.
pub(crate) struct ChangeSubscription {
    pub(crate) messages: mpsc::Receiver<Vec<u8>>,
    channel: String,
    number: u64,
    connection: Arc<LiveConnection>,
}

impl ChangeSubscription {
    /// A place for messages; the server is not asked for any yet.
    fn new(connection: &Arc<LiveConnection>, channel: &str) -> Self {
        let (number, messages) = connection.router.add(channel);
        Self { messages, channel: channel.to_owned(), number, connection: Arc::clone(connection) }
    }
}

impl Drop for ChangeSubscription {
    fn drop(&mut self) {
        self.connection.router.remove(&self.channel, self.number);
        // Without a runtime the connection has no task any more either.
        let Ok(runtime) = Handle::try_current() else { return };
        let (connection, channel) = (Arc::clone(&self.connection), std::mem::take(&mut self.channel));
        runtime.spawn(async move {
            let leave = async {
                let _turn = connection.subscribing.lock().await;
                // Another reader may have come since.
                if !connection.router.is_read(&channel) {
                    // If this fails, messages that no reader wants arrive until the connection ends.
                    let _ = connection.redis.clone().unsubscribe(&channel).await;
                }
            };
            let _ = timeout(LEAVE_LIMIT, leave).await;
        });
    }
}

impl LiveConnection {
    /// Has messages of that channel delivered from now on.
    pub(crate) async fn subscribe(self: &Arc<Self>, channel: &str) -> ValkeyResult<ChangeSubscription> {
        let subscribe = async {
            let _turn = self.subscribing.lock().await;
            let subscription = ChangeSubscription::new(self, channel);
            self.redis.clone().subscribe(channel).await.map_err(|error| self.context.meaning(&error))?;
            Ok(subscription)
        };
        let late = || Failure::TimedOut { place: self.context.place.clone(), after: SUBSCRIBE_LIMIT };
        timeout(SUBSCRIBE_LIMIT, subscribe).await.unwrap_or_else(|_| Err(late()))
    }
}
