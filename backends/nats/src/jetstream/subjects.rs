//! Which subjects a stream has messages of.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::json;

use super::call;
use crate::api_errors::ApiError;
use crate::connection::BucketConnection;
use crate::error::NatsResult;
use crate::names::Bucket;

/// The subjects that a stream had messages of when it had taken its message `last_sequence`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct PresentSubjects {
    #[serde(default, rename = "last_seq")]
    pub(crate) last_sequence: u64,
    /// With the number of messages of each; missing where none matches.
    #[serde(default)]
    pub(crate) subjects: BTreeMap<String, u64>,
}

/// The subjects of the bucket that match the filter. The answer is the leader's. It has at most 100,000 of them.
pub(crate) async fn present_subjects(connection: &BucketConnection, bucket: &Bucket, filter: &str) -> NatsResult<PresentSubjects> {
    #[derive(Deserialize)]
    struct StateAnswer {
        state: PresentSubjects,
    }
    let body = json!({ "subjects_filter": filter }).to_string();
    let answer: Result<StateAnswer, ApiError> = call(connection, format!("$JS.API.STREAM.INFO.{}", bucket.stream()), body).await?;
    answer.map(|answer| answer.state).map_err(|error| error.failure())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_whether_subjects_match_or_not() {
        let read = |text| serde_json::from_str::<PresentSubjects>(text).unwrap();
        let some = read(r#"{"messages":2,"first_seq":1,"last_seq":7,"num_subjects":2,"subjects":{"$KV.s.a":1,"$KV.s.b":1}}"#);
        assert_eq!((some.last_sequence, some.subjects.len()), (7, 2));
        assert_eq!(read(r#"{"messages":0,"last_seq":7}"#), PresentSubjects { last_sequence: 7, ..PresentSubjects::default() });
    }
}
