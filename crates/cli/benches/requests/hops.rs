//! A `POST` of HTTP/1.1 to one process, and on over HTTP/2 with TLS to a second one, by hyper and nothing else: what these cores give to
//! requests through two sidecars.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use shardwise_testkit::Authority;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::forwarded;
use super::server::{BYTES, Server};

const LAST_PORT: &str = "last-port";

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

async fn listen() -> TcpListener {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    println!("ready {}", listener.local_addr().unwrap().port());
    listener
}

async fn accept(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// The second process, with the certificate in that folder.
pub(crate) async fn serve_last(folder: &Path) {
    let chain = vec![CertificateDer::from_pem_file(folder.join("certificate")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(folder.join("key")).unwrap();
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let (acceptor, listener) = (TlsAcceptor::from(Arc::new(config)), listen().await);
    loop {
        let (stream, acceptor) = (accept(&listener).await, acceptor.clone());
        tokio::spawn(async move {
            let stream = acceptor.accept(stream).await.unwrap();
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            // Its end is the other's.
            let _ = server.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
        });
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::new(Full::new(Bytes::from_static(&[b'x'; BYTES])));
    if request.into_body().collect().await.is_err() {
        *response.status_mut() = StatusCode::BAD_REQUEST;
    }
    Ok(response)
}

/// The first process, which brings each request to the second one.
pub(crate) async fn serve_first(folder: &Path) {
    let port: u16 = std::fs::read_to_string(folder.join(LAST_PORT)).unwrap().parse().unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join("authority")).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    let (onward, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let listener = listen().await;
    loop {
        let (stream, onward) = (accept(&listener).await, onward.clone());
        let bringing = service_fn(move |request| bring(request, onward.clone()));
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), bringing));
    }
}

async fn bring(request: Request<Incoming>, mut onward: SendRequest<Full<Bytes>>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    let on = Request::post("https://localhost/status").body(Full::new(body)).unwrap();
    let (head, body) = onward.send_request(on).await?.into_parts();
    let mut response = Response::new(Full::new(body.collect().await?.to_bytes()));
    *response.status_mut() = head.status;
    Ok(response)
}

/// As many a second as through two sidecars are measured, in the same way.
pub(crate) struct Hops {
    first: Server,
    _last: Server,
    _folder: TempDir,
}

impl Hops {
    pub(crate) fn start() -> Self {
        let (folder, authority) = (TempDir::new().unwrap(), Authority::new().unwrap());
        let server = authority.server().unwrap();
        for (from, to) in [(authority.file(), "authority"), (server.certificate(), "certificate"), (server.key(), "key")] {
            std::fs::copy(from, folder.path().join(to)).unwrap();
        }
        let last = Server::last_hop(folder.path());
        std::fs::write(folder.path().join(LAST_PORT), last.port.to_string()).unwrap();
        Self { first: Server::first_hop(folder.path()), _last: last, _folder: folder }
    }

    pub(crate) fn measure(&self, turn: Duration) {
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, self.first.port));
        let request = format!("POST /status HTTP/1.1\r\nHost: {at}\r\nContent-Length: 0\r\n\r\n").into_bytes();
        forwarded::print_rates("bare: POST tls", at, &request, turn);
    }
}
