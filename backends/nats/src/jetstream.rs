//! The requests and answers of `JetStream` that this backend needs, as JSON. The client's own types are not used: they know no
//! version-dependent details that matter here, and its key-value store has other conditions, heartbeats and limits.

mod consumers;
mod subjects;

use async_nats::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::json;
use shardwise_discovery::one_line;

use crate::api_errors::{ApiError, ErrorPart, code};
use crate::connection::BucketConnection;
use crate::error::{Failure, NatsResult};
use crate::names::Bucket;

pub(crate) use self::consumers::{create_consumer, delete_consumer};
pub(crate) use self::subjects::{PresentSubjects, present_subjects};

const EXPECTED_SEQUENCE: &str = "Nats-Expected-Last-Subject-Sequence";
const EXPECTED_STREAM: &str = "Nats-Expected-Stream";
/// With this header the tools of NATS take an empty message for a key that is gone.
const OPERATION: &str = "KV-Operation";

/// How a stream is set up, and its state, as far as it matters here.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct StreamInfo {
    pub(crate) config: StreamSettings,
    /// When it was made.
    pub(crate) created: String,
    #[serde(default)]
    cluster: Option<StreamPeers>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct StreamPeers {
    /// The cluster's; a server that is in none gives no name.
    #[serde(default)]
    name: String,
}

impl StreamInfo {
    pub(crate) fn is_clustered(&self) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| !cluster.name.is_empty())
    }
}

/// The settings of a stream that this backend depends on.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct StreamSettings {
    #[serde(default)]
    pub(crate) subjects: Vec<String>,
    #[serde(default)]
    pub(crate) storage: String,
    #[serde(default)]
    pub(crate) num_replicas: usize,
    #[serde(default)]
    pub(crate) max_age: i64,
    #[serde(default)]
    pub(crate) max_msgs_per_subject: i64,
    #[serde(default)]
    pub(crate) max_msgs: i64,
    #[serde(default)]
    pub(crate) max_bytes: i64,
    #[serde(default)]
    pub(crate) discard: String,
    #[serde(default)]
    pub(crate) retention: String,
    #[serde(default)]
    pub(crate) deny_purge: bool,
    #[serde(default)]
    pub(crate) no_ack: bool,
    #[serde(default)]
    pub(crate) sealed: bool,
    #[serde(default)]
    pub(crate) mirror: Option<serde::de::IgnoredAny>,
}

/// A message that was read by its subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LastMessage {
    pub(crate) sequence: u64,
    pub(crate) payload: Vec<u8>,
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CasOutcome {
    Written(u64),
    /// Another message stands there than was expected.
    Refused,
}

async fn call<T: for<'a> Deserialize<'a>>(connection: &BucketConnection, subject: String, body: String) -> NatsResult<Result<T, ApiError>> {
    if !connection.has_jetstream {
        return Err(Failure::NoJetStream);
    }
    let answer = connection.request(subject, None, body.into()).await?;
    let unreadable =
        |error: serde_json::Error| Failure::Refused { why: one_line(&format!("an answer of JetStream cannot be read: {error}")) };
    let ErrorPart { error } = serde_json::from_slice(&answer.payload).map_err(unreadable)?;
    match error {
        Some(error) => Ok(Err(error)),
        None => serde_json::from_slice(&answer.payload).map(Ok).map_err(unreadable),
    }
}

/// Describes the bucket's stream; `None` if there is none.
pub(crate) async fn stream_info(connection: &BucketConnection, bucket: &Bucket) -> NatsResult<Option<StreamInfo>> {
    match call(connection, format!("$JS.API.STREAM.INFO.{}", bucket.stream()), String::new()).await? {
        Ok(info) => Ok(Some(info)),
        Err(error) if error.err_code == code::STREAM_NOT_FOUND => Ok(None),
        Err(error) => Err(error.failure()),
    }
}

/// Makes the bucket; of several that make it at once one does, and that is no error.
pub(crate) async fn create_stream(connection: &BucketConnection, bucket: &Bucket, replicas: usize) -> NatsResult<()> {
    let body = json!({
        "name": bucket.stream(),
        "description": "members, claims and notes of shardwise",
        "subjects": [bucket.subjects()],
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "max_msgs_per_subject": 1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_msg_size": -1,
        "max_consumers": -1,
        "max_age": 0,
        "num_replicas": replicas,
        "allow_rollup_hdrs": true,
        "deny_delete": true,
    });
    let made: Result<StreamInfo, _> = call(connection, format!("$JS.API.STREAM.CREATE.{}", bucket.stream()), body.to_string()).await?;
    match made {
        Ok(_) => Ok(()),
        Err(error) if error.err_code == code::STREAM_IN_USE => Ok(()),
        Err(error) if error.err_code == code::NO_PEERS => {
            let why = format!(
                "cannot be made with {replicas} replicas: {}; start more servers with JetStream, or set discovery.nats.replicas",
                one_line(&error.description)
            );
            Err(Failure::Bucket { bucket: bucket.name().to_owned(), why })
        }
        Err(error) => Err(error.failure()),
    }
}

