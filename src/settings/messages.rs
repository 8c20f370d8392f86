//! Where messages to singletons arrive, and how that address is protected.

use std::net::{Ipv4Addr, SocketAddr};

use secrecy::{ExposeSecret, SecretString};
use shardwise_core::{OwnershipMode, Policy};
use shardwise_settings::{Error, SettingsTable};

use super::peers::{self, Network};
use super::{keys, token};

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
        let token = |settings: &Self| settings.token.as_ref().map(|token| token.expose_secret().to_owned());
        self.listen == other.listen && token(self) == token(other)
    }
}

impl Eq for MessagesSettings {}

impl MessagesSettings {
    /// The error in the listen address, given that messages go only to these networks; `None` if it is valid.
    pub(crate) fn mistake(&self, networks: &[Network]) -> Option<&'static str> {
        if !self.listen.ip().is_loopback() && self.token.is_none() {
            return Some(
                "others than this machine's processes can connect there: write messages_token_file beside it, or listen on 127.0.0.1",
            );
        }
        // A wildcard address does not say how others reach it; with a loopback address no others are expected.
        let is_reached = self.listen.ip().is_unspecified()
            || self.listen.ip().is_loopback()
            || networks.iter().any(|network| network.contains(self.listen.ip()));
        (!is_reached).then_some("it is in none of peer_networks, and messages go nowhere else: add its network there, for all members")
    }

    /// The error in the token; `None` if it is valid.
    pub(crate) fn token_mistake(&self) -> Option<&'static str> {
        token::mistake(self.token.as_ref())
    }
}

/// Reads them from the policy's table.
pub(super) fn read(table: &SettingsTable<'_>, policy: &Policy, networks: &[Network]) -> Result<MessagesSettings, Error> {
    let listen = table.take_if_set(&keys::MESSAGES_LISTEN)?;
    let token_file = table.find(&keys::MESSAGES_TOKEN_FILE)?;
    let mut settings = MessagesSettings::default();
    if policy.ownership != OwnershipMode::Exclusive {
        let unused = listen.as_ref().or(token_file.as_ref());
        return unused.map_or(Ok(settings), |found| {
            Err(found.refuse("it is about singletons, which need claims: write ownership = \"exclusive\" beside it, or remove it"))
        });
    }
    match &listen {
        Some(found) => settings.listen = peers::socket_address(found, "\"10.0.0.7:7400\" or \"[fd00::7]:7400\"")?,
        None => table.note_computed(&keys::MESSAGES_LISTEN, settings.listen),
    }
    settings.token = token_file.map(|found| token::read(table, &found)).transpose()?;
    match (settings.mistake(networks), listen) {
        (Some(mistake), Some(found)) => Err(found.refuse(mistake)),
        _ => Ok(settings),
    }
}
