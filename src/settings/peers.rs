//! Requests and messages between members: where they arrive, how these addresses are protected, and which may be called.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use secrecy::{ExposeSecret, SecretString};
use shardwise_settings::{Error, ResolvedValue, SettingKey, SettingsTable};

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

/// Requests and messages between members ([`crate::ShardingService::on_request`], [`crate::Singleton::handle`]). `Debug` does not show the
/// token.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PeersSettings {
    /// The address on which a worker without a sidecar listens for them, once it has a handler. Port 0 is any free one.
    pub listen: SocketAddr,
    /// The shared secret of members, at least 16 bytes of printable ASCII. Without it only `GET` and messages to singletons are answered.
    pub token: Option<SecretString>,
    /// Where requests and messages may go: addresses of members outside these networks are never connected to.
    pub networks: Vec<Network>,
    /// The members' certificates (feature `tls`).
    pub certificates: PeerCertificates,
}

/// The files of the members' certificates, in PEM, and the name in them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PeerCertificates {
    /// The CA that signs members' certificates, and nothing else's.
    pub ca_file: Option<PathBuf>,
    /// This member's certificate chain.
    pub cert_file: Option<PathBuf>,
    /// The key of that certificate.
    pub key_file: Option<PathBuf>,
    /// The name in every member's certificate; `None` if each has the host of its member's address.
    pub name: Option<String>,
}

impl PeerCertificates {
    /// Whether callers must present a certificate.
    const fn is_mutual(&self) -> bool {
        self.ca_file.is_some() && self.cert_file.is_some()
    }

    /// What is missing or too much; `None` if nothing is.
    fn mistake(&self, has_token: bool) -> Option<&'static str> {
        match (&self.cert_file, &self.key_file) {
            (Some(_), None) => return Some("peer_cert_file needs the key of that certificate: write peer_key_file too"),
            (None, Some(_)) => return Some("peer_key_file needs the certificate of that key: write peer_cert_file too"),
            _ => {}
        }
        if self.name.is_some() && self.ca_file.is_none() {
            return Some("peer_name is the name in certificates, and nothing says who signs them: write peer_ca_file too");
        }
        if self.name.is_some() && !has_token {
            return Some(
                "with peer_name all members have one name, and without a token none proves which it is: write peer_token_file too",
            );
        }
        let is_any = *self != Self::default();
        (is_any && !cfg!(feature = "tls")).then_some("certificates need TLS, and this program is built without it: enable the feature tls")
    }
}

impl Default for PeersSettings {
    /// Only this machine, without a token.
    fn default() -> Self {
        let loopback = [(IpAddr::from(Ipv4Addr::new(127, 0, 0, 0)), 8), (Ipv6Addr::LOCALHOST.into(), 128)];
        let networks = loopback.map(|(address, bits)| Network { address, bits }).into();
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self { listen, token: None, networks, certificates: PeerCertificates::default() }
    }
}

impl PartialEq for PeersSettings {
    fn eq(&self, other: &Self) -> bool {
        self.listen == other.listen
            && self.networks == other.networks
            && self.certificates == other.certificates
            && is_same(self.token.as_ref(), other.token.as_ref())
    }
}

impl Eq for PeersSettings {}

impl PeersSettings {
    /// The error in the listen address; `None` if it is valid.
    pub(crate) fn listen_mistake(&self) -> Option<&'static str> {
        let ip = self.listen.ip();
        if !ip.is_loopback() && self.token.is_none() && !self.certificates.is_mutual() {
            return Some("others than this machine's programs can connect there: write peer_token_file too, or listen on 127.0.0.1");
        }
        // A wildcard address does not say how others reach it; with a loopback address no others are expected.
        let is_reached = ip.is_unspecified() || ip.is_loopback() || self.networks.iter().any(|network| network.contains(ip));
        (!is_reached).then_some("it is in none of peer_networks, and nothing goes elsewhere: add its network there, for all members")
    }

    /// The error in the certificates; `None` if they are valid.
    pub(crate) fn certificates_mistake(&self) -> Option<&'static str> {
        self.certificates.mistake(self.token.is_some())
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

/// The value of a setting, or of the setting that had its purpose before; both at once are refused.
fn either(table: &SettingsTable<'_>, key: &SettingKey, earlier: &SettingKey) -> Result<Option<ResolvedValue>, Error> {
    let (now, before) = (table.find(key)?, table.find(earlier)?);
    match (&now, &before) {
        (Some(_), Some(before)) => {
            Err(before.refuse(format!("{} is set too, and requests and messages have one now: remove this one", key.name)))
        }
        (None, Some(_)) => {
            tracing::warn!("{}.{} is the earlier name of {}: rename it", table.path(), earlier.name, key.name);
            Ok(before)
        }
        _ => Ok(now),
    }
}

/// Reads the settings of requests and messages from the policy's table.
pub(super) fn read(table: &SettingsTable<'_>) -> Result<PeersSettings, Error> {
    let networks = table.take(&keys::PEER_NETWORKS)?;
    let networks = networks.parse(|text| text.split(',').map(str::parse).collect::<Result<_, _>>())?;
    let mut settings = PeersSettings { networks, ..PeersSettings::default() };
    settings.token = either(table, &keys::PEER_TOKEN_FILE, &keys::MESSAGES_TOKEN_FILE)?.map(|found| token(table, &found)).transpose()?;
    let certificates = &mut settings.certificates;
    certificates.ca_file = table.take_path(&keys::PEER_CA_FILE)?;
    certificates.cert_file = table.take_path(&keys::PEER_CERT_FILE)?;
    certificates.key_file = table.take_path(&keys::PEER_KEY_FILE)?;
    certificates.name = table.take_if_set(&keys::PEER_NAME)?.map(|found| found.text().to_owned());
    if let Some(mistake) = settings.certificates_mistake() {
        return Err(table.origin().fail(format!("{}: {mistake}", table.path())));
    }
    if let Some(found) = either(table, &keys::PEER_LISTEN, &keys::MESSAGES_LISTEN)? {
        table.note(&found, found.text());
        settings.listen = socket_address(&found, "\"127.0.0.1:7500\", \"10.0.0.7:7500\" or \"[fd00::7]:7500\"")?;
        settings.listen_mistake().map_or(Ok(()), |mistake| Err(found.refuse(mistake)))?;
    }
    Ok(settings)
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
