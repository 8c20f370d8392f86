//! TLS from PEM files (feature `tls`): rustls with ring, made here and handed over, so that the process-wide provider is neither needed nor touched.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;

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

/// Which of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsFile {
    /// The CA.
    Ca,
    /// The certificate chain.
    Certificate,
    /// The private key.
    Key,
}

impl TlsFile {
    /// The key that names it in settings.
    pub const fn setting(self) -> &'static str {
        match self {
            Self::Ca => "ca_file",
            Self::Certificate => "cert_file",
            Self::Key => "key_file",
        }
    }
}

/// A file that TLS cannot be made from. Never quotes what is in it: that may be a private key, in a file of certificates too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsError {
    /// Which file is the cause.
    pub file: TlsFile,
    /// Where it is; `None`: without a CA, the ones of this machine are the cause.
    pub path: Option<PathBuf>,
    /// What is wrong with it, to be put behind the path.
    why: String,
}

impl std::error::Error for TlsError {}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{} {}", quoted(path), self.why),
            None => f.write_str(&self.why),
        }
    }
}

impl TlsError {
    fn new(file: TlsFile, path: &Path, why: String) -> Self {
        Self { file, path: Some(path.to_owned()), why }
    }

    fn of_rustls(error: &rustls::Error) -> Self {
        Self { file: TlsFile::Ca, path: None, why: format!("TLS cannot be used: {}", one_line(&error.to_string())) }
    }

    /// What is wrong, to be put behind the name of the setting.
    pub fn of_setting(&self) -> String {
        match &self.path {
            Some(path) => format!("is {}, which {}", quoted(path), self.why),
            None => format!("is not set, and without it {}", self.why),
        }
    }
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

    /// What connections are made with. Reads the files.
    ///
    /// # Errors
    /// The file that cannot be read or used.
    pub fn client_config(&self, without_ca: SystemTrust) -> Result<ClientConfig, TlsError> {
        let unusable = |error: rustls::Error| TlsError::of_rustls(&error);
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

/// The provider of everything that speaks TLS here.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The CAs in a PEM file, at least one.
///
/// # Errors
/// It cannot be read, or there is no usable certificate in it.
pub fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(TlsFile::Ca, path)? {
        let unusable = |error: rustls::Error| TlsError::new(TlsFile::Ca, path, format!("cannot be used: {}", one_line(&error.to_string())));
        roots.add(certificate).map_err(unusable)?;
    }
    Ok(roots)
}

/// The certificates in a PEM file, at least one.
///
/// # Errors
/// It cannot be read, or there is none in it.
pub fn certificates(file: TlsFile, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(file, path)?).collect();
    let damaged = || TlsError::new(file, path, "cannot be used: it must hold certificates in PEM, with their line breaks".to_owned());
    found.ok().filter(|found| !found.is_empty()).ok_or_else(damaged)
}

/// The private key in a PEM file.
///
/// # Errors
/// It cannot be read, or there is none in it.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let damaged =
        |_| TlsError::new(TlsFile::Key, path, "cannot be used: it must hold a private key in PEM, with its line breaks".to_owned());
    PrivateKeyDer::from_pem_slice(&read(TlsFile::Key, path)?).map_err(damaged)
}

/// So that odd characters cannot break the line.
fn quoted(path: &Path) -> String {
    format!("{:?}", path.to_string_lossy())
}

fn read(file: TlsFile, path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|error| TlsError::new(file, path, format!("cannot be read: {error}")))
}
