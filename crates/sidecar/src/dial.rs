//! One request to another member, or to the worker beside: only to addresses that are allowed, over connections that are kept for a while where nothing can
//! go wrong by that, and within limits. Redirects are not followed.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::uri::{Authority, Uri};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use shardwise::InstanceId;
use shardwise::requests::{Answer, Method, Request};
use shardwise::settings::Network;
use shardwise::trace;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tracing::{Instrument, field};

use crate::among::Peers;
use crate::exchange::{Line, asked, taken_in};
use crate::gate::port_of;
use crate::kept::Kept;
use crate::options::{Limits, Token};

/// How long a name may take to be found, a connection to be there, and TLS to be agreed on, each.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// How long the answer may take: longer than a handler may.
const ANSWER_WITHIN: Duration = Duration::from_secs(12);
/// The most addresses of one name that are tried.
const ADDRESSES_MOST: usize = 4;

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// Nobody is there, or somebody else is by now: nothing was handled.
    Nobody(String),
    /// It may not be asked, or does not let us in: nothing was handled.
    Barred(String),
    /// The connection broke, or what came back is no answer.
    Broken(String),
    /// It takes too long.
    Late,
}

impl Failed {
    /// Which one, in traces.
    const fn as_str(&self) -> &'static str {
        match self {
            Self::Nobody(_) => "nobody",
            Self::Barred(_) => "barred",
            Self::Broken(_) => "broken",
            Self::Late => "late",
        }
    }
}

/// An address as a member's record has it, or as the worker beside was named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    tls: bool,
    host: String,
    port: u16,
    /// What stands in front of every path.
    prefix: String,
}

impl Target {
    /// The address without user, query and fragment; `None` if it is none.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let uri: Uri = text.parse().ok()?;
        let tls = match uri.scheme_str()? {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let authority: &Authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if uri.query().is_some() || host.is_empty() {
            return None;
        }
        let port = port_of(authority.as_str(), if tls { 443 } else { 80 })?;
        Some(Self { tls, host, port, prefix: uri.path().trim_end_matches('/').to_owned() })
    }

    /// The address in a member's record: the path that is called is ours to say, so there is none in it.
    pub(crate) fn of_member(text: &str) -> Option<Self> {
        Self::parse(text).filter(|target| target.prefix.is_empty())
    }

    /// Host and port, as whoever is there knows itself.
    pub(crate) fn authority(&self) -> String {
        if self.host.contains(':') { format!("[{}]:{}", self.host, self.port) } else { format!("{}:{}", self.host, self.port) }
    }

    pub(crate) fn into_host(self) -> String {
        self.host
    }

    /// Whether it is this machine, said by address or as `localhost`, without TLS.
    pub(crate) fn is_beside(&self) -> bool {
        !self.tls && (self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()))
    }
}

/// Another member: whom this sidecar may ask, and what it shows.
pub(crate) struct Member<'a> {
    pub(crate) peers: &'a Peers,
    pub(crate) networks: &'a [Network],
    pub(crate) token: Option<HeaderValue>,
    pub(crate) limits: &'a Limits,
    pub(crate) id: &'a InstanceId,
}

/// Who is asked decides what is checked.
pub(crate) enum Whom<'a> {
    /// Another member of the group.
    Member(Member<'a>),
    /// The worker beside this process.
    Beside(&'a Peers, &'a Limits),
}

impl Whom<'_> {
    /// Why that address may not be called; `None` if it may. Asked of what the name was resolved to, and of nothing else.
    fn barred(&self, target: &Target, address: IpAddr) -> Option<String> {
        let is_loopback = address.to_canonical().is_loopback();
        match self {
            Self::Beside(..) => (!is_loopback).then(|| format!("{address} is not this machine")),
            Self::Member(member) if !member.networks.iter().any(|network| network.contains(address)) => {
                Some(format!("{address} is in none of peer_networks"))
            }
            Self::Member(_) if !is_loopback && !target.tls => {
                Some(format!("{address} is not this machine, and its address is without TLS"))
            }
            Self::Member(member) if target.tls && member.peers.tls.is_none() => {
                Some("it speaks TLS, and nothing says whose certificates are right: start this sidecar with --peer-ca-file".into())
            }
            Self::Member(_) => None,
        }
    }

    /// Who it is, in traces.
    const fn as_str(&self) -> &'static str {
        match self {
            Self::Member(_) => "member",
            Self::Beside(..) => "worker beside",
        }
    }

    fn instance(&self) -> Option<&str> {
        match self {
            Self::Member(member) => Some(member.id.as_str()),
            Self::Beside(..) => None,
        }
    }

    pub(crate) const fn limits(&self) -> &Limits {
        match self {
            Self::Member(member) => member.limits,
            Self::Beside(_, limits) => limits,
        }
    }

    const fn kept(&self) -> &Kept<Line> {
        match self {
            Self::Member(member) => &member.peers.kept,
            Self::Beside(peers, _) => &peers.kept,
        }
    }
}

