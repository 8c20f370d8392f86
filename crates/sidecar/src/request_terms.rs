//! What the headers of a client's request say about it: how long it waits, by which id it may be cancelled, and whether it may be repeated.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName};
use shardwise::core::routing::WITHIN_MIN;
use shardwise::requests::{IDEMPOTENCY_KEY_BYTES_MAX, WITHIN_MAX};

use crate::problem::{BAD_REQUEST, Result};

const WITHIN: HeaderName = HeaderName::from_static("shardwise-within-ms");
const ID: HeaderName = HeaderName::from_static("shardwise-request-id");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The most characters of an id.
const ID_BYTES_MAX: usize = 128;

/// What a client says about its request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestTerms {
    /// How long it waits for the answer, over all attempts; `None` if it does not say.
    pub(crate) within: Option<Duration>,
    /// The id by which it may cancel the request.
    pub(crate) id: Option<String>,
    /// The request may be handled twice with the effect of once.
    pub(crate) idempotency_key: Option<String>,
}

impl RequestTerms {
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self> {
        Ok(Self {
            within: within(headers)?,
            id: word(headers, &ID, ID_BYTES_MAX)?,
            idempotency_key: word(headers, &IDEMPOTENCY_KEY, IDEMPOTENCY_KEY_BYTES_MAX)?,
        })
    }
}

fn within(headers: &HeaderMap) -> Result<Option<Duration>> {
    let Some(value) = headers.get(&WITHIN) else { return Ok(None) };
    let within = value.to_str().ok().and_then(|text| text.parse().ok()).map(Duration::from_millis);
    let refused = || BAD_REQUEST.because(format!("{WITHIN} is a whole number of milliseconds from 1 to {}", WITHIN_MAX.as_millis()));
    within.filter(|within| (WITHIN_MIN..=WITHIN_MAX).contains(within)).map(Some).ok_or_else(refused)
}

/// A header of printable ASCII without blanks.
fn word(headers: &HeaderMap, name: &HeaderName, most: usize) -> Result<Option<String>> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let bytes = value.as_bytes();
    if !(1..=most).contains(&bytes.len()) || !bytes.iter().all(u8::is_ascii_graphic) {
        return Err(BAD_REQUEST.because(format!("{name} has 1 to {most} characters of printable ASCII without blanks")));
    }
    Ok(Some(String::from_utf8_lossy(bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(headers: &[(&HeaderName, &str)]) -> std::result::Result<RequestTerms, String> {
        let headers: HeaderMap = headers.iter().map(|(name, value)| ((*name).clone(), value.parse().unwrap())).collect();
        RequestTerms::of(&headers).map_err(|problem| {
            assert_eq!(problem.status(), 400);
            problem.detail().to_owned()
        })
    }

    #[test]
    fn a_request_says_how_long_it_waits_and_by_which_id_it_is_cancelled() {
        assert_eq!(terms(&[]), Ok(RequestTerms::default()));
        let said = terms(&[(&WITHIN, "300000"), (&ID, "a-1"), (&IDEMPOTENCY_KEY, "order-7")]).unwrap();
        assert_eq!((said.within, said.id.as_deref(), said.idempotency_key.as_deref()), (Some(WITHIN_MAX), Some("a-1"), Some("order-7")));
    }

    #[test]
    fn what_is_out_of_range_is_refused() {
        for within in ["0", "300001", "-1", "1.5", "", "10s", "99999999999999999999"] {
            assert!(terms(&[(&WITHIN, within)]).unwrap_err().contains("from 1 to 300000"), "{within:?}");
        }
        for word in ["", "a b", &"x".repeat(257)] {
            assert!(terms(&[(&ID, word)]).unwrap_err().contains("shardwise-request-id has 1 to 128"), "{word:?}");
            assert!(terms(&[(&IDEMPOTENCY_KEY, word)]).unwrap_err().contains("idempotency-key has 1 to 256"), "{word:?}");
        }
    }
}
