//! TLS to etcd: its configuration, and the meaning of its failures.

use std::sync::Arc;

use rustls::{CertificateError, ClientConfig};
use shardwise_discovery::one_line;
use shardwise_discovery::tls::{SystemTrust, TlsError, TlsFile, TlsFiles};

use crate::EtcdConfig;
use crate::error::Failure;

/// The files that the settings name.
pub(crate) fn files(config: &EtcdConfig) -> Result<TlsFiles, Failure> {
    let lonely = |missing: TlsFile| {
        let set = if missing == TlsFile::Key { TlsFile::Certificate } else { TlsFile::Key };
        let why = format!("is missing, but discovery.etcd.{} is set; set both or none", set.setting());
        Failure::Setting { setting: missing.setting(), why }
    };
    TlsFiles::new(config.ca_file.as_ref(), config.cert_file.as_ref(), config.key_file.as_ref()).map_err(lonely)
}

/// What connections are made with. Reads the files, anew for each connection.
pub(crate) fn load(files: &TlsFiles) -> Result<Arc<ClientConfig>, Failure> {
    let unusable = |error: TlsError| Failure::Setting { setting: error.file.setting(), why: error.of_setting() };
    let mut config = files.client_config(SystemTrust::Required).map_err(unusable)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// The meaning of rustls's error for the connection to `endpoint`.
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
            CertificateError::UnknownIssuer => certificate(
                "is signed by an issuer that is not trusted here",
                "set discovery.etcd.ca_file to the certificate of its issuer",
            ),
            _ => certificate(&format!("is not accepted ({why})"), "check discovery.etcd.ca_file"),
        },
        // After the client's certificate only: the server's own has been accepted by then.
        rustls::Error::AlertReceived(_) => Failure::ClientCertificate { endpoint, why },
        _ => Failure::Handshake { endpoint, why },
    }
}
