//! The present connection, replaced when it breaks, and the requests over it. All groups and calls of a process share one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use shardwise_discovery::Clock;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::bucket::{self, BucketOrigin};
use crate::config::{NatsBackendConfig, SyncInterval, URLS_MAX};
use crate::connection::{BucketConnection, BucketState};
use crate::dial::DialSettings;
use crate::error::{Failure, NatsResult};
use crate::history::{BeforeRequest, StreamHistory};
use crate::jetstream::{self, CasOutcome, LastMessage};
use crate::names::Bucket;
use crate::status_keys::StatusKeys;

/// How long one call may take in all.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(10);
/// With a TTL below this, the election after a leader's death may outlast leases.
const TTL_RECOMMENDED: Duration = Duration::from_secs(12);

/// The way to the bucket.
pub(crate) struct Client {
    dial: DialSettings,
    pub(crate) bucket: Bucket,
    replicas: Option<usize>,
    /// The keys of another fleet that a group follows as well.
    pub(crate) status: Option<StatusKeys>,
    pub(crate) sync_interval: SyncInterval,
    pub(crate) clock: Clock,
    pub(crate) history: StreamHistory,
    /// Stands for this process in the subjects of probes.
    pub(crate) process: u32,
    slot: Mutex<ConnectionSlot>,
    has_warned: AtomicBool,
}

struct ConnectionSlot {
    present: Option<Arc<BucketConnection>>,
    /// The server that the next connection tries first. Another one each time, so that one that is of no use is not met again at once, and
    /// at first by chance, so that the processes of a fleet spread over the servers.
    first: usize,
    /// Why the last attempt failed, and when: who has waited for it gets that.
    failed: Option<(Instant, Failure)>,
}

impl Client {
    pub(crate) fn new(config: &NatsBackendConfig, clock: Clock) -> NatsResult<Self> {
        Ok(Self {
            dial: config.dial()?,
            bucket: config.bucket()?,
            replicas: config.replicas,
            status: config.status()?,
            sync_interval: config.sync_interval,
            clock,
            history: StreamHistory::default(),
            process: rand::random(),
            slot: Mutex::new(ConnectionSlot { present: None, first: rand::random_range(0..URLS_MAX), failed: None }),
            has_warned: AtomicBool::new(false),
        })
    }

    /// Hosts and ports, for messages.
    pub(crate) fn place(&self) -> &str {
        &self.dial.place
    }

    /// The connection to use, with the bucket known to be usable.
    pub(crate) async fn connection(&self) -> NatsResult<Arc<BucketConnection>> {
        self.ready().await.map(|(connection, _)| connection)
    }

    /// The connection, and the bucket as it was described over it.
    pub(crate) async fn ready(&self) -> NatsResult<(Arc<BucketConnection>, Arc<BucketState>)> {
        let connection = self.connected().await?;
        let mut known = connection.bucket.lock().await;
        if let Some(state) = &*known {
            let state = Arc::clone(state);
            drop(known);
            return Ok((connection, state));
        }
        let (state, _) = bucket::ensure(&connection, &self.bucket, self.replicas).await?;
        self.history.describe(&state.created);
        let state = Arc::new(state);
        *known = Some(Arc::clone(&state));
        drop(known);
        Ok((connection, state))
    }

