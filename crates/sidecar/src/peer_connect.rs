//! Opens a connection to a member or the local worker: only to allowed addresses, and with TLS if the address requires it.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig};
use shardwise::requests::Method;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::dial::{Callee, DialError};
use crate::peer_http::PeerConnection;

/// The timeout of each step: name resolution, connecting, and the TLS handshake.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
const ADDRESSES_MOST: usize = 4;

/// A new connection, with TLS if the target requires it.
pub(crate) async fn opened(whom: &Callee<'_>, method: Method) -> Result<PeerConnection, DialError> {
    let (stream, address) = connect(whom, method).await?;
    let opened = match &whom.peers.tls {
        Some(tls) if whom.target.tls => PeerConnection::over(secured(stream, whom, tls).await?, address).await,
        _ => PeerConnection::over(stream, address).await,
    };
    // No byte of a request was sent, here and in a failed handshake of TLS.
    opened.map_err(|error| DialError::Unreachable(format!("{address}: {error}")))
}

/// A TCP connection to the first of its addresses that is allowed and reachable.
async fn connect(whom: &Callee<'_>, method: Method) -> Result<(TcpStream, SocketAddr), DialError> {
    let host = whom.target.host.as_str();
    let addresses = match timeout(CONNECT_WITHIN, tokio::net::lookup_host((host, whom.target.port))).await {
        Ok(Ok(addresses)) => addresses.take(ADDRESSES_MOST),
        Ok(Err(error)) => return Err(DialError::Unreachable(format!("{host}: {error}"))),
        Err(_) => return Err(DialError::Unreachable(format!("{host} is not found within {CONNECT_WITHIN:?}"))),
    };
    let mut failed = DialError::Unreachable(format!("{host} has no address"));
    for address in addresses {
        if let Some(why) = whom.barred(address.ip()) {
            failed = DialError::Barred(why);
            continue;
        }
        match timeout(CONNECT_WITHIN, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                let _ = stream.set_nodelay(true);
                if method == Method::Get {
                    gives_up_soon(&stream);
                }
                return Ok((stream, address));
            }
            Ok(Err(error)) => failed = DialError::Unreachable(format!("{address}: {error}")),
            Err(_) => failed = DialError::Unreachable(format!("{address}: no connection within {CONNECT_WITHIN:?}")),
        }
    }
    Err(failed)
}

/// Ends the connection when the other side acknowledges nothing for this long, because its machine has vanished. A read can be repeated
/// over another connection. An action is waited for, because it would be unknown whether it was done.
fn gives_up_soon(stream: &TcpStream) {
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(stream).set_tcp_user_timeout(Some(CONNECT_WITHIN));
    #[cfg(not(target_os = "linux"))]
    let _ = stream;
}

async fn secured(stream: TcpStream, whom: &Callee<'_>, config: &Arc<ClientConfig>) -> Result<TlsStream<TcpStream>, DialError> {
    let host = whom.target.host.as_str();
    let name = match &whom.peers.name {
        Some(name) => name.clone(),
        None => ServerName::try_from(host.to_owned()).map_err(|error| DialError::Barred(error.to_string()))?,
    };
    match timeout(CONNECT_WITHIN, TlsConnector::from(Arc::clone(config)).connect(name, stream)).await {
        Ok(Ok(stream)) => Ok(stream),
        // The certificate is invalid or belongs to another host.
        Ok(Err(error)) if error.kind() == ErrorKind::InvalidData => Err(DialError::Barred(format!("{host}: {error}"))),
        Ok(Err(error)) => Err(DialError::Unreachable(format!("{host}: {error}"))),
        Err(_) => Err(DialError::Unreachable(format!("{host}: no TLS within {CONNECT_WITHIN:?}"))),
    }
}

/// Includes the underlying cause, because the error itself says nothing of TLS.
pub(crate) fn broken(address: SocketAddr, error: &hyper::Error) -> DialError {
    let causes = || std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    // In TLS 1.3 our side finishes the handshake before the other side's refusal arrives, so the request was not handled there.
    if let Some(alert) = causes().filter_map(|cause| cause.downcast_ref()).find_map(of_certificate) {
        return DialError::Barred(format!(
            "{address} does not take the certificate that it is shown ({alert:?}): start this sidecar with --peer-cert, signed by whom it trusts"
        ));
    }
    if error.is_canceled() || error.is_closed() {
        return DialError::Unreachable(format!("{address}: it ended the connection before it was asked"));
    }
    let cause = causes().next().map(|cause| format!(": {cause}")).unwrap_or_default();
    DialError::Broken(format!("{address}: {error}{cause}"))
}

/// The other side's alert about our certificate, if there is one (RFC 8446, section 6.2).
fn of_certificate(error: &std::io::Error) -> Option<AlertDescription> {
    let Some(rustls::Error::AlertReceived(alert)) = error.get_ref()?.downcast_ref() else { return None };
    let is_it = matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateRequired
    );
    is_it.then_some(*alert)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reading_from_a_machine_that_vanished_ends_after_as_long_as_a_connection_takes_to_be_made() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = &crate::target::Target::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let (peers, limits) = (&crate::peer_config::Peers::default(), &crate::options::Limits::default());
        let whom = Callee { peers, limits, target, base: String::new(), member: None };
        for (method, limit) in [(Method::Get, Some(CONNECT_WITHIN)), (Method::Post, None)] {
            let (stream, _) = connect(&whom, method).await.unwrap();
            assert_eq!(socket2::SockRef::from(&stream).tcp_user_timeout().unwrap(), limit, "{method:?}");
        }
    }

    #[tokio::test]
    async fn a_handshake_that_fails_has_sent_no_request() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = &crate::target::Target::parse(&format!("https://{}", listener.local_addr().unwrap())).unwrap();
        let (mut peers, limits) = (crate::peer_config::Peers::default(), &crate::options::Limits::default());
        peers.trust(&shardwise_testkit::Authority::new().unwrap().file()).unwrap();
        let whom = Callee { peers: &peers, limits, target, base: String::new(), member: None };
        let closes = async { drop(listener.accept().await.unwrap()) };
        let (failed, ()) = tokio::join!(opened(&whom, Method::Post), closes);
        assert!(matches!(failed, Err(DialError::Unreachable(_))), "{failed:?}");
    }
}
