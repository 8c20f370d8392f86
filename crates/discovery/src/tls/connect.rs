//! Connections to servers, with TLS and without: what failed, as facts that each caller puts into words with the names of its settings.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription as Alert, CertificateError, ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{SystemTrust, TlsError, TlsFiles, provider};
use crate::one_line;

/// The bytes of a connection, with TLS or without.
pub trait ServerStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ServerStream for S {}

/// Why there is no connection. Texts are one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectFailure {
    /// The server cannot be reached, or hung up: it may be starting, or stopping.
    Unreachable(String),
    /// A file of TLS cannot be used.
    File(TlsError),
    /// The server answers something else than TLS.
    NotTls,
    /// The server took the connection and did not answer to TLS for that long. Some that speak no TLS do the same.
    SilentOnTls(Duration),
    /// The server's certificate is not accepted.
    Certificate {
        /// The fault, as words that follow "the certificate".
        why: String,
        /// What to do about it.
        advice: CertificateAdvice,
    },
    /// The server does not accept this client's certificate, or demands one.
    ClientCertificate(String),
    /// Another failure of TLS.
    Handshake(String),
}

/// What to do about a certificate that is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateAdvice {
    /// It has expired.
    Renew,
    /// It is not valid yet.
    CheckClock,
    /// It has another name.
    OtherName,
    /// Its issuer is not trusted.
    TrustIssuer,
    /// Anything else.
    CheckCa,
}

impl CertificateAdvice {
    /// The advice, with the setting that names the file of the CA.
    pub fn with_setting(self, ca_file: &str) -> String {
        match self {
            Self::Renew => "renew it, or check this machine's clock".to_owned(),
            Self::CheckClock => "check this machine's clock".to_owned(),
            Self::OtherName => "write a name that it has, or have it made for this one".to_owned(),
            Self::TrustIssuer => format!("set {ca_file} to the certificate of its issuer"),
            Self::CheckCa => format!("check {ca_file}"),
        }
    }
}

/// A TCP connection without delays. When it is closed, what was sent and not received yet is discarded: it must not arrive when the
/// connection has been given up.
///
/// # Errors
/// [`ConnectFailure::Unreachable`].
pub async fn connect_tcp(host: &str, port: u16) -> Result<TcpStream, ConnectFailure> {
    let tcp = TcpStream::connect((host, port)).await.map_err(|error| unreachable(&error))?;
    tcp.set_nodelay(true).and_then(|()| tcp.set_zero_linger()).map_err(|error| unreachable(&error))?;
    Ok(tcp)
}

/// TLS over a connection, with these protocols (ALPN), if any; the server must prove that it is `host`. The files are read anew, on a
/// thread for blocking work.
///
/// # Errors
/// What is wrong with the files, the server, or its certificate.
pub async fn connect_tls(
    tcp: TcpStream,
    host: &str,
    files: &TlsFiles,
    alpn: &[&[u8]],
    within: Duration,
) -> Result<TlsStream<TcpStream>, ConnectFailure> {
    let files = files.clone();
    let reading = tokio::task::spawn_blocking(move || files.client_config(SystemTrust::Required));
    let mut config = reading.await.map_err(|error| unreachable(&io::Error::other(error)))?.map_err(ConnectFailure::File)?;
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    let name = ServerName::try_from(host.to_owned()).map_err(|error| ConnectFailure::Handshake(one_line(&error.to_string())))?;
    match timeout(within, TlsConnector::from(Arc::new(config)).connect(name, tcp)).await {
        Ok(connected) => connected.map_err(|error| ConnectFailure::of_io(&error)),
        Err(_) => Err(ConnectFailure::SilentOnTls(within)),
    }
}

/// Whether a server speaks TLS, whatever its certificate; `false` if that is not known within that time.
pub async fn speaks_tls(host: &str, port: u16, within: Duration) -> bool {
    let probe = async {
        let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().ok()?;
        let config = builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        let name = ServerName::try_from(host.to_owned()).ok()?;
        let tcp = TcpStream::connect((host, port)).await.ok()?;
        match TlsConnector::from(Arc::new(config)).connect(name, tcp).await {
            Ok(_) => Some(true),
            // Any objection of TLS's own, such as an unknown issuer, shows that there is TLS.
            Err(error) => rustls_error(&error).map(|error| !matches!(error, rustls::Error::InvalidMessage(_))),
        }
    };
    timeout(within, probe).await.ok().flatten().unwrap_or(false)
}

