//! The TLS configuration of a client's connections.

use std::path::PathBuf;

use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;

use super::{TlsError, TlsFile, certificates, private_key, provider, quoted, roots};
use crate::one_line;

/// The files that a client's TLS is made from. They are read anew for each configuration, so that renewed certificates are taken up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The CA, in PEM, that must have signed the server's certificate. Without it see [`SystemTrust`].
    pub ca: Option<PathBuf>,
    /// This client's certificate chain and its private key, in PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Whether a client without a CA trusts those of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SystemTrust {
    /// It does; a machine that trusts no CA is an error.
    Required,
    /// It does, where this machine trusts any.
    IfAny,
    /// It trusts no server: for clients without TLS that need a configuration all the same.
    Unused,
}

impl TlsFiles {
    /// Files as settings name them.
    ///
    /// # Errors
    /// The one that is missing of a certificate and its key.
    pub fn new(ca: Option<&PathBuf>, certificate: Option<&PathBuf>, key: Option<&PathBuf>) -> Result<Self, TlsFile> {
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) => return Err(TlsFile::Key),
            (None, Some(_)) => return Err(TlsFile::Certificate),
        };
        Ok(Self { ca: ca.cloned(), identity })
    }

    /// The configuration of the connections. Reads the files.
    ///
    /// # Errors
    /// The file that cannot be read or used.
    pub fn client_config(&self, without_ca: SystemTrust) -> Result<ClientConfig, TlsError> {
        let unusable = |error: rustls::Error| TlsError {
            file: TlsFile::Ca,
            path: None,
            why: format!("TLS cannot be used: {}", one_line(&error.to_string())),
        };
        let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().map_err(unusable)?;
        let builder = match (&self.ca, without_ca) {
            (Some(path), _) => builder.with_root_certificates(roots(path)?),
            (None, SystemTrust::Required) => builder.with_platform_verifier().map_err(unusable)?,
            (None, SystemTrust::IfAny) => match builder.clone().with_platform_verifier() {
                Ok(trusting) => trusting,
                Err(_) => builder.with_root_certificates(RootCertStore::empty()),
            },
            (None, SystemTrust::Unused) => builder.with_root_certificates(RootCertStore::empty()),
        };
        let Some((certificate, key)) = &self.identity else { return Ok(builder.with_no_client_auth()) };
        builder.with_client_auth_cert(certificates(TlsFile::Certificate, certificate)?, private_key(key)?).map_err(|error| {
            let why = format!("cannot be used as a pair with {}: {}", quoted(key), one_line(&error.to_string()));
            TlsError::new(TlsFile::Certificate, certificate, why)
        })
    }
}
