//! The options of a sidecar.

use std::net::SocketAddr;
use std::sync::Arc;

use secrecy::ExposeSecret;
use shardwise::settings::PeersSettings;

use crate::certificates::Tls;
use crate::error::Error;
use crate::limits::Limits;
use crate::outbox::Outbox;
use crate::peer_config::Peers;
use crate::token::Token;
use crate::worker_check::WorkerCheck;

/// The options of a sidecar.
pub struct Options {
    /// The address to listen on. Addresses other than loopback require `token` and `tls`.
    pub listen: SocketAddr,
    /// The token required for everything except `/livez` and `/readyz`. Without one, every client on this machine may read and none may
    /// act.
    pub token: Option<Token>,
    /// The token that admits workers to the routes that they need, and to no other ([`crate::Options::token`] admits to all).
    pub worker_token: Option<Token>,
    /// The token that admits callers to the requests to members, and to no other route. With it, these need it or the operator's.
    pub caller_token: Option<Token>,
    /// The listener's certificate and key.
    pub tls: Option<Tls>,
    /// Host names and, if addresses are mapped, addresses by which clients may call it, besides loopback and the addresses it listens on.
    pub hosts: Vec<String>,
    /// Limits on clients.
    pub limits: Limits,
    /// Requests and messages between members.
    pub peers: Peers,
    /// Renders the metrics for `/metrics`. Without it the path does not exist.
    pub render: Option<Render>,
    /// An outbox to show, with replay of its dead letters.
    pub outbox: Option<Arc<dyn Outbox>>,
    /// Checks whether the local worker works; until it does, this member is drained.
    pub worker: Option<WorkerCheck>,
    /// Policies whose groups are shown without joining them.
    pub observe: Vec<String>,
}

/// Renders all metrics in Prometheus' text format.
pub type Render = Box<dyn Fn() -> String + Send + Sync>;

impl Options {
    /// Options with that address and defaults for everything else.
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            token: None,
            worker_token: None,
            caller_token: None,
            tls: None,
            hosts: Vec::new(),
            limits: Limits::default(),
            peers: Peers::default(),
            render: None,
            outbox: None,
            worker: None,
            observe: Vec::new(),
        }
    }

    /// An error if other machines could connect without TLS or without a token.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.listen.ip().is_loopback() || self.token.is_some() && self.tls.is_some() {
            return Ok(());
        }
        Err(Error::Options(format!(
            "{} can be reached from other machines: that needs a token (--token-file) and TLS (--tls-cert and --tls-key); or listen on 127.0.0.1",
            self.listen
        )))
    }

    /// An error if two of the tokens of operators, members, workers and callers are the same, by these options or a policy's settings: then
    /// every member, worker or caller could act as an operator, or one as the other.
    pub(crate) fn keeps_apart<'a>(&'a self, policies: impl IntoIterator<Item = &'a PeersSettings>) -> Result<(), Error> {
        let set = policies.into_iter().filter_map(|peers| Some(peers.token.as_ref()?.expose_secret().as_bytes()));
        let of_members: Vec<&[u8]> = self.peers.token.iter().map(Token::bytes).chain(set).collect();
        let is_of_members = |token: &Option<Token>| token.as_ref().is_some_and(|token| of_members.iter().any(|known| token.is(known)));
        if is_of_members(&self.token) {
            return Err(Error::Options("the operator's token (--token-file) and the members' (--peer-token-file, peer_token_file) are the same: members would be operators; make two".into()));
        }
        let are_same =
            |one: &Option<Token>, other: &Option<Token>| one.as_ref().zip(other.as_ref()).is_some_and(|(one, other)| one.is(other.bytes()));
        if is_of_members(&self.worker_token) || are_same(&self.token, &self.worker_token) {
            return Err(Error::Options("the worker's token (--worker-token-file) is also the operator's (--token-file) or the members' (--peer-token-file, peer_token_file): make one for each".into()));
        }
        if is_of_members(&self.caller_token)
            || are_same(&self.token, &self.caller_token)
            || are_same(&self.worker_token, &self.caller_token)
        {
            return Err(Error::Options("the callers' token (--caller-token-file) is also the operator's (--token-file), the worker's (--worker-token-file) or the members' (--peer-token-file, peer_token_file): make one for each".into()));
        }
        Ok(())
    }
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
            options.worker_token = Some(Token::of(b"workers-show-this-one-here"));
            options.caller_token = Some(Token::of(b"callers-show-this-one-here"));
            options.peers.token = own.map(|token| Token::of(token.as_bytes()));
            let mut settings = PeersSettings::default();
            settings.token = set.map(|token| token.to_owned().into());
            let checked = options.keeps_apart([&PeersSettings::default(), &settings]);
            checked.inspect_err(|error| assert!(!error.to_string().contains(operators), "{error}")).is_ok()
        };
        assert!(is_taken(None, None) && is_taken(Some(peers), None) && is_taken(None, Some(peers)));
        let worker = "workers-show-this-one-here";
        assert!(!is_taken(Some(worker), None) && !is_taken(None, Some(worker)));
        let caller = "callers-show-this-one-here";
        assert!(!is_taken(Some(caller), None) && !is_taken(None, Some(caller)));
        assert!(!is_taken(Some(operators), None) && !is_taken(None, Some(operators)) && !is_taken(Some(peers), Some(operators)));
    }

    #[test]
    fn the_callers_token_is_no_other_one() {
        let checked = |operators: &str, workers: &str, callers: &str| {
            let mut options = Options::new(([127, 0, 0, 1], 0).into());
            let [operators, workers, callers] = [operators, workers, callers].map(|token| Some(Token::of(token.as_bytes())));
            (options.token, options.worker_token, options.caller_token) = (operators, workers, callers);
            options.keeps_apart([]).map_err(|error| error.to_string())
        };
        assert_eq!(checked("operators-token-1", "workers-token-01", "callers-token-01"), Ok(()));
        for (operators, workers, callers) in
            [("the-same-token-1", "workers-token-01", "the-same-token-1"), ("operators-token-1", "the-same-token-1", "the-same-token-1")]
        {
            assert!(checked(operators, workers, callers).unwrap_err().contains("--caller-token-file"), "{workers}");
        }
    }
}
