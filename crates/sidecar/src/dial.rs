//! One request to another member or to the local worker: checks which address may be called, pools connections where that is safe, and
//! applies limits. Redirects are not followed.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use shardwise::proof::Recipient;
use shardwise::requests::{Answer, Method, Request};
use shardwise::settings::Network;
use shardwise::trace;
use tokio::time::timeout;
use tracing::{Instrument, field};

use crate::options::{Limits, Token};
use crate::peer_config::Peers;
use crate::peer_connect::{broken, opened};
use crate::peer_http::PeerConnection;
use crate::target::Target;

/// The timeout of the answer: longer than a handler's timeout.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(12);

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DialError {
    /// The address is unreachable or belongs to another process by now: the request was not handled.
    Unreachable(String),
    /// The request is not allowed, or the other side refused this client: the request was not handled.
    Barred(String),
    /// The member is there and did not handle the request.
    Unhandled(Unhandled),
    /// The connection broke, or the answer was invalid.
    Broken(String),
    /// The answer took too long.
    Late,
}

/// Why a member did not handle a request that it took. A `POST` has done nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unhandled {
    /// It already answers as many requests as it may.
    Busy,
    /// Its worker cannot be reached or, for a `GET`, gives no valid answer; with the cause.
    NoWorker(String),
}

impl DialError {
    /// The outcome, for metrics and spans.
    pub(crate) const fn outcome(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "unreachable",
            Self::Barred(_) => "barred",
            Self::Unhandled(Unhandled::Busy) => "busy",
            Self::Unhandled(Unhandled::NoWorker(_)) => "no_worker",
            Self::Broken(_) => "broken",
            Self::Late => "late",
        }
    }

    /// Whether the request may have been handled.
    pub(crate) const fn may_be_done(&self) -> bool {
        matches!(self, Self::Broken(_) | Self::Late)
    }
}

/// The cause alone; the recipient is known to the caller.
impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable(why) | Self::Barred(why) | Self::Broken(why) | Self::Unhandled(Unhandled::NoWorker(why)) => why.as_str(),
            Self::Unhandled(Unhandled::Busy) => "it already answers as many requests as it may",
            Self::Late => "it takes too long",
        })
    }
}

/// The recipient of a request.
pub(crate) struct Callee<'a> {
    pub(crate) peers: &'a Peers,
    pub(crate) limits: &'a Limits,
    pub(crate) target: &'a Target,
    /// The prefix of every path to it.
    pub(crate) base: String,
    /// The other member; `None` for the local worker.
    pub(crate) member: Option<PeerMember<'a>>,
}

/// Another member: which addresses are allowed, and the secret that both sides must prove to know.
pub(crate) struct PeerMember<'a> {
    pub(crate) networks: &'a [Network],
    pub(crate) token: Option<Token>,
    pub(crate) recipient: Recipient<'a>,
}

impl Callee<'_> {
    /// Why that resolved address may not be called; `None` if it may. Only the address checked here is called.
    pub(crate) fn barred(&self, address: IpAddr) -> Option<String> {
        let (is_loopback, tls) = (address.to_canonical().is_loopback(), self.target.tls);
        let Some(member) = &self.member else { return (!is_loopback).then(|| format!("{address} is not this machine")) };
        if !member.networks.iter().any(|network| network.contains(address)) {
            Some(format!("{address} is in none of peer_networks"))
        } else if !is_loopback && !tls {
            Some(format!("{address} is not this machine, and its address is without TLS"))
        } else if tls && self.peers.tls.is_none() {
            Some("it speaks TLS, and nothing says whose certificates are right: start this sidecar with --peer-ca-file".into())
        } else if tls && self.peers.name.is_some() && member.token.is_none() {
            Some("all members share a name (--peer-name), and without a peer token none proves which it is: set one on all".into())
        } else if !tls && member.token.is_none() && self.peers.is_mutual() {
            Some("its address is without TLS, and without a peer token nothing proves which member answers: set one on all members".into())
        } else {
            None
        }
    }
}