    async fn connected(&self) -> NatsResult<Arc<BucketConnection>> {
        let asked = Instant::now();
        let mut slot = self.slot.lock().await;
        let has_others = self.dial.servers.len() > 1;
        if let Some(connection) = slot.present.as_ref().filter(|connection| !connection.is_broken()) {
            if !has_others || !connection.is_useless() {
                return Ok(Arc::clone(connection));
            }
            tracing::warn!(servers = self.place(), "the NATS server of this connection answers no requests any more; another one is tried");
            connection.leave();
        }
        slot.present = None;
        if let Some((_, failure)) = slot.failed.as_ref().filter(|(at, _)| *at > asked) {
            return Err(failure.clone());
        }
        slot.first = slot.first.wrapping_add(1);
        // On the heap: every call contains this future, which is seldom needed.
        match Box::pin(BucketConnection::open(&self.dial, slot.first)).await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                (slot.present, slot.failed) = (Some(Arc::clone(&connection)), None);
                Ok(connection)
            }
            Err(failure) => {
                slot.failed = Some((Instant::now(), failure.clone()));
                Err(failure)
            }
        }
    }

    /// Makes the bucket if there is none. Answers whether it was there.
    pub(crate) async fn init(&self) -> NatsResult<BucketOrigin> {
        let made = async {
            let connection = self.connected().await?;
            bucket::ensure(&connection, &self.bucket, self.replicas).await.map(|(_, origin)| origin)
        };
        bounded(made).await
    }

    /// Whether the bucket's stream was made anew since it was described like that, for example by another process while this one read from
    /// it or wrote to it. Asks the server.
    pub(crate) async fn is_made_anew(&self, connection: &BucketConnection, known: &BucketState) -> NatsResult<bool> {
        *connection.bucket.lock().await = None;
        let (_, present) = self.ready().await?;
        Ok(present.created != known.created)
    }

    /// After a failure that may mean that the bucket is gone: it is looked for before the next request.
    pub(crate) async fn doubt<T>(&self, connection: &BucketConnection, answer: NatsResult<T>) -> NatsResult<T> {
        if matches!(answer, Err(Failure::NotReady { .. })) {
            *connection.bucket.lock().await = None;
        }
        answer
    }

    /// Writes if the last message there has the sequence `expected`; 0: if there is none. An empty payload says that what stood there is
    /// gone.
    pub(crate) async fn write(&self, subject: String, expected: u64, payload: Vec<u8>) -> NatsResult<CasOutcome> {
        let connection = self.connection().await?;
        let before = self.history.now();
        let written = jetstream::publish(&connection, &self.bucket, subject, expected, payload).await;
        let outcome = self.doubt(&connection, written).await?;
        if let CasOutcome::Written(sequence) = outcome {
            self.acknowledge(&connection, before, sequence).await?;
        }
        Ok(outcome)
    }

    /// A write was acknowledged. If its sequence begins an era, another process may have made the stream anew: it is described before the
    /// next request.
    async fn acknowledge(&self, connection: &BucketConnection, before: BeforeRequest, sequence: u64) -> NatsResult<()> {
        self.history.acknowledge(before, sequence)?;
        if self.history.now().era != before.era {
            *connection.bucket.lock().await = None;
        }
        Ok(())
    }

    /// Writes a probe; answers its sequence.
    pub(crate) async fn probe(&self, subject: String) -> NatsResult<u64> {
        let connection = self.connection().await?;
        let before = self.history.now();
        let written = jetstream::publish_over(&connection, &self.bucket, subject, jetstream::probe_payload()).await;
        let sequence = self.doubt(&connection, written).await?;
        self.acknowledge(&connection, before, sequence).await?;
        Ok(sequence)
    }

    /// The last message of a subject: see [`jetstream::last_message`] for what it proves.
    pub(crate) async fn last(&self, subject: &str) -> NatsResult<Option<LastMessage>> {
        let connection = self.connection().await?;
        let era = self.history.now().era;
        let read = jetstream::last_message(&connection, &self.bucket, subject).await;
        let found = self.doubt(&connection, read).await?;
        if let Some(message) = &found {
            self.history.saw(era, message.sequence)?;
        }
        Ok(found)
    }

    /// Forgets the messages of one subject up to that sequence.
    pub(crate) async fn purge(&self, subject: &str, up_to: u64) -> NatsResult<()> {
        let connection = self.connection().await?;
        jetstream::purge(&connection, &self.bucket, subject, up_to).await
    }

    /// Says once if a leader's death may outlast the leases.
    pub(crate) async fn warn_of_short_ttl(&self, ttl: Duration) {
        if ttl >= TTL_RECOMMENDED || self.has_warned.load(Ordering::Relaxed) {
            return;
        }
        if self.ready().await.is_ok_and(|(_, state)| state.is_clustered) && !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                ?ttl,
                "an election in a NATS cluster takes 4 to 9 s, and with a TTL below 12 s a leader's death can end the leases of all members; \
                 15 s are recommended"
            );
        }
    }
}

/// A call that ends in time.
pub(crate) async fn bounded<T>(call: impl Future<Output = NatsResult<T>>) -> NatsResult<T> {
    bounded_by(CALL_LIMIT, call).await
}

pub(crate) async fn bounded_by<T>(limit: Duration, call: impl Future<Output = NatsResult<T>>) -> NatsResult<T> {
    timeout(limit, call).await.unwrap_or(Err(Failure::TimedOut { after: limit }))
}
