//! One request to another member or to the local worker: checks which address may be called, pools connections where that is safe, and
//! applies limits. Redirects are not followed.

use std::net::IpAddr;
use std::time::Duration;

use shardwise::proof::Recipient;
use shardwise::requests::{Answer, Method, Request};
use shardwise::settings::Network;
use shardwise::trace;
use tokio::time::timeout;
use tracing::{Instrument, field};

use crate::connection_pool::ConnectionPool;
use crate::options::{Limits, Token};
use crate::peer_config::Peers;
use crate::peer_connect::{broken, opened};
use crate::peer_http::{PeerConnection, asked, taken_in};
use crate::target::Target;

/// The timeout of the answer: longer than a handler's timeout.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(12);

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DialError {
    /// The address is unreachable or belongs to another process by now: the request was not handled.
    Unreachable(String),
    /// The request is not allowed, or the other side refused this client: the request was not handled.
    Barred(String),
    /// The connection broke, or the answer was invalid.
    Broken(String),
    /// The answer took too long.
    Late,
}

impl DialError {
    const fn as_str(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "nobody",
            Self::Barred(_) => "barred",
            Self::Broken(_) => "broken",
            Self::Late => "late",
        }
    }
}

/// Another member: which addresses are allowed, and the secret that both sides must prove to know.
pub(crate) struct PeerMember<'a> {
    pub(crate) peers: &'a Peers,
    pub(crate) networks: &'a [Network],
    pub(crate) token: Option<Token>,
    pub(crate) limits: &'a Limits,
    pub(crate) recipient: Recipient<'a>,
    /// The prefix of every path to it.
    pub(crate) base: String,
}

/// The target of a request; it decides what is checked.
pub(crate) enum DialTarget<'a> {
    Member(PeerMember<'a>),
    /// The local worker.
    Beside(&'a Peers, &'a Limits),
}

impl DialTarget<'_> {
    /// Why that resolved address may not be called; `None` if it may. Only the address checked here is called.
    pub(crate) fn barred(&self, target: &Target, address: IpAddr) -> Option<String> {
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
            Self::Member(member) if !target.tls && member.token.is_none() && member.peers.is_mutual() => {
                Some("its address is without TLS, and without a peer token nothing proves who is there: set one on all members".into())
            }
            Self::Member(_) => None,
        }
    }

    /// Why a request with this method is not allowed; `None` if it is. A body is sent only to a recipient that has proven to be the
    /// member.
    fn withheld(&self, method: Method) -> Option<&'static str> {
        match self {
            Self::Member(member) if method == Method::Post && member.token.is_none() && !member.peers.is_mutual() => {
                Some("without a peer token or certificates only GET is brought to members: --peer-token-file, --peer-cert")
            }
            _ => None,
        }
    }

    /// The kind of target, in traces.
    const fn as_str(&self) -> &'static str {
        match self {
            Self::Member(_) => "member",
            Self::Beside(..) => "worker beside",
        }
    }

    fn instance(&self) -> Option<&str> {
        match self {
            Self::Member(member) => Some(member.recipient.instance_id.as_str()),
            Self::Beside(..) => None,
        }
    }

    pub(crate) const fn limits(&self) -> &Limits {
        match self {
            Self::Member(member) => member.limits,
            Self::Beside(_, limits) => limits,
        }
    }

    const fn connection_pool(&self) -> &ConnectionPool<PeerConnection> {
        match self {
            Self::Member(member) => &member.peers.connection_pool,
            Self::Beside(peers, _) => &peers.connection_pool,
        }
    }
}

