//! In the place of `tls`, without the feature `tls`: what needs TLS is refused by name.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::ByteStream;
use super::dial::Unreached;
use crate::settings::PeerCertificates;

const ABSENT: &str = "it has TLS, and this program is built without it: enable the feature tls";

/// What binds a proof to one connection.
pub type Binding = [u8; 32];

/// No TLS.
#[derive(Debug, Clone, Default)]
pub struct ChannelTls {}

impl ChannelTls {
    /// The settings were checked before: without TLS none has certificates.
    pub(in crate::requests) fn of(_: &PeerCertificates) -> Result<Self, String> {
        Ok(Self {})
    }

    /// Whether this member listens with TLS.
    pub const fn listens(&self) -> bool {
        false
    }

    /// Whether callers must present a certificate.
    pub const fn is_mutual(&self) -> bool {
        false
    }

    pub(super) fn barred(&self, _has_secret: bool) -> Option<String> {
        Some(ABSENT.into())
    }
}

pub(super) async fn secured<S: ByteStream>(_: &ChannelTls, _: &str, stream: S, _: Duration) -> Result<(S, Binding), Unreached> {
    drop(stream);
    Err(Unreached::Barred(ABSENT.into()))
}

pub(super) async fn accepted<S: ByteStream>(_: &ChannelTls, stream: S) -> io::Result<(S, Binding)> {
    drop(stream);
    Err(io::ErrorKind::Unsupported.into())
}

pub(super) fn broken(address: SocketAddr, error: &io::Error) -> Unreached {
    Unreached::Unsent(format!("{address}: {error}"))
}
