//! Requests and messages between members: where they arrive, how these addresses are protected, and which may be called.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use secrecy::{ExposeSecret, SecretString};
use shardwise_core::{OwnershipMode, Policy};
use shardwise_settings::{Error, Origin, ResolvedValue, SettingsTable};

use super::keys;

/// The minimum length of a token in bytes: an attacker who has recorded a proof can search for shorter ones.
const TOKEN_BYTES_MIN: usize = 16;
const TOKEN_BYTES_MAX: usize = 1_024;

/// Addresses with a common prefix, such as `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network {
    /// The first one.
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Whether it contains the address. An IPv4-mapped IPv6 address counts as its IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4() && first(address, self.bits) == self.address
    }
}

/// The first address of the network with that many bits that contains `address`.
fn first(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(own) => Ipv4Addr::from(u32::from(own) & u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0)).into(),
        IpAddr::V6(own) => Ipv6Addr::from(u128::from(own) & u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)).into(),
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl FromStr for Network {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WANTED: &str = "write networks as \"10.0.0.0/8\" or \"fd00::/8\", single addresses as \"10.0.0.7/32\"";
        let (address, bits) = text.split_once('/').ok_or(WANTED)?;
        let address: IpAddr = address.parse().map_err(|_| WANTED)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let is_number = !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
        let bits = bits.parse().ok().filter(|bits| is_number && *bits <= most).ok_or(WANTED)?;
        if address.to_canonical() != address {
            return Err("write an IPv4 network as one");
        }
        // 10.0.0.7/8 may mean the network or the address.
        if first(address, bits) != address {
            return Err("the address has bits behind the network's; write its first address");
        }
        Ok(Self { address, bits })
    }
}

/// Where messages to singletons arrive ([`crate::Singleton::handle`]). `Debug` does not show the token.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MessagesSettings {
    /// The address to listen on, once a singleton takes messages. Port 0 is any free one.
    pub listen: SocketAddr,
    /// The shared secret of both sides, at least 16 bytes of printable ASCII; required if other machines can connect.
    pub token: Option<SecretString>,
}

impl Default for MessagesSettings {
    /// Any free port of the loopback address, without a token.
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), token: None }
    }
}

impl PartialEq for MessagesSettings {
    fn eq(&self, other: &Self) -> bool {
        self.listen == other.listen && is_same(self.token.as_ref(), other.token.as_ref())
    }
}

impl Eq for MessagesSettings {}

impl MessagesSettings {
    /// The error in the listen address, given that messages go only to these networks; `None` if it is valid.
    pub(crate) fn mistake(&self, networks: &[Network]) -> Option<&'static str> {
        let ip = self.listen.ip();
        if !ip.is_loopback() && self.token.is_none() {
            return Some("others than this machine's processes can connect there: write messages_token_file too, or listen on 127.0.0.1");
        }
        // A wildcard address does not say how others reach it; with a loopback address no others are expected.
        let is_reached = ip.is_unspecified() || ip.is_loopback() || networks.iter().any(|network| network.contains(ip));
        (!is_reached).then_some("it is in none of peer_networks, and messages go nowhere else: add its network there, for all members")
    }
}

/// Requests between members ([`crate::ShardingService::on_request`]). `Debug` does not show the token.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PeersSettings {
    /// The address on which a worker without a sidecar listens for them, once it has a handler. Port 0 is any free one.
    pub listen: SocketAddr,
    /// The shared secret of members, at least 16 bytes of printable ASCII. Without it only `GET` is answered.
    pub token: Option<SecretString>,
    /// Where requests and messages may go: addresses of members outside these networks are never connected to.
    pub networks: Vec<Network>,
}

impl Default for PeersSettings {
    /// Only this machine, without a token.
    fn default() -> Self {
        let loopback = [(IpAddr::from(Ipv4Addr::new(127, 0, 0, 0)), 8), (Ipv6Addr::LOCALHOST.into(), 128)];
        let networks = loopback.map(|(address, bits)| Network { address, bits }).into();
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), token: None, networks }
    }
}

impl PartialEq for PeersSettings {
    fn eq(&self, other: &Self) -> bool {
        self.listen == other.listen && self.networks == other.networks && is_same(self.token.as_ref(), other.token.as_ref())
    }
}

impl Eq for PeersSettings {}

impl PeersSettings {
    /// The error in the listen address; `None` if it is valid.
    pub(crate) fn mistake(&self) -> Option<&'static str> {
        let mistake = "others than this machine's programs can connect there, and that takes TLS: listen on 127.0.0.1, or let a sidecar serve this worker";
        (!self.listen.ip().is_loopback()).then_some(mistake)
    }
}

