//! Certificates: by which names a sidecar may be called, and which clients are members.

#![expect(clippy::unwrap_used, reason = "tests report by panicking")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use shardwise::discovery::{Clock, Discovery, MemoryBackend};
use shardwise::requests::channel::ALPN;
use shardwise::requests::channel::proof::Nonce;
use shardwise::{Settings, ShardingFactory, ShardingService};
use shardwise_sidecar::{Error, Options, Sidecar, Tls, Token};
use shardwise_testkit::{Authority, CertIdentity};
use tokio::sync::oneshot;

const PATIENCE: Duration = Duration::from_secs(40);
const TOKEN: &str = "correct-horse-battery-staple";

/// A member of the backend's group in this process, with a certificate for this machine.
struct Served {
    at: SocketAddr,
    service: ShardingService,
    stop: Option<oneshot::Sender<()>>,
    end: Option<JoinHandle<Result<(), Error>>>,
}

fn tls(identity: &CertIdentity) -> Tls {
    Tls::from_files(&identity.certificate(), &identity.key()).unwrap()
}

fn operators() -> Token {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), TOKEN).unwrap();
    Token::from_file(file.path()).unwrap()
}

impl Served {
    fn start(backend: &MemoryBackend, instance: &str, server: &CertIdentity, also: impl FnOnce(&mut Options)) -> Self {
        let text = format!(
            "[default.resilience.sharding]\npolicies.workers.group_name = \"workers\"\ndiscovery.backend = \"memory\"\n\
             discovery.ttl = \"10s\"\n{instance}"
        );
        let shared: Arc<dyn Discovery> = Arc::new(backend.clone());
        let builder = ShardingFactory::builder().settings(Settings::from_toml_str(&text).unwrap()).backend("memory", shared);
        let factory = builder.build().unwrap();
        let service = factory.create("workers").unwrap();
        let mut options = Options::new("127.0.0.1:0".parse().unwrap());
        (options.tls, options.token) = (Some(tls(server)), Some(operators()));
        also(&mut options);
        let sidecar = Sidecar::new(factory, &["workers".into()], options).unwrap();
        let at = sidecar.address();
        let ((ready, is_ready), (stop, stopped)) = (mpsc::channel(), oneshot::channel::<()>());
        let run = move || sidecar.run(|| ready.send(()).map_err(|_| Error::Options("nobody waits".into())), async { drop(stopped.await) });
        let end = Some(std::thread::spawn(run));
        is_ready.recv_timeout(PATIENCE).unwrap();
        Self { at, service, stop: Some(stop), end }
    }

    /// The answer to a client that trusts the authority and presents that certificate.
    fn asked(&self, authority: &Authority, shows: Option<&CertIdentity>, request: &str, headers: &str) -> String {
        self.asked_by(&client(authority, shows), request, headers).0
    }

    /// The same, and how the connection was established.
    fn asked_by(&self, client: &Arc<ClientConfig>, request: &str, headers: &str) -> (String, Option<HandshakeKind>) {
        let stream = TcpStream::connect(self.at).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut stream = StreamOwned::new(ClientConnection::new(Arc::clone(client), "localhost".try_into().unwrap()).unwrap(), stream);
        let mut bytes = Vec::new();
        // A refused client may learn of it while writing or while reading.
        let _ = write!(stream, "{request} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
        let _ = stream.read_to_end(&mut bytes);
        (String::from_utf8_lossy(&bytes).into_owned(), stream.conn.handshake_kind())
    }

    /// What it says to a member's hello on such a connection; `None` if it takes no such connection.
    fn hears(&self, authority: &Authority, shows: Option<&CertIdentity>) -> Option<Value> {
        let mut client = Arc::unwrap_or_clone(client(authority, shows));
        client.alpn_protocols = vec![ALPN.to_vec()];
        let stream = TcpStream::connect(self.at).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut stream = StreamOwned::new(ClientConnection::new(Arc::new(client), "localhost".try_into().unwrap()).unwrap(), stream);
        let (id, incarnation) = (self.service.instance_id().as_str(), self.service.incarnation().to_string());
        let nonce = Nonce::random().to_string();
        let hello = json!({"shardwise": 3, "group": "workers", "instance_id": id, "incarnation": incarnation, "nonce": nonce}).to_string();
        let length = u32::try_from(hello.len()).unwrap().to_be_bytes();
        // A refused client may learn of it while writing or while reading.
        let _ = stream.write_all(&[&length[..], hello.as_bytes()].concat());
        let mut head = [0; 4];
        stream.read_exact(&mut head).ok()?;
        let mut answer = vec![0; u32::from_be_bytes(head) as usize];
        stream.read_exact(&mut answer).unwrap();
        Some(serde_json::from_slice(&answer).unwrap())
    }

    /// An operator's request for another member.
    fn asks(&self, authority: &Authority, method: &str, whom: &str) -> String {
        let headers = format!("Host: {}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 0\r\n", self.at);
        self.asked(authority, None, &format!("{method} /v1/policies/workers/instances/{whom}/status"), &headers)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.take();
        let end = self.end.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            end.unwrap().unwrap().unwrap();
        }
    }
}

