//! Members of another fleet, which keeps one key for each of its workers in a bucket: a group shows them as foreign instances.
//!
//! A consumer reports what is written and deleted. A key that expires makes no message on most servers, so the subjects that the bucket
//! still has are compared as well.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt as _;
use shardwise_core::{Backoff, InstanceId, MEMBERS_MAX, Moment};
use shardwise_discovery::feeds::REPAIR_PAUSE;
use shardwise_discovery::jittered;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::client::{Client, bounded};
use crate::consumer::{PushConsumer, StreamDelivery};
use crate::error::{Failure, NatsResult};
use crate::handle::BucketHandle;
use crate::jetstream::{self, PresentSubjects};
use crate::status_keys::StatusKeys;

/// How often the bucket is compared with what was followed.
const COMPARE_EVERY: Duration = Duration::from_secs(1);
/// For how long what was read counts while the bucket cannot be read.
const READING_LASTS: Duration = Duration::from_secs(6);
/// First and longest pause after failures that may pass by themselves.
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_LONGEST: Duration = Duration::from_secs(5);
/// How many messages are taken before anything else is done.
const DRAIN_MAX: usize = 1_024;

/// What was read last.
#[derive(Debug, Clone, Default)]
pub(crate) struct ForeignReading {
    /// `None` before the first reading.
    ids: Option<Arc<Vec<InstanceId>>>,
    /// When the last comparison began that was answered.
    compared: Moment,
    /// Why the bucket cannot be read at present.
    failure: Option<Failure>,
}

impl ForeignReading {
    /// The foreign members; `None` before the first reading. An error if the bucket cannot be read, at first or for long.
    pub(crate) fn present(&self, now: Moment) -> NatsResult<Option<&Arc<Vec<InstanceId>>>> {
        match (&self.ids, &self.failure) {
            (None, Some(failure)) => Err(failure.clone()),
            (Some(_), Some(failure)) if !failure.is_passing() || now.since(self.compared) > READING_LASTS => Err(failure.clone()),
            (ids, _) => Ok(ids.as_ref()),
        }
    }

    /// Whether it names other members than an earlier reading.
    pub(crate) fn differs(&self, earlier: &Self) -> bool {
        self.ids != earlier.ids
    }
}

/// Follows the keys in a task until dropped.
pub(crate) struct ForeignFollower {
    reading: watch::Receiver<ForeignReading>,
    task: AbortHandle,
}

impl ForeignFollower {
    pub(crate) fn start(handle: Weak<BucketHandle>, keys: StatusKeys) -> Self {
        let (shown, reading) = watch::channel(ForeignReading::default());
        Self { reading, task: tokio::spawn(follow(handle, keys, shown)).abort_handle() }
    }

    pub(crate) fn latest(&mut self) -> ForeignReading {
        self.reading.borrow_and_update().clone()
    }

