//! How the servers are reached: the settings of connections, checked before any is made.

use std::path::PathBuf;

use async_nats::ServerAddr;
use secrecy::SecretString;
use shardwise_discovery::nats::UserCredentials;
use shardwise_discovery::settings::without_secrets;
use shardwise_discovery::tls::{TlsFile, TlsFiles};

use crate::config::{NatsBackendConfig, URLS_MAX};
use crate::error::{Failure, NatsResult};

/// The settings of connections, checked.
#[derive(Debug, Clone)]
pub(crate) struct DialSettings {
    pub(crate) servers: Vec<ServerAddr>,
    /// Hosts and ports, for messages.
    pub(crate) place: String,
    pub(crate) needs_tls: bool,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<SecretString>,
    pub(crate) token: Option<SecretString>,
    creds_file: Option<PathBuf>,
    pub(crate) tls: TlsFiles,
}

impl DialSettings {
    /// All servers, that one first.
    pub(crate) fn servers_from(&self, first: usize) -> Vec<ServerAddr> {
        let mut servers = self.servers.clone();
        // Settings without a server are refused.
        servers.rotate_left(first % self.servers.len().max(1));
        servers
    }

    /// The user's JWT and key, as they are in the file now.
    pub(crate) fn credentials(&self) -> NatsResult<Option<UserCredentials>> {
        let read = |path: &PathBuf| {
            let wrong = |why| Failure::Setting { setting: "creds_file", why: format!("names {}, which {why}", path.display()) };
            UserCredentials::read(path).map_err(wrong)
        };
        self.creds_file.as_ref().map(read).transpose()
    }
}

impl NatsBackendConfig {
    pub(crate) fn dial(&self) -> NatsResult<DialSettings> {
        let refused = |setting, why: &str| Err(Failure::Setting { setting, why: why.into() });
        match self.urls.len() {
            0 => return refused("urls", "is empty; name at least one server, such as \"nats://127.0.0.1:4222\""),
            count if count > URLS_MAX => return refused("urls", "names more than 16 servers"),
            _ => {}
        }
        if self.token.is_some() && self.username.is_some() {
            return refused("token", "is set, and discovery.nats.username as well; NATS asks for one of them");
        }
        if self.creds_file.is_some() && (self.token.is_some() || self.username.is_some()) {
            return refused("creds_file", "is set, and a user or a token as well; NATS asks for one of them");
        }
        if self.password.is_some() && self.username.is_none() {
            return refused("password", "is set without discovery.nats.username");
        }
        let tls_files = self.ca_file.is_some() || self.cert_file.is_some() || self.key_file.is_some();
        let servers = (1..).zip(&self.urls).map(|(number, url)| server(url, number, tls_files)).collect::<NatsResult<Vec<_>>>()?;
        let place: Vec<_> = servers.iter().map(authority).collect();
        let needs_tls = tls_files || servers.iter().any(ServerAddr::tls_required);
        let tls = TlsFiles::new(self.ca_file.as_ref(), self.cert_file.as_ref(), self.key_file.as_ref()).map_err(|file| {
            let other = if file == TlsFile::Key { "cert_file" } else { "key_file" };
            Failure::Setting { setting: file.setting(), why: format!("is missing; it belongs to discovery.nats.{other}") }
        })?;
        let (username, password, token) = (self.username.clone(), self.password.clone(), self.token.clone());
        let (place, creds_file) = (place.join(","), self.creds_file.clone());
        Ok(DialSettings { servers, place, needs_tls, username, password, token, creds_file, tls })
    }
}

fn authority(server: &ServerAddr) -> String {
    let host = server.host();
    if host.contains(':') { format!("[{host}]:{}", server.port()) } else { format!("{host}:{}", server.port()) }
}

fn server(url: &str, number: usize, tls_files: bool) -> NatsResult<ServerAddr> {
    let refused = |why: &str| Failure::Setting { setting: "urls", why: format!("has {:?}: {why}", without_secrets(url)) };
    if url.contains('@') {
        // Not shown: there may be a password in it.
        let why = format!("no. {number} contains a user; set discovery.nats.username and discovery.nats.password instead");
        return Err(Failure::Setting { setting: "urls", why });
    }
    let example = "write it as nats://host:4222";
    let with_scheme = match url.trim() {
        url if url.contains("://") => url.to_owned(),
        url => format!("{}://{url}", if tls_files { "tls" } else { "nats" }),
    };
    let rest = ["nats://", "tls://"].iter().find_map(|scheme| with_scheme.strip_prefix(scheme));
    let rest = rest.ok_or_else(|| refused("only nats:// and tls:// are possible"))?;
    if rest.trim_end_matches('/').contains(['/', '?', '#', ' ', ',']) {
        return Err(refused(example));
    }
    let server: ServerAddr = with_scheme.parse().map_err(|_| refused(example))?;
    if server.host().is_empty() { Err(refused(example)) } else { Ok(server) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(urls: &[&str]) -> NatsBackendConfig {
        NatsBackendConfig { urls: urls.iter().map(|&url| url.to_owned()).collect(), ..NatsBackendConfig::default() }
    }

    #[test]
    fn servers_are_read_and_what_is_none_is_refused_by_name() {
        let dial = of(&["nats://a:1", "tls://[::1]", "c"]).dial().unwrap();
        assert_eq!((dial.place.as_str(), dial.needs_tls), ("a:1,[::1]:4222,c:4222", true));
        assert!(!of(&["a"]).dial().unwrap().needs_tls);
        let order: Vec<_> = dial.servers_from(5).iter().map(authority).collect();
        assert_eq!(order, ["c:4222", "a:1", "[::1]:4222"]);
        for (url, expected) in [
            ("http://host", "only nats:// and tls://"),
            ("nats://me:hush@host", "contains a user"),
            ("nats://host:port", "write it as"),
            ("nats://host/path", "write it as"),
            ("nats://a,b", "write it as"),
            ("nats://", "write it as"),
            ("", "write it as"),
        ] {
            let said = of(&[url]).dial().unwrap_err().to_string();
            assert!(said.starts_with("discovery.nats.urls ") && said.contains(expected) && !said.contains("hush"), "{said}");
        }
        assert!(of(&[]).dial().unwrap_err().to_string().contains("is empty"));
    }
}