/// Sends a request for that path, which begins without a slash, and waits for the answer.
pub(crate) async fn ask(whom: &DialTarget<'_>, target: &Target, path: &str, request: &Request) -> Result<Answer, DialError> {
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

async fn answer(whom: &DialTarget<'_>, target: &Target, path: &str, request: &Request) -> Result<Answer, DialError> {
    if let Some(why) = whom.withheld(request.method) {
        return Err(DialError::Barred(why.into()));
    }
    let path = match whom {
        DialTarget::Member(member) => format!("{}{path}", member.base),
        DialTarget::Beside(..) => format!("{}/{path}", target.prefix),
    };
    // A request that must arrive at most once uses a new connection: if a pooled one broke, it would be unknown whether the request
    // arrived.
    if request.method == Method::Get
        && let Some(connection) = whom.connection_pool().take(target, |connection| {
            connection.is_open() && connection.is_for(whom) && whom.barred(target, connection.address().ip()).is_none()
        })
        && let Ok(answer) = ask_over(whom, connection, target, &path, request).await?
    {
        return Ok(answer);
    }
    let mut connection = opened(whom, target, request.method).await?;
    connection.greet(whom, target).await?;
    let address = connection.address();
    ask_over(whom, connection, target, &path, request).await?.map_err(|error| broken(address, &error))
}

pub(crate) const fn word(method: Method) -> &'static str {
    match method {
        Method::Get => "GET",
        Method::Post => "POST",
    }
}

/// Sends the request over that connection and returns the connection to the pool if it can be reused; the inner error means that it broke
/// before an answer.
async fn ask_over(
    whom: &DialTarget<'_>,
    mut connection: PeerConnection,
    target: &Target,
    path: &str,
    request: &Request,
) -> Result<hyper::Result<Answer>, DialError> {
    let exchange = async {
        let asked =
            asked(whom, &mut connection, &target.authority(), path, request).map_err(|error| DialError::Broken(error.to_string()))?;
        let response = match connection.send(asked).await {
            Ok(response) => response,
            Err(error) => return Ok(Err(error)),
        };
        let (answer, is_whole) = taken_in(whom, response, &connection, target).await;
        if is_whole && request.method == Method::Get {
            whom.connection_pool().keep(target, connection);
        }
        answer.map(Ok)
    };
    timeout(ANSWER_WITHIN, exchange).await.unwrap_or(Err(DialError::Late))
}

#[cfg(test)]
mod tests {
    use shardwise::InstanceId;
    use shardwise::core::{GroupName, Incarnation};
    use shardwise::proof::Channel;

    use super::*;

    #[test]
    fn what_may_be_called_is_asked_of_the_address_that_a_name_leads_to() {
        let (peers, limits) = (Peers::default(), Limits::default());
        let barred = |target: &str, address: &str, networks: &[&str]| {
            let networks: Vec<Network> = networks.iter().map(|network| network.parse().unwrap()).collect();
            let (group, id) = (GroupName::new("g").unwrap(), InstanceId::new("a").unwrap());
            let recipient = Recipient { channel: Channel::Requests, group: &group, instance_id: &id, incarnation: Incarnation::new(1) };
            let base = String::new();
            let whom = DialTarget::Member(PeerMember { peers: &peers, networks: &networks, token: None, limits: &limits, recipient, base });
            whom.barred(&Target::parse(target).unwrap(), address.parse().unwrap()).is_some()
        };
        let loopback = ["127.0.0.0/8", "::1/128"];
        assert!(!barred("http://a.example:1", "127.0.0.1", &loopback) && !barred("http://a.example:1", "::ffff:127.0.0.1", &loopback));
        assert!(barred("http://a.example:1", "169.254.169.254", &loopback), "a name may lead anywhere");
        assert!(barred("http://10.0.0.7:1", "10.0.0.7", &["10.0.0.0/8"]), "beyond loopback there is TLS or nothing");
        assert!(barred("https://10.0.0.7:1", "10.0.0.7", &["10.0.0.0/8"]), "and somebody has to say whose certificates");
        let beside = DialTarget::Beside(&peers, &limits);
        assert!(beside.barred(&Target::parse("http://localhost:1").unwrap(), "10.0.0.7".parse().unwrap()).is_some());
    }
}
