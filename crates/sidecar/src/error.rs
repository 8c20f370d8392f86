//! Why a sidecar does not start, or ends.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a sidecar failed to start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An invalid option.
    #[error("{0}")]
    Options(String),
    /// A required file cannot be read.
    #[error("cannot read {}: {}", .0.display(), .1)]
    File(PathBuf, #[source] io::Error),
    /// The address to listen on cannot be used.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, #[source] io::Error),
    /// The system provides no thread.
    #[error("cannot start its threads: {0}")]
    Threads(#[source] io::Error),
    /// An error of the library or the backend.
    #[error(transparent)]
    Sharding(#[from] shardwise::Error),
}
