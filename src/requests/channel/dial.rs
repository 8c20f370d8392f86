//! Reaches a member: only at addresses that may be called, with TLS if its address says so, and only once it has proven to be that member.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use secrecy::ExposeSecret;
use shardwise_core::{Escaped, GroupName};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::ByteStream;
use super::hello::{self, HELLO_WITHIN, NotThere, Protection};
use super::proof::Recipient;
use super::tls;
use crate::requests::address::{PLAIN, SECURED};
use crate::requests::security::PeerSecurity;
use crate::requests::transport::MemberEndpoint;
use crate::settings::Network;

/// The limit of each step: finding the name, connecting, and the handshake of TLS.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// The most addresses of one name that are tried.
const ADDRESSES_MAX: usize = 4;

/// Why a member was not reached. Nothing of a request was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unreached {
    /// It may be reached later, or is replaced by another one.
    Unsent(String),
    /// What answers there is not proven to be the member.
    Unproven(String),
    /// It may not be called: trying again does not help.
    Barred(String),
}

/// What a member needs to call others.
pub(super) struct CallingEnd {
    pub(super) group: GroupName,
    /// Where connections may go.
    pub(super) networks: Vec<Network>,
    pub(super) security: PeerSecurity,
}

/// Whether that address is without TLS, and host and port.
fn read(address: &str) -> Option<(bool, &str)> {
    let plain = address.strip_prefix(PLAIN).map(|rest| (true, rest));
    plain.or_else(|| address.strip_prefix(SECURED).map(|rest| (false, rest))).filter(|(_, rest)| rest.rsplit_once(':').is_some())
}

impl CallingEnd {
    /// Whether the member at that address has to prove itself, by the secret or a certificate. Otherwise any program of this machine may be
    /// there.
    pub(super) fn wants_proof(&self, address: &str) -> bool {
        self.security.token.is_some() || address.starts_with(SECURED)
    }

    pub(super) async fn open(&self, endpoint: &MemberEndpoint) -> Result<Box<dyn ByteStream>, Unreached> {
        let Some((is_plain, host_and_port)) = read(&endpoint.address) else {
            return Err(Unreached::Unsent(format!(
                "{} is not an address that this version knows: upgrade the older member",
                Escaped(&endpoint.address)
            )));
        };
        let (stream, address) = self.connect(host_and_port, is_plain).await?;
        let failed = |error: io::Error| Unreached::Unsent(format!("{address}: {error}"));
        let late = |_| Unreached::Unsent(format!("{address}: it does not prove within {HELLO_WITHIN:?} that it is the member"));
        let recipient = Recipient { group: &self.group, instance_id: &endpoint.instance_id, incarnation: endpoint.incarnation };
        let secret = self.security.token.as_ref().map(|secret| secret.expose_secret().as_bytes());
        let called = if is_plain {
            let protection = Protection { secret, binding: None };
            timeout(HELLO_WITHIN, hello::call(stream, &recipient, &protection)).await.map_err(late)?.map_err(failed)?
        } else {
            let host = host_and_port.rsplit_once(':').map_or(host_and_port, |(host, _)| host);
            let (stream, binding) = tls::secured(&self.security.tls, host, stream, CONNECT_WITHIN).await?;
            let protection = Protection { secret, binding: Some(&binding) };
            timeout(HELLO_WITHIN, hello::call(stream, &recipient, &protection))
                .await
                .map_err(late)?
                .map_err(|error| tls::broken(address, &error))?
        };
        called.map_err(|not_there| match not_there {
            NotThere::Elsewhere(why) => Unreached::Unsent(format!("{address}: {why}")),
            NotThere::Unproven(why) => Unreached::Unproven(format!("{address}: {why}; nothing was sent")),
        })
    }

