//! What a sidecar is told at its start.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use secrecy::{ExposeSecret, SecretSlice};
use shardwise::settings::PeersSettings;
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;

use crate::dial::Target;
use crate::forward::FORWARDS_MOST;
use crate::outbox::Outbox;
use crate::server::Error;

/// The fewest bytes of a token: fewer can be guessed.
const TOKEN_BYTES_LEAST: usize = 16;
/// The most bytes of a file with a token.
const TOKEN_BYTES_MAX: u64 = 4_096;

/// How a sidecar serves.
pub struct Options {
    /// Where it listens. Beyond loopback only with `token` and `tls`.
    pub listen: SocketAddr,
    /// What a client has to show for everything but `/livez` and `/readyz`. Without one everybody on this machine may read and nobody may act.
    pub token: Option<Token>,
    /// Certificate and key.
    pub tls: Option<Tls>,
    /// Host names and, where something maps it, addresses by which clients and members may call it, beside the loopback ones and the addresses it listens on.
    pub hosts: Vec<String>,
    /// How much of anything.
    pub limits: Limits,
    /// Requests between members.
    pub peers: Peers,
    /// What `/metrics` answers: the text format of whatever the program counts with. Without it there is no such path.
    pub render: Option<Render>,
    /// An outbox to show and to repair.
    pub outbox: Option<Arc<dyn Outbox>>,
}

/// Writes down all metrics in Prometheus' text format.
pub type Render = Box<dyn Fn() -> String + Send + Sync>;

impl Options {
    /// On that address, with nothing else set.
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            token: None,
            tls: None,
            hosts: Vec::new(),
            limits: Limits::default(),
            peers: Peers::default(),
            render: None,
            outbox: None,
        }
    }

    /// # Errors
    ///
    /// If others than this machine's programs could call it unseen or unasked.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.listen.ip().is_loopback() || self.token.is_some() && self.tls.is_some() {
            return Ok(());
        }
        Err(Error::Options(format!(
            "{} can be reached from other machines: that needs a token (--token-file) and TLS (--tls-cert and --tls-key); or listen on 127.0.0.1",
            self.listen
        )))
    }
}

impl Options {
    /// # Errors
    ///
    /// If members show each other, by these options or a policy's settings, what operators show: then every member could do what an operator may.
    pub(crate) fn keeps_apart<'a>(&self, policies: impl IntoIterator<Item = &'a PeersSettings>) -> Result<(), Error> {
        let Some(operators) = &self.token else { return Ok(()) };
        let mut set = policies.into_iter().filter_map(|peers| peers.token.as_ref());
        if self.peers.token.as_ref().is_some_and(|token| operators.is(token.bytes()))
            || set.any(|token| operators.is(token.expose_secret().as_bytes()))
        {
            return Err(Error::Options("the operator's token (--token-file) and the members' (--peer-token-file, peer_token_file) are the same: members would be operators; make two".into()));
        }
        Ok(())
    }
}

/// Bounds on what clients can use up.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Limits {
    /// The most bytes of a list of keys.
    pub list_bytes: u64,
    /// The most connections at a time; when there are more, the one that has been idle for longest is closed.
    pub connections: usize,
    /// The most requests a second over all clients; `None` is no limit.
    pub rate: Option<u32>,
    /// How long a request's head may take, and how long a connection may be idle.
    pub head: Duration,
    /// How long a client may send nothing, or take nothing of what it is sent, in the middle of a message.
    pub stall: Duration,
    /// How long a whole body may take.
    pub body: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            list_bytes: 256 << 20,
            connections: 512,
            rate: None,
            head: Duration::from_secs(10),
            stall: Duration::from_secs(10),
            body: Duration::from_mins(1),
        }
    }
}

/// How requests are brought from member to member.
#[derive(Debug)]
pub struct Peers {
    /// What members show each other, instead of what the settings say.
    pub token: Option<Token>,
    /// Who signs the certificates of other members.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// The worker beside, for what is not answered here.
    pub(crate) forward_to: Option<Target>,
    /// How many are on their way at a time.
    pub(crate) turns: Semaphore,
    /// How many are answered here at a time.
    pub(crate) answers: Semaphore,
    /// Where the next search for any member begins.
    pub(crate) next: AtomicUsize,
}

impl Default for Peers {
    fn default() -> Self {
        let [turns, answers] = [(); 2].map(|()| Semaphore::new(FORWARDS_MOST));
        Self { token: None, tls: None, forward_to: None, turns, answers, next: AtomicUsize::new(0) }
    }
}