/// A client configuration that trusts the authority and presents that certificate.
fn client(authority: &Authority, shows: Option<&CertIdentity>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.file()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider())).with_safe_default_protocol_versions();
    let builder = builder.unwrap().with_root_certificates(roots);
    Arc::new(match shows {
        Some(identity) => {
            let chain = vec![CertificateDer::from_pem_file(identity.certificate()).unwrap()];
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(identity.key()).unwrap()).unwrap()
        }
        None => builder.with_no_client_auth(),
    })
}

/// The first answer that begins with `wanted`.
fn eventually(what: &str, wanted: &str, ask: impl Fn() -> String) -> String {
    let begun = Instant::now();
    loop {
        let answer = ask();
        if answer.starts_with(wanted) {
            return answer;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: {answer}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_sidecar_may_be_called_by_the_name_that_its_record_shows() {
    let (backend, authority) = (MemoryBackend::new(Clock::system()), Authority::new().unwrap());
    let named = "instance = { id = \"a\", address = \"side.example\", port = 7 }";
    let served = Served::start(&backend, named, &authority.server().unwrap(), |_| ());
    for (host, status) in [("side.example", 200), ("side.example:9", 200), ("127.0.0.1", 200), ("other.example", 421)] {
        let answer = served.asked(&authority, None, "GET /livez", &format!("Host: {host}\r\n"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{host}: {answer}");
    }
}

/// As browsers do, which would like HTTP/2 more.
#[test]
fn a_client_may_name_its_protocol() {
    let (backend, authority) = (MemoryBackend::new(Clock::system()), Authority::new().unwrap());
    let served = Served::start(&backend, "instance.id = \"a\"", &authority.server().unwrap(), |_| ());
    for protocols in [&["http/1.1"][..], &["h2", "http/1.1"]] {
        let mut client = Arc::unwrap_or_clone(client(&authority, None));
        client.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let (answer, _) = served.asked_by(&Arc::new(client), "GET /livez", "Host: localhost\r\n");
        assert!(answer.starts_with("HTTP/1.1 200"), "{protocols:?}: {answer}");
    }
}

/// No request was made on it, so there is no answer to wait for.
#[test]
fn a_connection_that_stays_silent_does_not_hold_up_the_end() {
    let (backend, authority) = (MemoryBackend::new(Clock::system()), Authority::new().unwrap());
    let served = Served::start(&backend, "instance.id = \"a\"", &authority.server().unwrap(), |_| ());
    let _silent = TcpStream::connect(served.at).unwrap();
    // Connections are accepted one after the other.
    assert!(served.asked(&authority, None, "GET /livez", "Host: localhost\r\n").starts_with("HTTP/1.1 200"));
    let begun = Instant::now();
    drop(served);
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}, and a head may take 10 s", begun.elapsed());
}

/// A resumed session would keep a certificate that was verified earlier.
#[test]
fn a_members_certificate_is_judged_on_each_connection() {
    let (backend, authority) = (MemoryBackend::new(Clock::system()), Authority::new().unwrap());
    let server = authority.server().unwrap();
    let mutual = Served::start(&backend, "instance.id = \"one\"", &server, |options| {
        options.peers.trust_mutually(&authority.file(), &server.certificate(), &server.key()).unwrap();
    });
    let alone = Served::start(&backend, "instance.id = \"two\"", &server, |_| ());
    for (served, shows, second) in [(&mutual, Some(&server), HandshakeKind::Full), (&alone, None, HandshakeKind::Resumed)] {
        let client = client(&authority, shows);
        let ask = || served.asked_by(&client, "GET /livez", "Host: localhost\r\n");
        let ((answer, first), (_, again)) = (ask(), ask());
        assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
        assert_eq!((first, again), (Some(HandshakeKind::Full), Some(second)));
    }
}

#[test]
fn members_that_show_certificates_of_one_authority_need_no_token_and_others_are_not_let_in() {
    let (backend, ours, theirs) = (MemoryBackend::new(Clock::system()), Authority::new().unwrap(), Authority::new().unwrap());
    let (server, stranger) = (ours.server().unwrap(), theirs.server().unwrap());
    let start = |id: &str, shows: Option<&CertIdentity>| {
        Served::start(&backend, &format!("instance.id = \"{id}\""), &server, |options| match shows {
            Some(identity) => options.peers.trust_mutually(&ours.file(), &identity.certificate(), &identity.key()).unwrap(),
            None => options.peers.trust(&ours.file()).unwrap(),
        })
    };
    let (one, other) = (start("one", Some(&server)), start("other", Some(&server)));
    let (silent, foreign) = (start("silent", None), start("foreign", Some(&stranger)));
    for method in ["GET", "POST"] {
        let answer = eventually("the other one answers", "HTTP/1.1 200", || one.asks(&ours, method, "other"));
        assert!(answer.contains("\"instance_id\":\"other\""), "{answer}");
    }
    let refused = eventually("who shows none is not let in", "HTTP/1.1 502", || silent.asks(&ours, "GET", "other"));
    assert!(refused.contains("does not take this process's peer token or certificate"), "{refused}");
    eventually("who shows a stranger's is not let in, and hears why", "well", || {
        let refused = foreign.asks(&ours, "GET", "other");
        let says_why = refused.contains("was not asked") && refused.contains("does not take the certificate");
        if says_why && refused.starts_with("HTTP/1.1 502") { "well".into() } else { refused }
    });

    // Operators and probes have none, and a certificate makes no client an operator.
    let host = format!("Host: {}\r\n", other.at);
    assert!(other.asked(&ours, None, "GET /livez", &host).starts_with("HTTP/1.1 200"));
    assert!(other.asked(&ours, Some(&server), "GET /v1/policies/workers/members", &host).starts_with("HTTP/1.1 401"));
    // On a member's connection nothing but its certificate counts.
    assert_eq!(other.hears(&ours, None).unwrap(), "unproven");
    assert!(other.hears(&ours, Some(&server)).unwrap()["challenge"].is_object());
    assert_eq!(other.hears(&ours, Some(&stranger)), None);
}

/// If certificates are the only proof of identity, any process could listen at an address without TLS.
#[test]
fn a_member_that_can_prove_itself_by_nothing_is_not_called() {
    let (backend, authority) = (MemoryBackend::new(Clock::system()), Authority::new().unwrap());
    let server = authority.server().unwrap();
    let one = Served::start(&backend, "instance.id = \"one\"", &server, |options| {
        options.peers.trust_mutually(&authority.file(), &server.certificate(), &server.key()).unwrap();
    });
    let trusting =
        Served::start(&backend, "instance.id = \"trusting\"", &server, |options| options.peers.trust(&authority.file()).unwrap());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let text = "[default.resilience.sharding]\npolicies.workers.group_name = \"workers\"\ndiscovery.backend = \"memory\"\n\
                discovery.ttl = \"10s\"\ninstance.id = \"plain\"";
    let shared: Arc<dyn Discovery> = Arc::new(backend.clone());
    let builder = ShardingFactory::builder().settings(Settings::from_toml_str(text).unwrap()).backend("memory", shared);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _on = runtime.enter();
    let plain = builder.build().unwrap().create("workers").unwrap();
    plain.requests_arrive_at(listener.local_addr().unwrap(), false).unwrap();
    runtime.block_on(plain.register_self()).unwrap();
    for (from, method, why) in [
        (&one, "GET", "nothing proves which member answers"),
        (&one, "POST", "only GET is brought"),
        (&trusting, "POST", "only GET is brought"),
    ] {
        let refused = eventually("it is not asked", "HTTP/1.1 502", || from.asks(&authority, method, "plain"));
        assert!(refused.contains(why), "{refused}");
    }
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nobody has called");
}

#[test]
fn certificates_are_shown_over_tls_or_not_at_all() {
    let (authority, text) = (Authority::new().unwrap(), "[default.resilience.sharding]\npolicies.workers.group_name = \"workers\"\n");
    let settings = Settings::from_toml_str(&format!("{text}discovery.backend = \"memory\"")).unwrap();
    let mut options = Options::new("127.0.0.1:0".parse().unwrap());
    let server = authority.server().unwrap();
    options.peers.trust_mutually(&authority.file(), &server.certificate(), &server.key()).unwrap();
    let refused = Sidecar::new(ShardingFactory::from_settings(settings).unwrap(), &["workers".into()], options).map(drop).unwrap_err();
    assert!(refused.to_string().contains("--tls-cert"), "{refused}");
}

/// A private key that lost its line breaks, in a separate file and next to a certificate.
#[test]
fn files_that_are_damaged_are_refused_and_nothing_of_them_is_quoted() {
    let folder = tempfile::tempdir().unwrap();
    let identity = Authority::new().unwrap().server().unwrap();
    let whole = std::fs::read_to_string(identity.key()).unwrap();
    let secret = &whole.lines().nth(1).unwrap()[..40];
    let damaged = folder.path().join("damaged.pem");
    for text in [whole.replace('\n', " "), whole.replace('\n', ""), whole.replacen("END", "FIN", 1), format!("-----BEGIN {whole}")] {
        std::fs::write(&damaged, &text).unwrap();
        let refusals = [
            Tls::from_files(&identity.certificate(), &damaged).map(|_| ()).unwrap_err(),
            Tls::from_files(&damaged, &identity.key()).map(|_| ()).unwrap_err(),
            Options::new(([127, 0, 0, 1], 0).into()).peers.trust(&damaged).unwrap_err(),
        ];
        for refusal in refusals {
            let said = format!("{refusal} {refusal:?}");
            // rustls prints bytes as decimals.
            let numbers = said.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse::<u8>().ok());
            let decoded: String = numbers.map(char::from).collect();
            assert!(said.contains("damaged.pem") && said.contains("in PEM"), "{said}");
            assert!(!said.contains(secret) && !decoded.contains(secret), "the private key stands in the error: {said}");
        }
    }
}
