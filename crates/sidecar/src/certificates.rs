//! TLS of the sidecar's listener and between members.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, ServerConfig};
use shardwise::discovery::tls::{TlsError, TlsFile, certificates, private_key, provider, roots};

use crate::server::Error;

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
        if verifies {
            // A resumed session would keep its client certificate without another verification.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Arc::new(config))
    }
}

/// The configuration of a client that trusts the CAs in that PEM file and presents its `own` certificate, and the verifier of client
/// certificates: a client may present none, but a certificate must be signed by one of these CAs.
pub(crate) fn trusting(file: &Path, own: Option<&Tls>) -> Result<(Arc<ClientConfig>, Arc<dyn ClientCertVerifier>), Error> {
    let roots = Arc::new(roots(file)?);
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| unusable(file, &error))?.with_root_certificates(Arc::clone(&roots));
    let config = match own {
        Some(own) => builder.with_client_auth_cert(own.chain.clone(), own.key.clone_key()).map_err(|error| unusable(&own.file, &error))?,
        None => builder.with_no_client_auth(),
    };
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).allow_unauthenticated().build();
    Ok((Arc::new(config), verifier.map_err(|error| unusable(file, &error))?))
}

fn unusable(file: &Path, error: &dyn Display) -> Error {
    Error::Options(format!("{}: {error}", file.display()))
}

impl From<TlsError> for Error {
    fn from(error: TlsError) -> Self {
        Self::Options(error.to_string())
    }
}