/// Asks at that path, which begins with a slash, and waits for the answer.
pub(crate) async fn ask(whom: &Whom<'_>, target: &Target, path: &str, request: &Request) -> Result<Answer, Failed> {
    let span = tracing::info_span!(
        "ask",
        otel.name = format!("{} {}", word(request.method), whom.as_str()),
        otel.kind = "client",
        otel.status_code = field::Empty,
        "error.type" = field::Empty,
        http.request.method = word(request.method),
        http.response.status_code = field::Empty,
        "shardwise.instance" = whom.instance()
    );
    let answer = answer(whom, target, path, request).instrument(span.clone()).await;
    match &answer {
        Ok(answer) => {
            span.record("http.response.status_code", answer.status);
        }
        Err(failed) => trace::failed(&span, failed.as_str()),
    }
    answer
}

async fn answer(whom: &Whom<'_>, target: &Target, path: &str, request: &Request) -> Result<Answer, Failed> {
    let path = format!("{}{path}", target.prefix);
    // What is brought once at most has a connection of its own: of one that breaks under it nobody could tell whether it had arrived.
    if request.method == Method::Get
        && let Some(line) = whom.kept().take(target, |line| line.is_open() && whom.barred(target, line.address().ip()).is_none())
        && let Ok(answer) = ask_over(whom, line, target, &path, request).await?
    {
        return Ok(answer);
    }
    let line = opened(whom, target).await?;
    let address = line.address();
    ask_over(whom, line, target, &path, request).await?.map_err(|error| broken(address, &error))
}

pub(crate) const fn word(method: Method) -> &'static str {
    match method {
        Method::Get => "GET",
        Method::Post => "POST",
    }
}

/// With what is below it: of TLS the error itself says nothing.
fn broken(address: SocketAddr, error: &hyper::Error) -> Failed {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    Failed::Broken(format!("{address}: {error}{cause}"))
}

/// Asks over that connection, and keeps it if it is good for more; the inner error is that it broke before there was an answer.
async fn ask_over(
    whom: &Whom<'_>,
    mut line: Line,
    target: &Target,
    path: &str,
    request: &Request,
) -> Result<hyper::Result<Answer>, Failed> {
    let exchange = async {
        let asked = asked(whom, &target.authority(), path, request).map_err(|error| Failed::Broken(error.to_string()))?;
        let response = match line.send(asked).await {
            Ok(response) => response,
            Err(error) => return Ok(Err(error)),
        };
        let (answer, is_whole) = taken_in(whom, response, line.address(), target).await;
        if is_whole && request.method == Method::Get {
            whom.kept().keep(target, line);
        }
        answer.map(Ok)
    };
    timeout(ANSWER_WITHIN, exchange).await.unwrap_or(Err(Failed::Late))
}

/// A new connection, with TLS where the target says so.
async fn opened(whom: &Whom<'_>, target: &Target) -> Result<Line, Failed> {
    let (stream, address) = connect(whom, target).await?;
    let opened = match whom {
        Whom::Member(Member { peers: Peers { tls: Some(tls), .. }, .. }) if target.tls => {
            Line::over(secured(stream, target, tls).await?, address).await
        }
        _ => Line::over(stream, address).await,
    };
    opened.map_err(|error| broken(address, &error))
}

