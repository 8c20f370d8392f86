//! TLS: who is let in by whom, seen with a client of rustls.

#![expect(clippy::unwrap_used, reason = "helpers of tests; what goes wrong should stop them")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::json;
use shardwise_testkit::{Authority, CertIdentity, Consul, ConsulOptions, Etcd, EtcdOptions, Port, TlsProxy};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// The first line of the answer to a request for `path`, from a server that the authority vouches for; or why there is none.
fn ask(server: SocketAddr, path: &str, trust: &Path, identity: Option<&CertIdentity>) -> Result<String, String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(trust).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let config = match identity {
        None => config.with_no_client_auth(),
        Some(identity) => {
            let chain = vec![CertificateDer::from_pem_file(identity.certificate()).unwrap()];
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(identity.key()).unwrap()).unwrap()
        }
    };
    let socket = TcpStream::connect(server).map_err(|error| error.to_string())?;
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let connection = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut stream = StreamOwned::new(connection, socket);
    let mut bytes = [0; 15];
    let exchange = write!(stream, "GET {path} HTTP/1.0\r\n\r\n").and_then(|()| stream.read_exact(&mut bytes));
    exchange.map(|()| String::from_utf8_lossy(&bytes).into_owned()).map_err(|error| error.to_string())
}

/// [`ask`], beside the runtime.
async fn asked(server: SocketAddr, path: &'static str, trust: &Authority, identity: Option<CertIdentity>) -> Result<String, String> {
    let trust = trust.file();
    tokio::task::spawn_blocking(move || ask(server, path, &trust, identity.as_ref())).await.unwrap()
}

const OK: &str = "HTTP/1.0 200 OK";

#[tokio::test]
async fn consul_speaks_https_to_those_with_a_certificate() {
    let authority = Authority::new().unwrap();
    let other = Authority::new().unwrap();
    let path = "/v1/status/leader";
    let options = ConsulOptions::default().with_tls(&authority.server().unwrap()).with_client_certificates();
    let consul = Consul::start(options).await.unwrap();
    assert!(consul.address().starts_with("https://127.0.0.1:"));
    let server = consul.socket_addr();
    assert_eq!(asked(server, path, &authority, Some(authority.client("worker").unwrap())).await.as_deref(), Ok(OK));
    let refused = [None, Some(other.client("stranger").unwrap()), Some(authority.expired().unwrap())];
    for identity in refused {
        let shown = format!("{identity:?}");
        asked(server, path, &authority, identity).await.expect_err(&shown);
    }
    let untrusted = asked(server, path, &other, Some(authority.client("worker").unwrap())).await.unwrap_err();
    assert!(untrusted.contains("UnknownIssuer"), "{untrusted}");
}

#[tokio::test]
async fn etcd_speaks_tls_to_those_with_a_certificate() {
    let authority = Authority::new().unwrap();
    let options = EtcdOptions::default().with_tls(&authority.server().unwrap()).with_client_certificates();
    let etcd = Etcd::start(options).await.unwrap();
    assert!(etcd.address().starts_with("https://127.0.0.1:"));
    let server = etcd.socket_addr();
    assert_eq!(asked(server, "/version", &authority, Some(authority.client("worker").unwrap())).await.as_deref(), Ok(OK));
    asked(server, "/version", &authority, None).await.expect_err("without a certificate");
    etcd.api("/v3/kv/put", &json!({ "key": "YQ==" })).await.unwrap();
}

#[tokio::test]
async fn a_client_refuses_a_server_that_has_expired_or_has_another_name() {
    let authority = Authority::new().unwrap();
    let cases = [
        (authority.expired().unwrap(), "certificate expired"),
        (authority.server_named("elsewhere.example").unwrap(), "certificate not valid for name"),
    ];
    for (identity, cause) in cases {
        let etcd = Etcd::start(EtcdOptions::default().with_tls(&identity)).await.unwrap();
        let consul = Consul::start(ConsulOptions::default().with_tls(&identity)).await.unwrap();
        for server in [etcd.socket_addr(), consul.socket_addr()] {
            let error = asked(server, "/", &authority, None).await.unwrap_err();
            assert!(error.contains(cause), "{error}");
        }
    }
}

#[tokio::test]
async fn a_server_without_tls_has_it_behind_a_proxy() {
    let (authority, listener) = (Authority::new().unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let proxy = TlsProxy::start(listener.local_addr().unwrap(), &authority.server().unwrap()).await.unwrap();
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 100];
            if let Ok(1..) = stream.read(&mut request).await {
                let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n").await;
            }
        }
    });
    assert_eq!(asked(proxy.address(), "/", &authority, None).await.as_deref(), Ok(OK));
    asked(proxy.address(), "/", &Authority::new().unwrap(), None).await.expect_err("trusts another authority");
    server.abort();
    let down = Port::reserve().unwrap();
    let proxy = TlsProxy::start(down.address(), &authority.server().unwrap()).await.unwrap();
    asked(proxy.address(), "/", &authority, None).await.expect_err("the server is down");
}
