//! Connections to Valkey and Redis (feature `valkey`), for the backend and for the outbox's sink: one server, or the primary that Sentinels
//! name. Failures are facts; each caller puts them into words with the names of its settings.

mod dial;
mod sentinel;

use std::fmt;

pub use self::dial::{DialFailure, Login, dial};
pub use self::sentinel::{SentinelFailure, SentinelTarget};

/// Where one server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValkeyAddress {
    /// Whether it speaks TLS.
    pub tls: bool,
    /// A name, or an IP address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl fmt::Display for ValkeyAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') { write!(f, "[{}]:{}", self.host, self.port) } else { write!(f, "{}:{}", self.host, self.port) }
    }
}
