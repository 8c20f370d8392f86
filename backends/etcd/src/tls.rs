//! TLS with rustls and ring. The provider is named here, so that the one of the process, whatever it is, does not matter and is never
//! touched.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;
use shardwise_discovery::one_line;

use crate::EtcdConfig;
use crate::error::Failure;

/// The files that TLS is made from. They are read anew for each connection, so that renewed certificates are taken up.
#[derive(Debug, Clone)]
pub(crate) struct EtcdTlsFiles {
    ca: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
}

impl EtcdTlsFiles {
    pub(crate) fn new(config: &EtcdConfig) -> Result<Self, Failure> {
        let missing = |setting, other: &str| Failure::Setting {
            setting,
            why: format!("is missing, but discovery.etcd.{other} is set; set both or none"),
        };
        let identity = match (&config.cert_file, &config.key_file) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) => return Err(missing("key_file", "cert_file")),
            (None, Some(_)) => return Err(missing("cert_file", "key_file")),
        };
        Ok(Self { ca: config.ca_file.clone(), identity })
    }

    /// What connections are made with. Reads the files.
    pub(crate) fn load(&self) -> Result<Arc<ClientConfig>, Failure> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let unusable =
            |setting, error: &rustls::Error| Failure::Setting { setting, why: format!("cannot be used: {}", one_line(&error.to_string())) };
        let builder = versions.map_err(|error| unusable("ca_file", &error))?;
        let builder = match &self.ca {
            Some(path) => builder.with_root_certificates(roots(path)?),
            None => builder.with_platform_verifier().map_err(|error| unusable("ca_file", &error))?,
        };
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let chain = certificates("cert_file", cert)?;
                let key = PrivateKeyDer::from_pem_file(key).map_err(|error| damaged("key_file", key, &error))?;
                builder.with_client_auth_cert(chain, key).map_err(|error| unusable("key_file", &error))?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }
}

fn roots(path: &Path) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("ca_file", path)? {
        roots.add(certificate).map_err(|error| unreadable("ca_file", path, &error))?;
    }
    Ok(roots)
}

fn certificates(setting: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let damaged = |error| damaged(setting, path, &error);
    let found = CertificateDer::pem_file_iter(path).map_err(damaged)?.collect::<Result<Vec<_>, _>>().map_err(damaged)?;
    if found.is_empty() {
        return Err(Failure::Setting { setting, why: format!("is {:?}: there is no certificate in it", path.display().to_string()) });
    }
    Ok(found)
}

/// What is wrong with the text of the file is not told in detail: rustls repeats what it stumbled on, and that may be a private key,
/// which may stand beside a certificate as well.
fn damaged(setting: &'static str, path: &Path, error: &PemError) -> Failure {
    match error {
        PemError::Io(error) => unreadable(setting, path, error),
        PemError::NoItemsFound => unreadable(setting, path, &"there is no private key in it"),
        _ => unreadable(setting, path, &"it is not whole; it must be a PEM file, with its line breaks"),
    }
}

fn unreadable(setting: &'static str, path: &Path, why: &impl std::fmt::Display) -> Failure {
    let shown = path.display().to_string();
    Failure::Setting { setting, why: format!("is {shown:?}, which cannot be read: {}", one_line(&why.to_string())) }
}

/// What rustls's error means for the connection to `endpoint`.
pub(crate) fn failure_of(endpoint: String, error: &rustls::Error) -> Failure {
    let why = one_line(&error.to_string());
    let certificate = |why: &str, advice| Failure::Certificate { endpoint: endpoint.clone(), why: why.to_owned(), advice };
    match error {
        rustls::Error::InvalidMessage(_) => Failure::NotTls { endpoint },
        rustls::Error::InvalidCertificate(problem) => match problem {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                certificate("has expired", "renew it, or check this machine's clock")
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                certificate("is not valid yet", "check this machine's clock")
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                certificate("is for another name", "write a name that it has, or have it made for this one")
            }
            CertificateError::UnknownIssuer => {
                certificate("is signed by somebody unknown here", "set discovery.etcd.ca_file to the certificate of its issuer")
            }
            _ => certificate(&format!("is not accepted ({why})"), "check discovery.etcd.ca_file"),
        },
        // After the client's certificate only: the server's own has been accepted by then.
        rustls::Error::AlertReceived(_) => Failure::ClientCertificate { endpoint, why },
        _ => Failure::Handshake { endpoint, why },
    }
}