fn is_same(one: Option<&SecretString>, other: Option<&SecretString>) -> bool {
    one.map(ExposeSecret::expose_secret) == other.map(ExposeSecret::expose_secret)
}

/// The error in a token; `None` if it is valid or there is none.
pub(crate) fn token_mistake(token: Option<&SecretString>) -> Option<&'static str> {
    let text = token?.expose_secret();
    let is_one = (TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    (!is_one).then_some("a token is 16 to 1024 bytes of printable ASCII without blanks; 32 random hexadecimal digits would be one")
}

/// The token in the file that `found` names.
fn token(table: &SettingsTable<'_>, found: &ResolvedValue) -> Result<SecretString, Error> {
    let token = table.take_secret(found)?;
    token_mistake(Some(&token)).map_or(Ok(token), |mistake| Err(found.refuse(mistake)))
}

/// The IP address and port; `examples` appear in the error.
fn socket_address(found: &ResolvedValue, examples: &str) -> Result<SocketAddr, Error> {
    found.parse(|text| text.parse().map_err(|_| format!("write an IP address and a port, such as {examples}")))
}

/// Reads the settings of requests from the policy's table.
pub(super) fn read(table: &SettingsTable<'_>) -> Result<PeersSettings, Error> {
    let networks = table.take(&keys::PEER_NETWORKS)?;
    let networks = networks.parse(|text| text.split(',').map(str::parse).collect::<Result<_, _>>())?;
    let mut settings = PeersSettings { networks, ..PeersSettings::default() };
    if let Some(found) = table.take_if_set(&keys::PEER_LISTEN)? {
        settings.listen = socket_address(&found, "\"127.0.0.1:7500\"")?;
        settings.mistake().map_or(Ok(()), |mistake| Err(found.refuse(mistake)))?;
    }
    settings.token = table.find(&keys::PEER_TOKEN_FILE)?.map(|found| token(table, &found)).transpose()?;
    Ok(settings)
}

/// Reads the settings of messages from the policy's table.
pub(super) fn messages(table: &SettingsTable<'_>, policy: &Policy, networks: &[Network]) -> Result<MessagesSettings, Error> {
    let listen = table.take_if_set(&keys::MESSAGES_LISTEN)?;
    let token_file = table.find(&keys::MESSAGES_TOKEN_FILE)?;
    let mut settings = MessagesSettings::default();
    if policy.ownership != OwnershipMode::Exclusive {
        let unused = listen.as_ref().or(token_file.as_ref());
        return unused.map_or(Ok(settings), |found| {
            Err(found.refuse("it is about singletons, which need claims: write ownership = \"exclusive\" too, or remove it"))
        });
    }
    match &listen {
        Some(found) => settings.listen = socket_address(found, "\"10.0.0.7:7400\" or \"[fd00::7]:7400\"")?,
        None => table.note_from(&keys::MESSAGES_LISTEN, settings.listen, Origin::Default),
    }
    settings.token = token_file.map(|found| token(table, &found)).transpose()?;
    match (settings.mistake(networks), listen) {
        (Some(mistake), Some(found)) => Err(found.refuse(mistake)),
        _ => Ok(settings),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_its_own_addresses_alone() {
        let has = |network: &str, address: &str| network.parse::<Network>().unwrap().contains(address.parse().unwrap());
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("10.1.2.3/32", "10.1.2.3", "10.1.2.2"),
            ("0.0.0.0/0", "255.255.255.255", "::1"),
            ("192.168.128.0/17", "::ffff:192.168.128.1", "192.168.127.255"),
            ("fd00::/8", "fdff::1", "fe00::1"),
            ("::1/128", "::1", "127.0.0.1"),
            ("::/0", "fe80::1", "10.0.0.1"),
        ] {
            assert!(has(network, inside) && !has(network, outside), "{network}");
        }
        for bad in [
            "",
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0.0.7/8",
            "::/129",
            "::ffff:10.0.0.0/104",
            "host/8",
            "10.0.0.0/8/8",
        ] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
        for shown in ["10.0.0.0/8", "::1/128"] {
            assert_eq!(shown.parse::<Network>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn a_short_token_is_refused_also_where_settings_are_made_in_code() {
        let with = |token: &str| PeersSettings { token: Some(token.to_owned().into()), ..PeersSettings::default() };
        let mistake = |token: &str| token_mistake(with(token).token.as_ref());
        assert_eq!((mistake("0123456789abcdef"), token_mistake(None)), (None, None));
        for bad in ["", "0123456789abcde", "0123456789 abcdef"] {
            assert!(mistake(bad).unwrap().contains("16 to 1024 bytes"), "{bad}");
        }
        assert!(!format!("{:?}", with("0123456789abcdef")).contains("0123"));
    }
}
