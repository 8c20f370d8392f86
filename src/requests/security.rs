//! How a member proves itself to others, and what it expects of them.

use secrecy::SecretString;

#[cfg(feature = "requests")]
use super::channel::tls::ChannelTls;
use crate::settings::PeersSettings;

/// The members' secret and certificates. `Debug` shows neither the secret nor a key.
#[derive(Debug, Clone, Default)]
pub struct PeerSecurity {
    /// The secret that members share.
    pub token: Option<SecretString>,
    /// Their certificates.
    #[cfg(feature = "requests")]
    pub tls: ChannelTls,
    /// Whether every caller is refused while there is neither a token nor a certificate. Otherwise such a caller may send `GET` and
    /// messages.
    pub refuses_unproven: bool,
}

impl PeerSecurity {
    /// As the settings say; reads the files of certificates.
    ///
    /// # Errors
    ///
    /// The file that cannot be read or used.
    pub fn read(peers: &PeersSettings) -> Result<Self, String> {
        Ok(Self {
            token: peers.token.clone(),
            #[cfg(feature = "requests")]
            tls: ChannelTls::of(&peers.certificates)?,
            refuses_unproven: false,
        })
    }

    /// The same, where the factory has read the files before. If they cannot be read any more, no member is reached and none is let in.
    #[cfg(feature = "requests")]
    pub(crate) fn of(peers: &PeersSettings) -> Self {
        Self::read(peers).unwrap_or_else(|why| {
            tracing::error!(why, "no requests and messages between members: the files of certificates cannot be read any more");
            Self { token: Some(format!("{:032x}", rand::random::<u128>()).into()), ..Self::default() }
        })
    }
}
