//! TLS of the sidecar's listener and between members.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use shardwise::discovery::tls::{TlsError, TlsFile, certificates, private_key, provider, roots};

use crate::server::Error;

/// A certificate chain and its matching key.
#[derive(Debug)]
pub struct Tls {
    chain: Vec<CertificateDer<'static>>,
    /// Not shown by `Debug`.
    key: PrivateKeyDer<'static>,
    /// For errors.
    file: String,
}

impl Tls {
    /// Reads the certificate chain and the private key from these PEM files.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if they cannot be read or do not match.
    pub fn from_files(chain: &Path, key: &Path) -> Result<Self, Error> {
        let certificates = certificates(TlsFile::Certificate, chain).map_err(|error| unusable(&error))?;
        let private = private_key(key).map_err(|error| unusable(&error))?;
        let tls = Self { chain: certificates, key: private, file: chain.display().to_string() };
        // Building a configuration checks whether they match.
        tls.served(None)?;
        Ok(tls)
    }

    /// The configuration of a listener with this certificate; `members` verifies client certificates.
    pub(crate) fn served(&self, members: Option<Arc<dyn ClientCertVerifier>>) -> Result<Arc<ServerConfig>, Error> {
        let builder =
            ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().map_err(|error| self.bad(&error))?;
        let judges = members.is_some();
        let builder = match members {
            Some(members) => builder.with_client_cert_verifier(members),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(self.chain.clone(), self.key.clone_key()).map_err(|error| self.bad(&error))?;
        if judges {
            // A resumed session would keep its client certificate without another verification.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Arc::new(config))
    }

    fn bad(&self, error: &rustls::Error) -> Error {
        Error::Options(format!("{}: {error}", self.file))
    }
}

fn unusable(error: &TlsError) -> Error {
    Error::Options(error.to_string())
}

/// The trusted CAs: the certificates in a PEM file.
#[derive(Debug)]
pub(crate) struct Signers {
    roots: Arc<RootCertStore>,
    /// For errors.
    file: String,
}

impl Signers {
    /// # Errors
    ///
    /// [`Error::Options`] if the file contains none.
    pub(crate) fn from_file(file: &Path) -> Result<Self, Error> {
        let roots = roots(file).map_err(|error| unusable(&error))?;
        Ok(Self { roots: Arc::new(roots), file: file.display().to_string() })
    }

    /// The configuration of a client that trusts these CAs and presents its `own` certificate.
    pub(crate) fn client(&self, own: Option<&Tls>) -> Result<Arc<ClientConfig>, Error> {
        let builder =
            ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().map_err(|error| self.bad(&error))?;
        let builder = builder.with_root_certificates(Arc::clone(&self.roots));
        let config = match own {
            Some(own) => builder.with_client_auth_cert(own.chain.clone(), own.key.clone_key()).map_err(|error| own.bad(&error))?,
            None => builder.with_no_client_auth(),
        };
        Ok(Arc::new(config))
    }

    /// The verifier of client certificates: a client may present none, but a certificate must be signed by one of these CAs.
    pub(crate) fn judge(&self) -> Result<Arc<dyn ClientCertVerifier>, Error> {
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::clone(&self.roots), provider());
        builder.allow_unauthenticated().build().map_err(|error| self.bad(&error))
    }

    fn bad(&self, error: &dyn std::fmt::Display) -> Error {
        Error::Options(format!("{}: {error}", self.file))
    }
}
