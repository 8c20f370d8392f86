//! TLS of the sidecar's listener, for clients and for members.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use shardwise::discovery::tls::{ClientAuth, TlsError, TlsFile, certificates, client_verifier, private_key, roots, server_config};
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
        let config = server_config(self.chain.clone(), self.key.clone_key(), members, &[ALPN, HTTP]);
        config.map(Arc::new).map_err(|error| unusable(&self.file, &error))
    }
}

/// The verifier of client certificates: a client may present none, but a certificate must be signed by one of the CAs in that PEM file.
pub(crate) fn verifier(file: &Path) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    client_verifier(Arc::new(roots(file)?), ClientAuth::Optional).map_err(|error| unusable(file, &error))
}

fn unusable(file: &Path, error: &dyn Display) -> Error {
    Error::Options(format!("{}: {error}", file.display()))
}

impl From<TlsError> for Error {
    fn from(error: TlsError) -> Self {
        Self::Options(error.to_string())
    }
}
