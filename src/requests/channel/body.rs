//! A body that arrives, up to a limit.

use std::error::Error;

use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Body as _, Incoming};

/// Each frame is copied and dropped: collected frames of a byte each would hold the blocks that they came in.
///
/// # Errors
///
/// [`http_body_util::LengthLimitError`] if it is longer than that; else it is cut off.
pub(super) async fn whole(body: Incoming, bytes_max: usize) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
    let length = body.size_hint().exact();
    let (mut body, mut bytes) = (Limited::new(body, bytes_max), Vec::new());
    while let Some(frame) = body.frame().await {
        if let Ok(piece) = frame?.into_data() {
            bytes.extend_from_slice(&piece);
        }
    }
    // hyper takes a reset with NO_ERROR for the end of a body.
    if length.is_some_and(|length| length != bytes.len() as u64) {
        return Err("it is cut off".into());
    }
    Ok(bytes)
}
