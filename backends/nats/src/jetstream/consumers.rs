//! Making and deleting push consumers.

use std::time::Duration;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use shardwise_discovery::one_line;

use super::call;
use crate::api_errors::ApiError;
use crate::connection::BucketConnection;
use crate::error::{Failure, NatsResult};
use crate::names::Bucket;

/// A consumer that was made: how many messages it has to deliver at first.
#[derive(Debug, Deserialize)]
struct ConsumerInfo {
    #[serde(default)]
    num_pending: u64,
}

/// What a consumer is made with.
#[derive(Debug, Serialize)]
struct ConsumerRequest<'a> {
    stream_name: &'a str,
    config: ConsumerSettings<'a>,
    action: &'static str,
}

#[derive(Debug, Serialize)]
struct ConsumerSettings<'a> {
    name: &'a str,
    deliver_subject: &'a str,
    deliver_policy: &'static str,
    ack_policy: &'static str,
    replay_policy: &'static str,
    filter_subjects: &'a [String],
    flow_control: bool,
    idle_heartbeat: u64,
    inactive_threshold: u64,
    max_deliver: i64,
    mem_storage: bool,
    num_replicas: usize,
}

/// Makes a push consumer of the last message of each subject and of all later ones; answers how many it has to deliver at first.
pub(crate) async fn create_consumer(
    connection: &BucketConnection,
    bucket: &Bucket,
    name: &str,
    inbox: &str,
    filters: &[String],
    idle_heartbeat: Duration,
) -> NatsResult<u64> {
    let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let config = ConsumerSettings {
        name,
        deliver_subject: inbox,
        deliver_policy: "last_per_subject",
        ack_policy: "none",
        replay_policy: "instant",
        filter_subjects: filters,
        flow_control: true,
        idle_heartbeat: nanos(idle_heartbeat),
        // It is gone this long after its reader.
        inactive_threshold: nanos(idle_heartbeat * 10),
        max_deliver: 1,
        mem_storage: true,
        num_replicas: 1,
    };
    let request = ConsumerRequest { stream_name: bucket.stream(), config, action: "create" };
    let body = serde_json::to_string(&request).map_err(|error| Failure::Refused { why: one_line(&error.to_string()) })?;
    let made: Result<ConsumerInfo, _> = call(connection, format!("$JS.API.CONSUMER.CREATE.{}.{name}", bucket.stream()), body).await?;
    made.map(|info| info.num_pending).map_err(|error| error.failure())
}

/// Deletes a consumer. It is no error if it is gone.
pub(crate) async fn delete_consumer(connection: &BucketConnection, bucket: &Bucket, name: &str) -> NatsResult<()> {
    let subject = format!("$JS.API.CONSUMER.DELETE.{}.{name}", bucket.stream());
    let gone: Result<IgnoredAny, ApiError> = call(connection, subject, String::new()).await?;
    // Whatever the server says: without a reader the consumer ends by itself.
    drop(gone);
    Ok(())
}