    /// A connection to the first of its addresses that is allowed and reachable.
    async fn connect(&self, host_and_port: &str, is_plain: bool) -> Result<(TcpStream, SocketAddr), Unreached> {
        let name = Escaped(host_and_port);
        let addresses = match timeout(CONNECT_WITHIN, tokio::net::lookup_host(host_and_port)).await {
            Ok(Ok(addresses)) => addresses.take(ADDRESSES_MAX),
            Ok(Err(error)) => return Err(Unreached::Unsent(format!("{name}: {error}"))),
            Err(_) => return Err(Unreached::Unsent(format!("{name} is not found within {CONNECT_WITHIN:?}"))),
        };
        let mut failed = Unreached::Unsent(format!("{name} has no address"));
        for address in addresses {
            if let Some(why) = self.barred(address.ip(), is_plain) {
                failed = Unreached::Barred(why);
                continue;
            }
            match timeout(CONNECT_WITHIN, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    let _ = stream.set_nodelay(true);
                    return Ok((stream, address));
                }
                Ok(Err(error)) => failed = Unreached::Unsent(format!("{address}: {error}")),
                Err(_) => failed = Unreached::Unsent(format!("{address}: no connection within {CONNECT_WITHIN:?}")),
            }
        }
        Err(failed)
    }

    /// Why that resolved address may not be called; `None` if it may. Only the address that is checked here is called.
    fn barred(&self, address: IpAddr, is_plain: bool) -> Option<String> {
        let is_here = address.to_canonical().is_loopback();
        if !self.networks.iter().any(|network| network.contains(address)) {
            Some(format!("{address} is in none of peer_networks, and nothing goes elsewhere: add its network there"))
        } else if is_plain && self.security.token.is_none() && !is_here {
            Some(format!(
                "{address} is not this machine, and without peer_token_file nothing proves which member answers: set it for all members"
            ))
        } else if is_plain && self.security.token.is_none() && self.security.tls.is_mutual() {
            Some("its address is without TLS, and without a peer token nothing proves which member answers: set one for all members".into())
        } else if !is_plain {
            self.security.tls.barred(self.security.token.is_some())
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;

    use super::*;

    fn end(networks: &[&str], secret: Option<&str>) -> CallingEnd {
        let networks = networks.iter().map(|network| network.parse().unwrap()).collect();
        let token = secret.map(|secret| SecretString::from(secret.to_owned()));
        CallingEnd { group: GroupName::new("g").unwrap(), networks, security: PeerSecurity { token, ..PeerSecurity::default() } }
    }

    #[test]
    fn what_may_be_called_is_asked_of_the_address_that_a_name_leads_to() {
        let barred = |networks: &[&str], secret, address: &str| end(networks, secret).barred(address.parse().unwrap(), true);
        let loopback = ["127.0.0.0/8", "::1/128"];
        let secret = Some("0123456789abcdef");
        assert_eq!(barred(&loopback, None, "127.0.0.1"), None);
        assert_eq!(barred(&loopback, None, "::ffff:127.0.0.1"), None);
        assert!(barred(&loopback, secret, "169.254.169.254").unwrap().contains("none of peer_networks"), "a name may lead anywhere");
        assert!(barred(&["10.0.0.0/8"], None, "10.0.0.7").unwrap().contains("peer_token_file"));
        assert_eq!(barred(&["10.0.0.0/8"], secret, "10.0.0.7"), None);
    }

    #[test]
    fn a_member_proves_itself_by_the_secret_or_a_certificate() {
        let (open, secret) = (end(&[], None), end(&[], Some("0123456789abcdef")));
        assert!(!open.wants_proof("tcp://127.0.0.1:7") && open.wants_proof("tls://127.0.0.1:7") && secret.wants_proof("tcp://127.0.0.1:7"));
    }

    #[test]
    fn an_address_says_whether_there_is_tls() {
        assert_eq!(read("tcp://10.0.0.7:7"), Some((true, "10.0.0.7:7")));
        assert_eq!(read("tls://[fd00::7]:7"), Some((false, "[fd00::7]:7")));
        for other in ["http://127.0.0.1:7", "127.0.0.1:7", "tcp://", "tls://host"] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
