//! TLS to a destination.

use rustls::ClientConfig;
use shardwise::discovery::tls::SystemTrust;
pub use shardwise::discovery::tls::TlsFiles;

use crate::{Error, ErrorKind, Result};

/// What connections are made with. Where TLS is not `needed` a machine that trusts nobody is no error.
pub(super) fn client_config(files: &TlsFiles, needed: bool) -> Result<ClientConfig> {
    let trust = if needed { SystemTrust::Required } else { SystemTrust::IfAny };
    files.client_config(trust).map_err(|error| Error::new(ErrorKind::Settings, format!("TLS to the sink cannot be set up: {error}")))
}