/// rustls hands its errors out in an `io::Error`.
pub fn rustls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Whether a server's alert is about the client's certificate: that it is missing, or that the server does not accept it or its issuer.
const fn is_about_client(alert: Alert) -> bool {
    matches!(
        alert,
        Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::CertificateUnobtainable
            | Alert::BadCertificateHashValue
            | Alert::CertificateRequired
    )
}

fn unreachable(error: &io::Error) -> ConnectFailure {
    ConnectFailure::Unreachable(one_line(&error.to_string()))
}

impl ConnectFailure {
    /// The meaning of an error of a stream. With TLS 1.3 a server refuses a client's certificate only when the connection seems to be
    /// there.
    pub fn of_io(error: &io::Error) -> Self {
        rustls_error(error).map_or_else(|| unreachable(error), Self::of_rustls)
    }

    /// The meaning of an error of TLS.
    pub fn of_rustls(error: &rustls::Error) -> Self {
        let why = one_line(&error.to_string());
        match error {
            rustls::Error::InvalidCertificate(problem) => Self::of_certificate(problem, &why),
            rustls::Error::InvalidMessage(_) => Self::NotTls,
            rustls::Error::AlertReceived(alert) if is_about_client(*alert) => Self::ClientCertificate(why),
            // It speaks TLS and cannot answer now, as when it is starting: this may pass.
            rustls::Error::AlertReceived(Alert::CloseNotify | Alert::InternalError | Alert::UserCanceled) => Self::Unreachable(why),
            // TLS 1.2 has one alert for both causes.
            rustls::Error::AlertReceived(Alert::HandshakeFailure) => {
                Self::Handshake(format!("{why}: no cipher in common, or the server demands a client's certificate"))
            }
            _ => Self::Handshake(why),
        }
    }

    fn of_certificate(problem: &CertificateError, why: &str) -> Self {
        use CertificateError as Bad;
        let (why, advice) = match problem {
            Bad::Expired | Bad::ExpiredContext { .. } => ("has expired".to_owned(), CertificateAdvice::Renew),
            Bad::NotValidYet | Bad::NotValidYetContext { .. } => ("is not valid yet".to_owned(), CertificateAdvice::CheckClock),
            Bad::NotValidForName | Bad::NotValidForNameContext { .. } => ("is for another name".to_owned(), CertificateAdvice::OtherName),
            Bad::UnknownIssuer => ("is signed by an issuer that is not trusted here".to_owned(), CertificateAdvice::TrustIssuer),
            _ => (format!("is not accepted ({why})"), CertificateAdvice::CheckCa),
        };
        Self::Certificate { why, advice }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(error: rustls::Error) -> ConnectFailure {
        ConnectFailure::of_io(&io::Error::new(io::ErrorKind::InvalidData, error))
    }

    #[test]
    fn failures_say_what_to_do() {
        let advice = |error| match of(rustls::Error::InvalidCertificate(error)) {
            ConnectFailure::Certificate { why, advice } => format!("{why}: {}", advice.with_setting("the_ca_file")),
            other => format!("{other:?}"),
        };
        assert_eq!(advice(CertificateError::Expired), "has expired: renew it, or check this machine's clock");
        assert!(advice(CertificateError::UnknownIssuer).ends_with("set the_ca_file to the certificate of its issuer"));
        assert!(advice(CertificateError::BadEncoding).ends_with("check the_ca_file"));
        assert!(matches!(ConnectFailure::of_io(&io::ErrorKind::ConnectionReset.into()), ConnectFailure::Unreachable(_)));
    }

    /// Every alert counted as one: a publisher did not start, and its message named the wrong files.
    #[test]
    fn only_alerts_about_a_certificate_are_about_this_client() {
        let of_alert = |alert| of(rustls::Error::AlertReceived(alert));
        for alert in [Alert::CertificateRequired, Alert::BadCertificate, Alert::CertificateExpired, Alert::UnknownCA, Alert::AccessDenied] {
            assert!(matches!(of_alert(alert), ConnectFailure::ClientCertificate(_)), "{alert:?}");
        }
        for alert in [Alert::ProtocolVersion, Alert::HandshakeFailure, Alert::UnrecognisedName, Alert::DecryptError] {
            assert!(matches!(of_alert(alert), ConnectFailure::Handshake(_)), "{alert:?}");
        }
        for alert in [Alert::InternalError, Alert::CloseNotify, Alert::UserCanceled] {
            assert!(matches!(of_alert(alert), ConnectFailure::Unreachable(_)), "{alert:?}");
        }
    }
}