/// Sends a request for that path, which begins without a slash, and waits for the answer.
pub(crate) async fn ask(whom: &Callee<'_>, path: &str, request: &Request) -> Result<Answer, DialError> {
    let kind = if whom.member.is_some() { "member" } else { "worker beside" };
    let span = tracing::info_span!(
        "ask",
        otel.name = format!("{} {kind}", word(request.method)),
        otel.kind = "client",
        otel.status_code = field::Empty,
        "error.type" = field::Empty,
        http.request.method = word(request.method),
        http.response.status_code = field::Empty,
        "shardwise.instance" = whom.member.as_ref().map(|member| member.recipient.instance_id.as_str())
    );
    let answer = answer(whom, path, request).instrument(span.clone()).await;
    match &answer {
        Ok(answer) => {
            span.record("http.response.status_code", answer.status);
        }
        Err(failed) => trace::failed(&span, failed.outcome()),
    }
    answer
}

/// The same without a span, for what is asked all the time.
pub(crate) async fn answer(whom: &Callee<'_>, path: &str, request: &Request) -> Result<Answer, DialError> {
    // A body is sent only to a recipient that has proven to be the member.
    let is_proven = whom.peers.is_mutual() || whom.member.as_ref().is_none_or(|member| member.token.is_some());
    if request.method == Method::Post && !is_proven {
        let why = "without a peer token or certificates only GET is brought to members: --peer-token-file, --peer-cert";
        return Err(DialError::Barred(why.into()));
    }
    let path = format!("{}{path}", whom.base);
    // A request that must arrive at most once uses a new connection: if a pooled one broke, it would be unknown whether the request
    // arrived.
    if request.method == Method::Get
        && let Some(connection) = whom.peers.connection_pool.take(whom.target, |connection| connection.is_good(whom))
        && let Ok(answer) = ask_over(whom, connection, &path, request).await?
    {
        return Ok(answer);
    }
    let mut connection = opened(whom, request.method).await?;
    connection.greet(whom).await?;
    let address = connection.address;
    ask_over(whom, connection, &path, request).await?.map_err(|error| broken(address, &error))
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
    whom: &Callee<'_>,
    mut connection: PeerConnection,
    path: &str,
    request: &Request,
) -> Result<hyper::Result<Answer>, DialError> {
    let exchange = async {
        let asked = connection.request(whom, path, request).map_err(|error| DialError::Broken(error.to_string()))?;
        let response = match connection.send(asked).await {
            Ok(response) => response,
            Err(error) => return Ok(Err(error)),
        };
        let (answer, is_whole) = connection.answer(whom, request.method, response).await;
        if is_whole && request.method == Method::Get {
            whom.peers.connection_pool.keep(whom.target, connection);
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
            let member = Some(PeerMember { networks: &networks, token: None, recipient });
            let target = &Target::parse(target).unwrap();
            let whom = Callee { peers: &peers, limits: &limits, target, base: String::new(), member };
            whom.barred(address.parse().unwrap()).is_some()
        };
        let loopback = ["127.0.0.0/8", "::1/128"];
        assert!(!barred("http://a.example:1", "127.0.0.1", &loopback) && !barred("http://a.example:1", "::ffff:127.0.0.1", &loopback));
        assert!(barred("http://a.example:1", "169.254.169.254", &loopback), "a name may lead anywhere");
        assert!(barred("http://10.0.0.7:1", "10.0.0.7", &["10.0.0.0/8"]), "beyond loopback there is TLS or nothing");
        assert!(barred("https://10.0.0.7:1", "10.0.0.7", &["10.0.0.0/8"]), "and somebody has to say whose certificates");
        let target = &Target::parse("http://localhost:1").unwrap();
        let local = Callee { peers: &peers, limits: &limits, target, base: String::new(), member: None };
        assert!(local.barred("10.0.0.7".parse().unwrap()).is_some());
    }
}