impl Peers {
    /// Members that speak TLS are believed if one of the certificates in this PEM file has signed theirs.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if there is none in it.
    pub fn trust(&mut self, file: &Path) -> Result<(), Error> {
        let refused = |why: &dyn std::fmt::Display| Error::Options(format!("{}: no certificates in PEM: {why}", file.display()));
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(file).map_err(|error| refused(&error))? {
            let certificate = certificate.map_err(|error| refused(&error))?;
            roots.add(certificate).map_err(|error| refused(&error))?;
        }
        if roots.is_empty() {
            return Err(refused(&"it is empty"));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(|error| refused(&error))?;
        self.tls = Some(Arc::new(config.with_root_certificates(roots).with_no_client_auth()));
        Ok(())
    }

    /// What this sidecar does not answer itself is asked of the worker at this address of the same machine, such as `http://127.0.0.1:8000/hooks`.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if it is another machine's, or none.
    pub fn forward_to(&mut self, address: &str) -> Result<(), Error> {
        let refused = || Error::Options("the worker beside is at an address of this machine, such as http://127.0.0.1:8000".into());
        self.forward_to = Some(Target::parse(address).filter(Target::is_beside).ok_or_else(refused)?);
        Ok(())
    }
}

/// A secret that is compared in constant time and never shown.
#[derive(Debug, Clone)]
pub struct Token(SecretSlice<u8>);

impl Token {
    /// The token in a file, without its last line feed.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if the file cannot be read, or holds no token.
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        let bytes = read(path, TOKEN_BYTES_MAX)?;
        let token = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let token = token.strip_suffix(b"\r").unwrap_or(token);
        let refused = |why: &str| Err(Error::Options(format!("{}: {why}", path.display())));
        if token.len() < TOKEN_BYTES_LEAST {
            return refused("a token has at least 16 bytes; 32 random hexadecimal digits would be one");
        }
        if !token.iter().all(u8::is_ascii_graphic) {
            return refused("a token is printable ASCII without blanks");
        }
        Ok(Self(token.to_vec().into()))
    }

    pub(crate) fn of(token: &[u8]) -> Self {
        Self(token.to_vec().into())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.expose_secret()
    }

    pub(crate) fn is(&self, shown: &[u8]) -> bool {
        self.0.expose_secret().ct_eq(shown).into()
    }
}

/// A server's certificate and key, read and found to fit.
#[derive(Debug)]
pub struct Tls(pub(crate) Arc<ServerConfig>);

impl Tls {
    /// The certificate chain and the private key in these PEM files.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if they cannot be read or do not go together.
    pub fn from_files(chain: &Path, key: &Path) -> Result<Self, Error> {
        let refused = |path: &Path, why: &dyn std::fmt::Display| Error::Options(format!("{}: {why}", path.display()));
        let certificates = CertificateDer::pem_file_iter(chain)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| refused(chain, &format_args!("no certificates in PEM: {error}")))?;
        if certificates.is_empty() {
            return Err(refused(chain, &"no certificates in PEM"));
        }
        let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| refused(key, &format_args!("no private key in PEM: {error}")))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = versions.and_then(|versions| versions.with_no_client_auth().with_single_cert(certificates, secret));
        Ok(Self(Arc::new(config.map_err(|error| refused(chain, &error))?)))
    }
}

fn read(path: &Path, most: u64) -> Result<Vec<u8>, Error> {
    use std::io::Read;
    let failed = |error: std::io::Error| Error::File(PathBuf::from(path), error);
    let mut bytes = Vec::new();
    std::fs::File::open(path).map_err(failed)?.take(most + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > most {
        return Err(Error::Options(format!("{} has more than {most} bytes: is it the right file?", path.display())));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_loopback_only_with_token_and_tls() {
        let at = |listen: &str| Options::new(listen.parse().unwrap()).check();
        assert!(at("127.0.0.1:0").is_ok() && at("[::1]:0").is_ok() && at("127.9.9.9:80").is_ok());
        for open in ["0.0.0.0:80", "[::]:80", "10.0.0.7:80"] {
            let error = at(open).unwrap_err().to_string();
            assert!(error.contains(open) && error.contains("--token-file") && error.contains("--tls-cert"), "{error}");
        }
    }

    #[test]
    fn the_peers_token_is_not_the_operators() {
        let [operators, peers] = ["operators-show-this-one", "peers-show-each-other-this"];
        let is_taken = |own: Option<&str>, set: Option<&str>| {
            let mut options = Options::new(([127, 0, 0, 1], 0).into());
            options.token = Some(Token::of(operators.as_bytes()));
            options.peers.token = own.map(|token| Token::of(token.as_bytes()));
            let mut settings = PeersSettings::default();
            settings.token = set.map(|token| token.to_owned().into());
            let checked = options.keeps_apart([&PeersSettings::default(), &settings]);
            checked.inspect_err(|error| assert!(!error.to_string().contains(operators), "{error}")).is_ok()
        };
        assert!(is_taken(None, None) && is_taken(Some(peers), None) && is_taken(None, Some(peers)));
        assert!(!is_taken(Some(operators), None) && !is_taken(None, Some(operators)) && !is_taken(Some(peers), Some(operators)));
    }

    #[test]
    fn a_token_is_not_shown_and_only_itself() {
        let folder = std::env::temp_dir().join(format!("shardwise-token-{}", std::process::id()));
        let token = |text: &str| {
            std::fs::write(&folder, text).unwrap();
            Token::from_file(&folder)
        };
        let secret = "0123456789abcdef0123";
        let kept = token(&format!("{secret}\n")).unwrap();
        assert!(kept.is(secret.as_bytes()) && !kept.is(b"0123456789abcdef0124") && !kept.is(b"") && !kept.is(&secret.as_bytes()[1..]));
        assert!(!format!("{kept:?}").contains("0123"), "{kept:?}");
        for bad in ["", "short", "with blanks in it, alas", &"x".repeat(5_000)] {
            assert!(token(bad).is_err(), "{bad}");
        }
        std::fs::remove_file(&folder).unwrap();
    }
}
