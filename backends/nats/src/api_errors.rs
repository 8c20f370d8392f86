//! What JetStream says in its answers where it did not do what was asked.

use serde::Deserialize;
use shardwise_discovery::one_line;

use crate::error::Failure;

/// JetStream's numbers of errors.
pub(crate) mod code {
    pub(crate) const NO_RESOURCES: [u32; 4] = [10_002, 10_023, 10_028, 10_047];
    pub(crate) const NO_PEERS: u32 = 10_005;
    pub(crate) const CLUSTER_NOT_READY: [u32; 3] = [10_008, 10_009, 10_118];
    pub(crate) const NOT_ENABLED: [u32; 2] = [10_039, 10_076];
    pub(crate) const NO_MESSAGE: u32 = 10_037;
    pub(crate) const STREAM_IN_USE: u32 = 10_058;
    pub(crate) const STREAM_NOT_FOUND: u32 = 10_059;
    pub(crate) const WRONG_LAST_SEQUENCE: [u32; 2] = [10_071, 10_164];
    pub(crate) const STORE_FAILED: u32 = 10_077;
}

#[derive(Debug, Deserialize)]
pub(crate) struct ApiError {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    pub(crate) err_code: u32,
    #[serde(default)]
    pub(crate) description: String,
}

impl ApiError {
    pub(crate) fn failure(&self) -> Failure {
        let why = one_line(&format!("{} ({})", self.description, self.err_code));
        match self.err_code {
            of if code::NOT_ENABLED.contains(&of) => Failure::NoJetStream,
            of if code::CLUSTER_NOT_READY.contains(&of) => Failure::NotReady { why },
            of if code::NO_RESOURCES.contains(&of) || of == code::STORE_FAILED => Failure::Full { why },
            code::STREAM_NOT_FOUND => Failure::NotReady { why: "the bucket is gone, and is looked for again".into() },
            // What a server cannot do at present.
            _ if self.code == 503 => Failure::NotReady { why },
            _ => Failure::Refused { why },
        }
    }
}

/// The part of any answer that says what is wrong.
#[derive(Deserialize)]
pub(crate) struct ErrorPart {
    pub(crate) error: Option<ApiError>,
}

/// Whether the server says that the request cannot be answered at present, as one does that knows no leader.
pub(crate) fn says_unready(answer: &[u8]) -> bool {
    let read = serde_json::from_slice(answer);
    matches!(read, Ok(ErrorPart { error: Some(error) }) if code::CLUSTER_NOT_READY.contains(&error.err_code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_that_nobody_can_answer_is_none() {
        assert!(says_unready(br#"{"type":"x","error":{"code":503,"err_code":10008,"description":"not available"}}"#));
        for text in [r#"{"error":{"code":404,"err_code":10059}}"#, r#"{"seq":7}"#, "x"] {
            assert!(!says_unready(text.as_bytes()), "{text}");
        }
    }
}
