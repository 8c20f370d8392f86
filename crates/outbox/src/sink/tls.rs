//! TLS to a destination: rustls with ring, made here and handed over, so that the process-wide provider is neither needed nor touched.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;

use crate::{Error, ErrorKind, Result};

/// The files that TLS is made from. They are read anew for each connection, so that renewed certificates are taken up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The CA, in PEM, that must have signed the server's certificate; without it those this machine trusts.
    pub ca: Option<PathBuf>,
    /// This client's certificate chain and its private key, in PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl TlsFiles {
    /// What connections are made with. Where TLS is not `needed` a machine that trusts nobody is no error.
    pub(super) fn client_config(&self, needed: bool) -> Result<ClientConfig> {
        let unusable = |error: rustls::Error| Error::new(ErrorKind::Settings, format!("TLS to the sink cannot be used: {error}"));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(unusable)?;
        let builder = match &self.ca {
            Some(path) => builder.with_root_certificates(roots(path)?),
            None => match builder.clone().with_platform_verifier() {
                Ok(trusting) => trusting,
                Err(error) if needed => return Err(unusable(error)),
                Err(_) => builder.with_root_certificates(RootCertStore::empty()),
            },
        };
        let Some((certificate, key)) = &self.identity else { return Ok(builder.with_no_client_auth()) };
        let chain = certificates(certificate)?;
        // What is wrong with it is not told in detail: it is a key.
        let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|_| damaged(key, "no private key in it"))?;
        builder.with_client_auth_cert(chain, key).map_err(unusable)
    }
}

fn roots(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| damaged(path, &error.to_string()))?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(damaged(path, "no certificate in it")),
        Err(_) => Err(damaged(path, "damaged PEM")),
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| Error::new(ErrorKind::Settings, format!("{} cannot be read: {error}", path.display())))
}

fn damaged(path: &Path, why: &str) -> Error {
    Error::new(ErrorKind::Settings, format!("{} cannot be used ({why}): it must be a PEM file", path.display()))
}
