//! A handler's answer.

use serde::Serialize;
use serde_json::{Value, json};

use super::{BODY_BYTES_MAX, CONTENT_TYPE_BYTES_MAX};

/// The media type of refusals (RFC 9457).
pub const PROBLEM_JSON: &str = "application/problem+json";

const JSON: &str = "application/json";

/// A handler's answer: 200 unless another status is set.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// From 200 to 299 or from 400 to 599.
    pub status: u16,
    /// The type of the body: printable ASCII, at most [`CONTENT_TYPE_BYTES_MAX`] bytes.
    pub content_type: String,
    /// The body, at most [`BODY_BYTES_MAX`] bytes.
    pub body: Vec<u8>,
    /// The load of the member that answered ([`crate::ShardingService::load`]). The member sets it; what a handler sets has no effect.
    pub load: Option<u64>,
    /// Over how many members the owner of the key has its requests spread, if it is more than one. The owner sets it.
    pub width: Option<u64>,
}

impl Answer {
    /// An answer with bytes of that type.
    pub fn bytes(content_type: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Self { status: 200, content_type: content_type.into(), body: body.into(), load: None, width: None }
    }

    /// An answer with text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::bytes("text/plain; charset=utf-8", text.into())
    }

    /// An answer with a value as JSON; 500 if it cannot be serialized.
    pub fn json(value: &impl Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => Self::bytes(JSON, body),
            Err(error) => Self::failed(&format!("the answer cannot be written as JSON: {error}")),
        }
    }

    /// A refusal as in RFC 9457: a stable `kind`, its title, and the detail of this case.
    pub fn problem(status: u16, kind: &str, title: &str, detail: &str) -> Self {
        let problem = json!({"type": format!("urn:shardwise:problem:{kind}"), "title": title, "status": status, "detail": detail});
        Self::bytes(PROBLEM_JSON, problem.to_string()).with_status(status)
    }

    /// Sets the status.
    #[must_use]
    pub fn with_status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// The answer of a member that does not know what has become of a request which it is no use to send again.
    #[cfg(feature = "requests")]
    pub(crate) fn unknown(why: &str) -> Self {
        Self::problem(502, "worker", "It is unknown if this was handled", why)
    }

    pub(crate) fn failed(detail: &str) -> Self {
        Self::problem(500, "handler-failed", "The worker's handler failed", detail)
    }

    /// The answer, or an error if it may not be sent.
    pub(super) fn checked(self) -> Self {
        let is_type = !self.content_type.is_empty() && is_type(&self.content_type);
        if !matches!(self.status, 200..=299 | 400..=599) {
            Self::failed(&format!("its status is {}; from 200 to 299 and from 400 to 599 are allowed", self.status))
        } else if self.body.len() > BODY_BYTES_MAX {
            Self::failed(&format!("its answer has {} bytes; at most {BODY_BYTES_MAX} are allowed", self.body.len()))
        } else if !is_type {
            Self::failed("the type of its answer is not a media type")
        } else {
            self
        }
    }
}

/// Whether this may be sent as the type of a body.
pub(super) fn is_type(text: &str) -> bool {
    text.len() <= CONTENT_TYPE_BYTES_MAX && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

impl From<String> for Answer {
    fn from(text: String) -> Self {
        Self::text(text)
    }
}

impl From<&'static str> for Answer {
    fn from(text: &'static str) -> Self {
        Self::text(text)
    }
}

impl From<Value> for Answer {
    fn from(value: Value) -> Self {
        Self::json(&value)
    }
}

impl<A: Into<Self>> From<Result<A, Self>> for Answer {
    fn from(result: Result<A, Self>) -> Self {
        result.map_or_else(|refusal| refusal, Into::into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_sent_is_an_error_of_the_handler() {
        let fits = Answer::bytes("x".repeat(CONTENT_TYPE_BYTES_MAX), vec![0; BODY_BYTES_MAX]).with_status(404);
        assert_eq!(fits.clone().checked(), fits);
        for odd in [
            Answer::text("moved").with_status(302),
            Answer::text("?").with_status(99),
            Answer::text("?").with_status(600),
            Answer::bytes("x/y", vec![0; BODY_BYTES_MAX + 1]),
            Answer::bytes("x/y\r\nset-cookie: a=b", "x"),
            Answer::bytes("x".repeat(CONTENT_TYPE_BYTES_MAX + 1), "x"),
            Answer::bytes("", "x"),
        ] {
            let answer = odd.checked();
            assert_eq!((answer.status, answer.content_type.as_str()), (500, PROBLEM_JSON));
        }
    }
}