/// The last message of a subject, as the stream's leader has it: not older than what it has acknowledged, unless another server leads by
/// now. So it decides only what a later write confirms, or what stays true for ever.
pub(crate) async fn last_message(connection: &BucketConnection, bucket: &Bucket, subject: &str) -> NatsResult<Option<LastMessage>> {
    #[derive(Deserialize)]
    struct MessageAnswer {
        message: Stored,
    }
    #[derive(Deserialize)]
    struct Stored {
        seq: u64,
        #[serde(default)]
        data: Option<String>,
    }
    let body = json!({ "last_by_subj": subject }).to_string();
    let found: Result<MessageAnswer, _> = call(connection, format!("$JS.API.STREAM.MSG.GET.{}", bucket.stream()), body).await?;
    match found {
        Ok(MessageAnswer { message: Stored { seq, data } }) => {
            let damaged = |_| Failure::Unreadable { subject: subject.to_owned(), why: "its base64 is damaged".into() };
            let payload = STANDARD.decode(data.unwrap_or_default()).map_err(damaged)?;
            Ok(Some(LastMessage { sequence: seq, payload }))
        }
        Err(error) if error.err_code == code::NO_MESSAGE => Ok(None),
        Err(error) => Err(error.failure()),
    }
}

/// Writes a message if the last one of its subject has the sequence `expected`; 0: if there is none.
pub(crate) async fn publish(
    connection: &BucketConnection,
    bucket: &Bucket,
    subject: String,
    expected: u64,
    payload: Vec<u8>,
) -> NatsResult<CasOutcome> {
    let mut headers = HeaderMap::new();
    headers.insert(EXPECTED_SEQUENCE, expected.to_string());
    headers.insert(EXPECTED_STREAM, bucket.stream());
    if payload.is_empty() {
        headers.insert(OPERATION, "DEL");
    }
    acknowledged(&connection.request(subject, Some(headers), payload.into()).await?.payload)
}

/// Writes a message whatever stands there: for probes.
pub(crate) async fn publish_over(connection: &BucketConnection, bucket: &Bucket, subject: String, payload: Vec<u8>) -> NatsResult<u64> {
    let mut headers = HeaderMap::new();
    headers.insert(EXPECTED_STREAM, bucket.stream());
    match acknowledged(&connection.request(subject, Some(headers), payload.into()).await?.payload)? {
        CasOutcome::Written(sequence) => Ok(sequence),
        CasOutcome::Refused => Err(Failure::Contended),
    }
}

/// What an acknowledgement says of a write.
pub(crate) fn acknowledged(answer: &[u8]) -> NatsResult<CasOutcome> {
    #[derive(Deserialize)]
    struct Acknowledgement {
        #[serde(default)]
        seq: u64,
        error: Option<ApiError>,
    }
    let unreadable = |error: serde_json::Error| Failure::Refused { why: one_line(&format!("an acknowledgement cannot be read: {error}")) };
    let read: Acknowledgement = serde_json::from_slice(answer).map_err(unreadable)?;
    match read {
        Acknowledgement { error: Some(error), .. } if code::WRONG_LAST_SEQUENCE.contains(&error.err_code) => Ok(CasOutcome::Refused),
        Acknowledgement { error: Some(error), .. } => Err(error.failure()),
        Acknowledgement { seq: 0, .. } => Err(Failure::Refused { why: "an acknowledgement has no sequence".into() }),
        Acknowledgement { seq, .. } => Ok(CasOutcome::Written(seq)),
    }
}

/// Forgets the messages of one subject up to that sequence.
pub(crate) async fn purge(connection: &BucketConnection, bucket: &Bucket, subject: &str, up_to: u64) -> NatsResult<()> {
    let body = json!({ "filter": subject, "seq": up_to.saturating_add(1) }).to_string();
    let purged: Result<serde::de::IgnoredAny, ApiError> =
        call(connection, format!("$JS.API.STREAM.PURGE.{}", bucket.stream()), body).await?;
    purged.map(drop).map_err(|error| error.failure())
}

/// The payload of [`publish_over`]: for people, since nothing reads it.
pub(crate) fn probe_payload() -> Vec<u8> {
    b"\"probe\"".to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_are_read() {
        assert!(matches!(acknowledged(br#"{"stream":"KV_b","seq":7}"#), Ok(CasOutcome::Written(7))));
        for refused in [10_071, 10_164] {
            let text = format!(
                r#"{{"error":{{"code":400,"err_code":{refused},"description":"wrong last sequence: 5"}},"stream":"KV_b","seq":0}}"#
            );
            assert!(matches!(acknowledged(text.as_bytes()), Ok(CasOutcome::Refused)));
        }
        for (text, passes) in [
            (r#"{"error":{"code":503,"err_code":10008,"description":"not available"}}"#, true),
            (r#"{"error":{"code":503,"err_code":10077,"description":"no space"}}"#, true),
            (r#"{"error":{"code":400,"err_code":10060,"description":"expected stream does not match"}}"#, false),
            (r#"{"stream":"KV_b"}"#, false),
            ("x", false),
        ] {
            let failure = acknowledged(text.as_bytes()).unwrap_err();
            assert_eq!(failure.is_passing(), passes, "{failure}");
        }
    }

    #[test]
    fn a_stream_is_read_whatever_else_a_server_says_of_it() {
        let text = r#"{"type":"x","config":{"name":"KV_b","subjects":["$KV.b.>"],"storage":"file","num_replicas":3,"max_age":0,"new":{}},
            "created":"2026-11-27T00:00:00Z","state":{"messages":1},"cluster":{"name":"c","leader":"n1","replicas":[]}}"#;
        let info: StreamInfo = serde_json::from_str(text).unwrap();
        assert!(info.is_clustered() && info.config.mirror.is_none() && info.config.num_replicas == 3);
        let alone: StreamInfo = serde_json::from_str(r#"{"config":{},"created":"x","cluster":{"leader":"n1"}}"#).unwrap();
        assert!(!alone.is_clustered());
    }
}
