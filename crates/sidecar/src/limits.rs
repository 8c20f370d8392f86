//! Limits on clients.

use std::time::Duration;

/// The most bytes of a request's head: the longest possible path, and as much again for headers.
pub(crate) const HEAD_BYTES_MAX: usize = 128 << 10;

/// Limits on the resources that clients can use.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Limits {
    /// The most bytes of a list of keys.
    pub list_bytes: u64,
    /// The most connections at a time; when there are more, the one that has been idle for longest is closed.
    pub connections: usize,
    /// The most requests per second over all clients; `None` is no limit.
    pub rate: Option<u32>,
    /// The timeout of a request's head, and of an idle connection.
    pub head: Duration,
    /// How long a client may make no progress in the middle of a message, sending or receiving.
    pub stall: Duration,
    /// The timeout of a whole body.
    pub body: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            list_bytes: 256 << 20,
            connections: 512,
            rate: None,
            head: Duration::from_secs(10),
            stall: Duration::from_secs(10),
            body: Duration::from_mins(1),
        }
    }
}