    /// Waits for another reading; for ever if nothing is followed.
    pub(crate) async fn changed(follower: Option<&mut Self>) {
        let is_over = match follower {
            Some(follower) => follower.reading.changed().await.is_err(),
            None => true,
        };
        if is_over {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for ForeignFollower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn follow(handle: Weak<BucketHandle>, keys: StatusKeys, shown: watch::Sender<ForeignReading>) {
    let (mut reader, mut backoff) = (StatusReader::new(keys), Backoff::new(RETRY_FIRST, RETRY_LONGEST));
    while let Some(present) = handle.upgrade() {
        let compared = reader.round(&present.client).await;
        drop(present);
        match compared {
            Ok(compared) => {
                backoff.reset();
                if reader.has_changes || compared.is_some() {
                    reader.show(&shown, compared);
                }
            }
            Err(failure) => {
                tracing::debug!(bucket = reader.keys.bucket().name(), %failure, "the keys of another fleet cannot be read");
                reader.consumer = None;
                let pause = if failure.is_passing() { backoff.fail() } else { REPAIR_PAUSE };
                shown.send_modify(|reading| reading.failure = Some(failure));
                sleep(jittered(pause)).await;
            }
        }
    }
}

struct StatusReader {
    keys: StatusKeys,
    consumer: Option<PushConsumer>,
    mirror: StatusMirror,
    /// Keys have come or gone since they were shown.
    has_changes: bool,
    /// When the bucket is compared next.
    due: Instant,
}

impl StatusReader {
    fn new(keys: StatusKeys) -> Self {
        Self { keys, consumer: None, mirror: StatusMirror::default(), has_changes: false, due: Instant::now() }
    }

    /// Takes what has come, or compares the bucket where that is due: then it answers when that began.
    async fn round(&mut self, client: &Client) -> NatsResult<Option<Moment>> {
        if self.consumer.is_none() {
            self.open(client).await?;
        }
        let Some(consumer) = &mut self.consumer else { return Err(Failure::Missed) };
        tokio::select! {
            delivery = consumer.next() => {
                let (mut next, mut taken) = (Some(delivery), 0);
                while let Some(delivery) = next {
                    self.has_changes |= self.mirror.take(&delivery?)?;
                    taken += 1;
                    next = if taken < DRAIN_MAX { consumer.next().now_or_never() } else { None };
                }
                Ok(None)
            }
            () = sleep_until(self.due) => self.compare(client).await.map(Some),
        }
    }

    /// Makes a consumer and takes everything that is there. The bucket is the other fleet's, and is never made here.
    async fn open(&mut self, client: &Client) -> NatsResult<()> {
        let (bucket, filter) = (self.keys.bucket(), self.keys.filter());
        let listed = bounded(async {
            let connection = client.connection().await?;
            if jetstream::stream_info(&connection, bucket).await?.is_none() {
                let why =
                    format!("is {:?}, and there is no such bucket; name the one in which the other fleet keeps its workers", bucket.name());
                return Err(Failure::Setting { setting: "status_bucket", why });
            }
            let mut consumer = PushConsumer::open(connection, bucket, slice::from_ref(filter)).await?;
            let mut mirror = StatusMirror::default();
            while !consumer.has_listed() {
                mirror.take(&consumer.next().await?)?;
            }
            Ok((consumer, mirror))
        });
        let (consumer, mirror) = listed.await?;
        (self.consumer, self.mirror, self.due) = (Some(consumer), mirror, Instant::now());
        Ok(())
    }

    async fn compare(&mut self, client: &Client) -> NatsResult<Moment> {
        let started = client.clock.now();
        let (bucket, filter) = (self.keys.bucket(), self.keys.filter());
        let present = bounded(async {
            let connection = client.connection().await?;
            jetstream::present_subjects(&connection, bucket, filter).await
        });
        self.mirror.compare(&present.await?);
        self.due = Instant::now() + COMPARE_EVERY;
        Ok(started)
    }

    /// Shows the members, once the bucket has been compared.
    fn show(&mut self, shown: &watch::Sender<ForeignReading>, compared: Option<Moment>) {
        self.has_changes = false;
        let ids = Arc::new(self.mirror.ids());
        shown.send_if_modified(|reading| {
            if compared.is_none() && reading.ids.is_none() {
                return false;
            }
            let is_change = reading.failure.take().is_some() || reading.ids.as_ref() != Some(&ids);
            if is_change {
                reading.ids = Some(ids);
            }
            reading.compared = compared.unwrap_or(reading.compared);
            is_change
        });
    }
}

/// The keys that are there, each with the sequence of its last message.
#[derive(Debug, Default)]
struct StatusMirror(BTreeMap<String, u64>);

impl StatusMirror {
    /// Answers whether a key has come or gone.
    fn take(&mut self, delivery: &StreamDelivery) -> NatsResult<bool> {
        let StreamDelivery { subject, sequence, is_marker, .. } = delivery;
        if *is_marker {
            return Ok(self.0.remove(subject).is_some());
        }
        let is_new = self.0.insert(subject.clone(), *sequence).is_none();
        if self.0.len() > MEMBERS_MAX as usize {
            let why = format!("match more than {MEMBERS_MAX} keys; name those of workers only");
            return Err(Failure::Setting { setting: "status_keys", why });
        }
        Ok(is_new)
    }

    /// Forgets the keys that the bucket has not any more. A message that it took later is still on its way.
    fn compare(&mut self, present: &PresentSubjects) {
        self.0.retain(|subject, sequence| *sequence > present.last_sequence || present.subjects.contains_key(subject));
    }

    /// The last parts of the keys that can be ids, in order.
    fn ids(&self) -> Vec<InstanceId> {
        let id = |subject: &String| InstanceId::new(subject.rsplit('.').next()?).ok();
        let ids: BTreeSet<InstanceId> = self.0.keys().filter_map(id).collect();
        ids.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(key: &str, sequence: u64, is_marker: bool) -> StreamDelivery {
        StreamDelivery { subject: format!("$KV.status.{key}"), sequence, stored_at: sequence, payload: "x".into(), is_marker }
    }

    fn ids(mirror: &StatusMirror) -> Vec<String> {
        mirror.ids().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_last_part_of_a_key_is_a_member_until_the_key_is_deleted_or_has_expired() {
        let mut mirror = StatusMirror::default();
        for (key, sequence, is_marker) in
            [("eu.b", 1, false), ("us.a", 2, false), ("us.b", 3, false), ("us.c", 4, false), ("us.c", 5, true)]
        {
            mirror.take(&delivery(key, sequence, is_marker)).unwrap();
        }
        assert_eq!(ids(&mirror), ["a", "b"]);
        let subjects = [("$KV.status.eu.b".to_owned(), 1)].into();
        mirror.compare(&PresentSubjects { last_sequence: 2, subjects });
        assert_eq!(ids(&mirror), ["b"], "a has expired, and the second b was written later");
    }

    #[test]
    fn a_reading_lasts_a_while_without_the_bucket_and_not_after_a_mistake() {
        let at = |secs| Moment::ZERO.plus(Duration::from_secs(secs));
        let mut reading = ForeignReading::default();
        assert!(matches!(reading.present(at(1)), Ok(None)));
        reading.failure = Some(Failure::Broken);
        assert!(reading.present(at(1)).is_err(), "nothing is known");
        (reading.ids, reading.compared) = (Some(Arc::default()), at(1));
        assert!(matches!(reading.present(at(7)), Ok(Some(_))) && reading.present(at(8)).is_err());
        reading.failure = Some(Failure::NoJetStream);
        assert!(reading.present(at(1)).is_err());
    }
}
