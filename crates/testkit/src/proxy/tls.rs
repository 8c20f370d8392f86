//! TLS before a server that has none.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::certs::CertIdentity;
use crate::error::{Error, Result};
use crate::ports::Port;
use crate::process::POLL_EVERY;

/// How long a client may take for the handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

/// Accepts connections with TLS only, and carries them to one address without TLS. It ends when dropped, and its connections with it.
#[derive(Debug)]
pub struct TlsProxy {
    port: Port,
    accepting: JoinHandle<()>,
}

impl TlsProxy {
    /// A proxy on a free port, with this certificate.
    pub async fn start(target: SocketAddr, identity: &CertIdentity) -> Result<Self> {
        let acceptor = TlsAcceptor::from(Arc::new(config(identity)?));
        let port = Port::reserve()?;
        let listener = TcpListener::bind(port.address()).await.map_err(Error::io(port.address()))?;
        Ok(Self { port, accepting: tokio::spawn(accept(listener, acceptor, target)) })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }
}

impl Drop for TlsProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn config(identity: &CertIdentity) -> Result<ServerConfig> {
    let unusable = |error: &dyn Display| Error::new(format!("{}: {error}", identity.certificate().display()));
    let certificate = CertificateDer::from_pem_file(identity.certificate()).map_err(|error| unusable(&error))?;
    let key = PrivateKeyDer::from_pem_file(identity.key()).map_err(|error| unusable(&error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(|error| unusable(&error))?;
    config.with_no_client_auth().with_single_cert(vec![certificate], key).map_err(|error| unusable(&error))
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, target: SocketAddr) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => drop(connections.spawn(carry(client, acceptor.clone(), target))),
                // Too many open files, which may pass.
                Err(_) => sleep(POLL_EVERY).await,
            },
            // Connections end in every way: their two ends have noticed it.
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Carries bytes both ways until one end is done or breaks.
async fn carry(client: TcpStream, acceptor: TlsAcceptor, target: SocketAddr) -> io::Result<()> {
    // Before the handshake, so that a server that is down looks like one, and not like one whose requests are lost.
    let mut server = TcpStream::connect(target).await?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let mut client = timeout(HANDSHAKE_WITHIN, acceptor.accept(client)).await??;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}
