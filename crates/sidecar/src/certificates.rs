//! TLS of the sidecar's listener, for clients and for members.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use shardwise::discovery::tls::{TlsError, TlsFile, certificates, private_key, provider, roots};
use shardwise::requests::channel::ALPN;

use crate::error::Error;

/// What clients speak; members say that they are some.
const HTTP: &[u8] = b"http/1.1";

/// A certificate chain and its matching key.
#[derive(Debug)]
pub struct Tls {
    chain: Vec<CertificateDer<'static>>,
    /// Not shown by `Debug`.
    key: PrivateKeyDer<'static>,
    /// For errors.
    file: PathBuf,
}

impl Tls {
    /// Reads the certificate chain and the private key from these PEM files.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if they cannot be read or do not match.
    pub fn from_files(chain: &Path, key: &Path) -> Result<Self, Error> {
        let tls = Self { chain: certificates(TlsFile::Certificate, chain)?, key: private_key(key)?, file: chain.to_owned() };
        // Building a configuration checks whether they match.
        tls.served(None)?;
        Ok(tls)
    }

    /// The configuration of a listener with this certificate; `members` verifies client certificates.
    pub(crate) fn served(&self, members: Option<Arc<dyn ClientCertVerifier>>) -> Result<Arc<ServerConfig>, Error> {
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| unusable(&self.file, &error))?;
        let verifies = members.is_some();
        let builder = match members {
            Some(members) => builder.with_client_cert_verifier(members),
            None => builder.with_no_client_auth(),
        };
        let config = builder.with_single_cert(self.chain.clone(), self.key.clone_key());
        let mut config = config.map_err(|error| unusable(&self.file, &error))?;
        config.alpn_protocols = vec![ALPN.to_vec(), HTTP.to_vec()];
        if verifies {
            // A resumed session would keep its client certificate without another verification.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Arc::new(config))
    }
}

/// The verifier of client certificates: a client may present none, but a certificate must be signed by one of the CAs in that PEM file.
pub(crate) fn verifier(file: &Path) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(file)?), provider()).allow_unauthenticated().build();
    verifier.map_err(|error| unusable(file, &error))
}

fn unusable(file: &Path, error: &dyn Display) -> Error {
    Error::Options(format!("{}: {error}", file.display()))
}

impl From<TlsError> for Error {
    fn from(error: TlsError) -> Self {
        Self::Options(error.to_string())
    }
}
