//! TLS to a destination.

pub use shardwise::discovery::tls::TlsFiles;

/// The TLS configuration of connections. If TLS is not `needed`, a machine without trusted CAs is not an error.
#[cfg(any(feature = "http", feature = "nats"))]
pub(super) fn client_config(files: &TlsFiles, needed: bool) -> crate::Result<rustls::ClientConfig> {
    use shardwise::discovery::tls::SystemTrust;

    let trust = if needed { SystemTrust::Required } else { SystemTrust::IfAny };
    files
        .client_config(trust)
        .map_err(|error| crate::Error::new(crate::ErrorKind::Settings, format!("TLS to the sink cannot be set up: {error}")))
}
