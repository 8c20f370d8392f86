//! The TLS configuration of a listener.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

use super::provider;

/// Whether a client must present a certificate. One that it presents is always verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuth {
    /// A client without one is refused.
    Required,
    /// A client may present none.
    Optional,
}

/// The verifier of client certificates, which one of these CAs must have signed.
///
/// # Errors
/// There is no CA.
pub fn client_verifier(roots: Arc<RootCertStore>, auth: ClientAuth) -> Result<Arc<dyn ClientCertVerifier>, VerifierBuilderError> {
    let builder = WebPkiClientVerifier::builder_with_provider(roots, provider());
    match auth {
        ClientAuth::Required => builder.build(),
        ClientAuth::Optional => builder.allow_unauthenticated().build(),
    }
}

/// The configuration of a listener with this certificate and these protocols (ALPN); `clients` verifies client certificates.
///
/// # Errors
/// The certificate and the key cannot be used together.
pub fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
    alpn: &[&[u8]],
) -> Result<ServerConfig, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let verifies = clients.is_some();
    let builder = match clients {
        Some(clients) => builder.with_client_cert_verifier(clients),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    if verifies {
        // A resumed session would keep its client certificate without another verification.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(config)
}