/// A connection to the first of its addresses that is allowed and there.
async fn connect(whom: &Whom<'_>, target: &Target) -> Result<(TcpStream, SocketAddr), Failed> {
    let found = timeout(CONNECT_WITHIN, tokio::net::lookup_host((target.host.as_str(), target.port))).await;
    let addresses = match found {
        Ok(Ok(addresses)) => addresses.take(ADDRESSES_MOST),
        Ok(Err(error)) => return Err(Failed::Nobody(format!("{}: {error}", target.host))),
        Err(_) => return Err(Failed::Nobody(format!("{} is not found within {CONNECT_WITHIN:?}", target.host))),
    };
    let mut failed = Failed::Nobody(format!("{} has no address", target.host));
    for address in addresses {
        if let Some(why) = whom.barred(target, address.ip()) {
            failed = Failed::Barred(why);
            continue;
        }
        match timeout(CONNECT_WITHIN, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                let _ = stream.set_nodelay(true);
                return Ok((stream, address));
            }
            Ok(Err(error)) => failed = Failed::Nobody(format!("{address}: {error}")),
            Err(_) => failed = Failed::Nobody(format!("{address}: no connection within {CONNECT_WITHIN:?}")),
        }
    }
    Err(failed)
}

async fn secured(
    stream: TcpStream,
    target: &Target,
    config: &Arc<ClientConfig>,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, Failed> {
    let name = ServerName::try_from(target.host.clone()).map_err(|error| Failed::Barred(error.to_string()))?;
    let agreed = timeout(CONNECT_WITHIN, TlsConnector::from(Arc::clone(config)).connect(name, stream)).await;
    match agreed {
        Ok(Ok(stream)) => Ok(stream),
        // A certificate that is not the right one is nobody we talk to.
        Ok(Err(error)) if error.kind() == ErrorKind::InvalidData => Err(Failed::Barred(format!("{}: {error}", target.host))),
        Ok(Err(error)) => Err(Failed::Broken(format!("{}: {error}", target.host))),
        Err(_) => Err(Failed::Late),
    }
}

/// A token as it is shown.
pub(crate) fn shown(token: &Token) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_bytes(&[b"Bearer ", token.bytes()].concat()).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_scheme_a_host_and_a_port() {
        let beside = Target::parse("http://127.0.0.1:8000/hooks/").unwrap();
        assert_eq!((beside.port, beside.prefix.as_str(), beside.is_beside()), (8000, "/hooks", true));
        assert!(Target::parse("http://[::1]:80").unwrap().is_beside() && Target::parse("http://localhost").unwrap().is_beside());
        for other in ["https://127.0.0.1:1", "http://10.0.0.7:1", "http://localhost.evil.example", "http://[fd00::7]:1"] {
            assert!(!Target::parse(other).unwrap().is_beside(), "{other}");
        }
        for bad in [
            "",
            "127.0.0.1:80",
            "ftp://x:1",
            "http://u@127.0.0.1",
            "http://127.0.0.1@evil.example:1",
            "http://x:99999",
            "http://x/?a=b",
            "http:///x",
        ] {
            assert_eq!(Target::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_members_record_does_not_choose_the_path() {
        for whole in ["http://127.0.0.1:1", "https://10.0.0.7:1/"] {
            assert!(Target::of_member(whole).is_some(), "{whole}");
        }
        for path in ["http://127.0.0.1:1/admin", "http://127.0.0.1:1/admin/", "https://10.0.0.7:1//x", "http://127.0.0.1:1/?a=b"] {
            assert_eq!(Target::of_member(path), None, "{path}");
        }
    }

    #[test]
    fn what_may_be_called_is_asked_of_the_address_that_a_name_leads_to() {
        let (peers, limits) = (Peers::default(), Limits::default());
        let barred = |target: &str, address: &str, networks: &[&str]| {
            let networks: Vec<Network> = networks.iter().map(|network| network.parse().unwrap()).collect();
            let id = InstanceId::new("a").unwrap();
            let whom = Whom::Member(Member { peers: &peers, networks: &networks, token: None, limits: &limits, id: &id });
            whom.barred(&Target::parse(target).unwrap(), address.parse().unwrap()).is_some()
        };
        let loopback = ["127.0.0.0/8", "::1/128"];
        assert!(!barred("http://a.example:1", "127.0.0.1", &loopback) && !barred("http://a.example:1", "::ffff:127.0.0.1", &loopback));
        assert!(barred("http://a.example:1", "169.254.169.254", &loopback), "a name may lead anywhere");
        assert!(barred("http://10.0.0.7:1", "10.0.0.7", &["10.0.0.0/8"]), "beyond loopback there is TLS or nothing");
        assert!(barred("https://10.0.0.7:1", "10.0.0.7", &["10.0.0.0/8"]), "and somebody has to say whose certificates");
        let beside = Whom::Beside(&peers, &limits);
        assert!(beside.barred(&Target::parse("http://localhost:1").unwrap(), "10.0.0.7".parse().unwrap()).is_some());
    }
}
