//! The backend's settings, checked before any request.

use std::fmt;
use std::path::PathBuf;

use secrecy::SecretString;
use shardwise_discovery::settings::without_secrets;
use shardwise_discovery::tls::{TlsFile, TlsFiles};
use shardwise_discovery::valkey::{Login, SentinelTarget};

use crate::address::parse;
use crate::error::{Failure, ValkeyResult};
use crate::sentinel::ServerTarget;

/// The beginning of all keys unless another one is set.
pub const PREFIX_DEFAULT: &str = "shardwise";
/// The most Sentinels that may be named.
pub const SENTINELS_MAX: usize = 16;
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26_379;

/// Which server, and who asks. Its `Debug` shows neither a password nor what may be one in an address.
#[derive(Clone)]
pub struct ValkeyConfig {
    /// The primary server, such as `redis://host:6379` or, with TLS, `rediss://host:6379`; `valkey://` and `valkeys://` mean the same.
    /// Either this or `sentinels`.
    pub url: Option<String>,
    /// The Sentinels that name the primary, such as `redis://host:26379`; `rediss://` if they and the servers speak TLS. All of
    /// them are asked, and the answer of most counts.
    pub sentinels: Vec<String>,
    /// The name under which the Sentinels watch the primary.
    pub master_name: Option<String>,
    /// The user at the server; without it the default user.
    pub username: Option<String>,
    /// Its password.
    pub password: Option<SecretString>,
    /// The user at the Sentinels; without it the default user.
    pub sentinel_username: Option<String>,
    /// Its password.
    pub sentinel_password: Option<SecretString>,
    /// The certificates that the servers' own may be signed with, as PEM; else those that this machine trusts.
    pub ca_file: Option<PathBuf>,
    /// This client's certificate with its chain, as PEM, if the servers ask for one.
    pub cert_file: Option<PathBuf>,
    /// The private key of `cert_file`, as PEM.
    pub key_file: Option<PathBuf>,
    /// The number of the database.
    pub database: u16,
    /// All keys and channels begin with this.
    pub prefix: String,
    /// What the keys begin with that another fleet keeps for its workers, each until it expires; the rest of a key is the worker's id.
    /// Views show them as foreign instances, for placements that count these. They are in the same database.
    pub member_keys: Option<String>,
}

impl ValkeyConfig {
    /// One server, without TLS files, user and password.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: Some(url.into()), ..Self::nowhere() }
    }

    /// A primary that Sentinels name, without TLS files, users and passwords.
    pub fn with_sentinels(sentinels: Vec<String>, master_name: impl Into<String>) -> Self {
        Self { sentinels, master_name: Some(master_name.into()), ..Self::nowhere() }
    }

    fn nowhere() -> Self {
        Self {
            url: None,
            sentinels: Vec::new(),
            master_name: None,
            username: None,
            password: None,
            sentinel_username: None,
            sentinel_password: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            database: 0,
            prefix: PREFIX_DEFAULT.into(),
            member_keys: None,
        }
    }

    /// Where the primary is, or who knows.
    pub(crate) fn target(&self) -> ValkeyResult<ServerTarget> {
        let refused = |setting, why: &str| Err(Failure::Setting { setting, why: why.to_owned() });
        match (self.url.as_deref(), self.sentinels.as_slice(), self.master_name.as_deref()) {
            (Some(_), [_, ..], _) => refused("sentinels", "is set, and discovery.valkey.url too; remove one of them"),
            (Some(_), [], Some(_)) => refused("master_name", "is for Sentinels, but discovery.valkey.url is set; remove one of them"),
            (Some(url), [], None) => {
                let address = parse(url, PORT).map_err(|why| Failure::Setting { setting: "url", why })?;
                self.checked(address.tls, "url")?;
                Ok(ServerTarget::Server(address))
            }
            (None, [], _) => refused("url", "is missing; set it to redis://127.0.0.1:6379, or set sentinels and master_name"),
            (None, [_, ..], None | Some("")) => {
                refused("master_name", "is missing; set it to the primary's name in the Sentinels' configuration")
            }
            (None, sentinels, Some(_)) if sentinels.len() > SENTINELS_MAX => refused("sentinels", "names more than 16 servers"),
            (None, sentinels, Some(master_name)) => {
                let read = |text: &String| parse(text, SENTINEL_PORT);
                let sentinels: Vec<_> =
                    sentinels.iter().map(read).collect::<Result<_, _>>().map_err(|why| Failure::Setting { setting: "sentinels", why })?;
                let tls = sentinels.iter().any(|address| address.tls);
                if tls && sentinels.iter().any(|address| !address.tls) {
                    return refused("sentinels", "has addresses with and without TLS; write all of them with one scheme");
                }
                self.checked(tls, "sentinels")?;
                let login =
                    Login { username: filled(self.sentinel_username.as_ref()), password: self.sentinel_password.clone(), database: 0 };
                Ok(ServerTarget::Sentinels(SentinelTarget { sentinels, tls, master_name: master_name.to_owned(), login }))
            }
        }
    }

    /// Files of TLS without TLS are a mistake.
    fn checked(&self, tls: bool, setting: &'static str) -> ValkeyResult<()> {
        let has_files = self.ca_file.is_some() || self.cert_file.is_some() || self.key_file.is_some();
        if has_files && !tls {
            let why = "has no TLS, but discovery.valkey.ca_file, cert_file or key_file is set; write it with rediss://";
            return Err(Failure::Setting { setting, why: why.to_owned() });
        }
        Ok(())
    }

    pub(crate) fn tls_files(&self) -> ValkeyResult<TlsFiles> {
        let lonely = |file: TlsFile| missing(file.setting(), if file == TlsFile::Key { "cert_file" } else { "key_file" });
        TlsFiles::new(self.ca_file.as_ref(), self.cert_file.as_ref(), self.key_file.as_ref()).map_err(lonely)
    }

    pub(crate) fn login(&self) -> ValkeyResult<Login> {
        for (user, password, setting, of) in [
            (&self.username, &self.password, "password", "username"),
            (&self.sentinel_username, &self.sentinel_password, "sentinel_password", "sentinel_username"),
        ] {
            if filled(user.as_ref()).is_some() && password.is_none() {
                return Err(missing(setting, of));
            }
        }
        Ok(Login { username: filled(self.username.as_ref()), password: self.password.clone(), database: self.database })
    }
}

