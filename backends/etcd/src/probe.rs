//! Why a server hung up that has never answered: gRPC does not say, so it is asked in another way, once.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use shardwise_discovery::tls::{self, TlsFiles};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::config::Endpoint;
use crate::dial::{connect, inner};
use crate::error::Failure;
use crate::tls::failure_of;

/// How long it may take to find out.
const LIMIT: Duration = Duration::from_secs(1);
/// How HTTP/2 begins: the client's preface and its empty settings.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// How a server answers a client that begins with HTTP/2.
enum ProbeReply {
    /// With its own settings frame, as etcd sends it.
    Http2,
    Http1,
    /// It hangs up.
    Nothing,
}

async fn greeting(mut server: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<ProbeReply> {
    server.write_all(HELLO).await?;
    let mut answer = [0; 5];
    match server.read_exact(&mut answer).await {
        Ok(_) if answer.starts_with(b"HTTP/") => Ok(ProbeReply::Http1),
        // The fourth byte of a frame is its type; settings are 4.
        Ok(_) if answer[3] == 4 => Ok(ProbeReply::Http2),
        Err(error) if inner(&error).is_some() => Err(error),
        Ok(_) | Err(_) => Ok(ProbeReply::Nothing),
    }
}

/// The cause for a server that hung up, if it can be found.
pub(crate) async fn diagnose(endpoint: &Endpoint, files: &TlsFiles) -> Option<Failure> {
    timeout(LIMIT, look(endpoint, files)).await.ok().flatten()
}

async fn look(endpoint: &Endpoint, files: &TlsFiles) -> Option<Failure> {
    let name = || endpoint.to_string();
    // Only after the handshake does a server reject the client's certificate.
    match greeting(connect(endpoint, files).await.ok()?).await {
        Ok(ProbeReply::Http1) => Some(Failure::NotEtcd { endpoint: name(), why: "it speaks HTTP/1".into() }),
        Ok(ProbeReply::Nothing) if !endpoint.tls && speaks_tls(endpoint).await => Some(Failure::OnlyTls { endpoint: name() }),
        Ok(_) => None,
        Err(error) => inner(&error).map(|error| failure_of(name(), error)),
    }
}

async fn tcp(endpoint: &Endpoint) -> io::Result<TcpStream> {
    TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await
}

/// Whether the server speaks HTTP/2 without TLS.
pub(crate) async fn speaks_plainly(endpoint: &Endpoint) -> bool {
    let look = async { greeting(tcp(endpoint).await?).await };
    matches!(timeout(LIMIT, look).await, Ok(Ok(ProbeReply::Http2 | ProbeReply::Http1)))
}

/// Whether the server speaks TLS, whatever its certificate.
async fn speaks_tls(endpoint: &Endpoint) -> bool {
    let look = async {
        let builder = ClientConfig::builder_with_provider(tls::provider()).with_safe_default_protocol_versions().ok()?;
        let config = builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        let name = ServerName::try_from(endpoint.host.clone()).ok()?;
        match TlsConnector::from(Arc::new(config)).connect(name, tcp(endpoint).await.ok()?).await {
            Ok(_) => Some(true),
            // Any objection of TLS's own, such as an unknown issuer, shows that there is TLS.
            Err(error) => inner(&error).map(|error| !matches!(error, rustls::Error::InvalidMessage(_))),
        }
    };
    look.await.unwrap_or(false)
}
