//! Requests between members: where they arrive, how that address is protected, and which addresses a sidecar may call.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use secrecy::{ExposeSecret, SecretString};
use shardwise_settings::{Error, ResolvedValue, SettingsTable};

use super::{keys, token};

/// Addresses with a common prefix, such as `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Whether it contains the address. An IPv4-mapped IPv6 address counts as its IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differ = u32::from(own) ^ u32::from(other);
                differ.checked_shr(32 - u32::from(self.bits)).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differ = u128::from(own) ^ u128::from(other);
                differ.checked_shr(128 - u32::from(self.bits)).unwrap_or(0) == 0
            }
            _ => false,
        }
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
        let network = Self { address, bits };
        // 10.0.0.7/8 may mean the network or the address.
        if network.first() == address { Ok(network) } else { Err("the address has bits behind the network's; write its first address") }
    }
}

impl Network {
    fn first(&self) -> IpAddr {
        match self.address {
            IpAddr::V4(own) => Ipv4Addr::from(u32::from(own) & u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0)).into(),
            IpAddr::V6(own) => Ipv6Addr::from(u128::from(own) & u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0)).into(),
        }
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
        let token = |settings: &Self| settings.token.as_ref().map(|token| token.expose_secret().to_owned());
        self.listen == other.listen && self.networks == other.networks && token(self) == token(other)
    }
}

impl Eq for PeersSettings {}

impl PeersSettings {
    /// The error in the token; `None` if it is valid.
    pub(crate) fn token_mistake(&self) -> Option<&'static str> {
        token::mistake(self.token.as_ref())
    }

    /// The error in the listen address; `None` if it is valid.
    pub(crate) fn mistake(&self) -> Option<&'static str> {
        if self.listen.ip().is_loopback() {
            return None;
        }
        Some(
            "others than this machine's programs can connect there, and that takes TLS: listen on 127.0.0.1, or let a sidecar serve this worker",
        )
    }
}

/// Reads them from the policy's table.
pub(super) fn read(table: &SettingsTable<'_>) -> Result<PeersSettings, Error> {
    let networks = table.take(&keys::PEER_NETWORKS)?;
    let networks = networks.parse(|text| text.split(',').map(str::parse).collect::<Result<_, _>>())?;
    let mut settings = PeersSettings { networks, ..PeersSettings::default() };
    if let Some(found) = table.take_if_set(&keys::PEER_LISTEN)? {
        settings.listen = socket_address(&found, "\"127.0.0.1:7500\"")?;
        if let Some(mistake) = settings.mistake() {
            return Err(found.refuse(mistake));
        }
    }
    settings.token = table.find(&keys::PEER_TOKEN_FILE)?.map(|found| token::read(table, &found)).transpose()?;
    Ok(settings)
}

/// The IP address and port; `examples` appear in the error.
pub(super) fn socket_address(found: &ResolvedValue, examples: &str) -> Result<SocketAddr, Error> {
    found.parse(|text| text.parse().map_err(|_| format!("write an IP address and a port, such as {examples}")))
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
        assert_eq!((with("0123456789abcdef").token_mistake(), PeersSettings::default().token_mistake()), (None, None));
        for bad in ["", "0123456789abcde", "0123456789 abcdef"] {
            assert!(with(bad).token_mistake().unwrap().contains("16 to 1024 bytes"), "{bad}");
        }
        assert!(!format!("{:?}", with("0123456789abcdef")).contains("0123"));
    }
}
