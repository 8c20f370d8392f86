//! TLS from PEM files (feature `tls`; clients need `tls-client`, their connections `tls-connect`): rustls with ring, made here and handed
//! over, so that the process-wide provider is neither needed nor touched.

#[cfg(feature = "tls-client")]
mod client;
#[cfg(feature = "tls-connect")]
mod connect;
mod server;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

#[cfg(feature = "tls-client")]
pub use self::client::{SystemTrust, TlsFiles};
#[cfg(feature = "tls-connect")]
pub use self::connect::{CertificateAdvice, ConnectFailure, ServerStream, connect_tcp, connect_tls, rustls_error, speaks_tls};
pub use self::server::{ClientAuth, client_verifier, server_config};
use crate::one_line;

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

/// A file that TLS cannot use. Never quotes the content: it may be a private key, even in a file of certificates.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{why}", .path.as_deref().map(|path| format!("{} ", quoted(path))).unwrap_or_default())]
pub struct TlsError {
    /// Which file is the cause.
    pub file: TlsFile,
    /// Where it is; `None`: no CA is set, and those of this machine are the cause.
    pub path: Option<PathBuf>,
    /// The fault, as the words that follow the path.
    why: String,
}

impl TlsError {
    fn new(file: TlsFile, path: &Path, why: String) -> Self {
        Self { file, path: Some(path.to_owned()), why }
    }

    /// A file that was read and cannot be used.
    pub fn unusable(file: TlsFile, path: &Path, why: &dyn std::fmt::Display) -> Self {
        Self::new(file, path, format!("cannot be used: {}", one_line(&why.to_string())))
    }

    /// The fault, as the words that follow the name of the setting.
    pub fn of_setting(&self) -> String {
        match &self.path {
            Some(path) => format!("is {}, which {}", quoted(path), self.why),
            None => format!("is not set, and without it {}", self.why),
        }
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