fn filled(text: Option<&String>) -> Option<String> {
    text.filter(|text| !text.is_empty()).cloned()
}

fn missing(setting: &'static str, other: &str) -> Failure {
    Failure::Setting { setting, why: format!("is missing, but discovery.valkey.{other} is set; set both or none") }
}

impl fmt::Debug for ValkeyConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.url.as_deref().map(without_secrets);
        let sentinels: Vec<_> = self.sentinels.iter().map(|address| without_secrets(address)).collect();
        let mut shown = f.debug_struct("ValkeyConfig");
        shown.field("url", &url).field("sentinels", &sentinels).field("master_name", &self.master_name);
        shown.field("username", &self.username).field("password", &self.password);
        shown.field("sentinel_username", &self.sentinel_username).field("sentinel_password", &self.sentinel_password);
        shown.field("ca_file", &self.ca_file).field("cert_file", &self.cert_file).field("key_file", &self.key_file);
        shown.field("database", &self.database).field("prefix", &self.prefix).field("member_keys", &self.member_keys).finish()
    }
}

#[cfg(test)]
mod tests {
    use shardwise_discovery::Clock;

    use super::*;
    use crate::ValkeyBackend;

    fn said(config: &ValkeyConfig) -> String {
        ValkeyBackend::open(config, Clock::system()).map(drop).unwrap_err().to_string()
    }

    fn sentinels(addresses: &[&str]) -> ValkeyConfig {
        ValkeyConfig::with_sentinels(addresses.iter().map(|&text| text.to_owned()).collect(), "main")
    }

    #[test]
    fn what_is_missing_or_too_much_is_named() {
        let (url, other) = (ValkeyConfig::new("redis://h"), sentinels(&["redis://h"]));
        for (config, expected) in [
            (ValkeyConfig::nowhere(), "open: discovery.valkey.url is missing; set it to redis://127.0.0.1:6379, or set sentinels"),
            (ValkeyConfig { sentinels: other.sentinels.clone(), ..url.clone() }, "open: discovery.valkey.sentinels is set, and"),
            (ValkeyConfig { master_name: Some("main".into()), ..url.clone() }, "open: discovery.valkey.master_name is for Sentinels"),
            (ValkeyConfig { master_name: None, ..other.clone() }, "open: discovery.valkey.master_name is missing"),
            (ValkeyConfig::new("h:1"), "open: discovery.valkey.url has \"h:1\": write it as redis://"),
            (sentinels(&["redis://h"; 17]), "open: discovery.valkey.sentinels names more than 16"),
            (sentinels(&["redis://h", "rediss://h"]), "open: discovery.valkey.sentinels has addresses with and without TLS"),
            (ValkeyConfig { ca_file: Some("ca.pem".into()), ..url.clone() }, "open: discovery.valkey.url has no TLS"),
            (
                ValkeyConfig { cert_file: Some("c.pem".into()), ..ValkeyConfig::new("rediss://h") },
                "open: discovery.valkey.key_file is missing",
            ),
            (
                ValkeyConfig { member_keys: Some("shard".into()), ..url.clone() },
                "open: discovery.valkey.member_keys is \"shard\": the keys of",
            ),
            (ValkeyConfig { username: Some("a".into()), ..url }, "open: discovery.valkey.password is missing"),
            (ValkeyConfig { sentinel_username: Some("a".into()), ..other }, "open: discovery.valkey.sentinel_password is missing"),
        ] {
            assert!(said(&config).starts_with(expected), "{}", said(&config));
        }
    }

    #[test]
    fn nothing_shows_a_password() {
        let config = ValkeyConfig {
            password: Some("hush".into()),
            sentinel_password: Some("hush".into()),
            sentinels: vec!["redis://me:hush@h".into()],
            ..ValkeyConfig::new("redis://me:hush@h:1?hush")
        };
        assert!(!format!("{config:?}").contains("hush"), "{config:?}");
        assert!(!said(&ValkeyConfig { sentinels: Vec::new(), ..config }).contains("hush"));
        let backend =
            ValkeyBackend::open(&ValkeyConfig { password: Some("hush".into()), ..ValkeyConfig::new("redis://h:1") }, Clock::system());
        let shown = format!("{:?}", backend.unwrap());
        assert!(!shown.contains("hush") && shown.contains("h:1"), "{shown}");
    }
}
