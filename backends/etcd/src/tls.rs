//! TLS to etcd: its configuration, and the meaning of its failures.

use std::sync::Arc;

use rustls::{CertificateError, ClientConfig};
use shardwise_discovery::one_line;
use shardwise_discovery::tls::{SystemTrust, TlsError, TlsFiles};

use crate::error::Failure;

/// What connections are made with. Reads the files, anew for each connection.
pub(crate) fn load(files: &TlsFiles) -> Result<Arc<ClientConfig>, Failure> {
    let unusable = |error: TlsError| Failure::Setting { setting: error.file.setting(), why: error.of_setting() };
    let mut config = files.client_config(SystemTrust::Required).map_err(unusable)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// The meaning of rustls's error for the connection to `endpoint`.
pub(crate) fn failure_of(endpoint: String, error: &rustls::Error) -> Failure {
    use CertificateError as Bad;
    let why = one_line(&error.to_string());
    let rustls::Error::InvalidCertificate(problem) = error else {
        return match error {
            rustls::Error::InvalidMessage(_) => Failure::NotTls { endpoint },
            // After the client's certificate only: the server's own has been accepted by then.
            rustls::Error::AlertReceived(_) => Failure::ClientCertificate { endpoint, why },
            _ => Failure::Handshake { endpoint, why },
        };
    };
    let other = format!("is not accepted ({why})");
    let (why, advice) = match problem {
        Bad::Expired | Bad::ExpiredContext { .. } => ("has expired", "renew it, or check this machine's clock"),
        Bad::NotValidYet | Bad::NotValidYetContext { .. } => ("is not valid yet", "check this machine's clock"),
        Bad::NotValidForName | Bad::NotValidForNameContext { .. } => {
            ("is for another name", "write a name that it has, or have it made for this one")
        }
        Bad::UnknownIssuer => {
            ("is signed by an issuer that is not trusted here", "set discovery.etcd.ca_file to the certificate of its issuer")
        }
        _ => (other.as_str(), "check discovery.etcd.ca_file"),
    };
    Failure::Certificate { endpoint, why: why.to_owned(), advice }
}
