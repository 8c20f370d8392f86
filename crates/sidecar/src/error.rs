//! Why a sidecar does not start, or ends.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use shardwise::core::write_with_causes;

/// Why a sidecar failed to start, or ended.
#[derive(thiserror::Error)]
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

impl fmt::Debug for Error {
    /// Like [`Display`](fmt::Display), with the causes: `main` prints a returned error by its `Debug`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_causes(f, self)
    }
}
