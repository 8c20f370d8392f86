//! The settings, checked before anything is contacted.

use std::fmt;
use std::path::PathBuf;

use reqwest::header::HeaderValue;
use rustls::ClientConfig;
use secrecy::{ExposeSecret, SecretString};
use shardwise_discovery::settings::{is_this_machine, without_secrets};
use shardwise_discovery::tls::{SystemTrust, TlsError, TlsFile, TlsFiles};

use crate::error::{Failure, Result};

/// Where Consul's own tools look for the agent.
pub(crate) const DEFAULT_ADDRESS: &str = "http://127.0.0.1:8500";

/// Where and how to talk to Consul. Its `Debug` shows neither the token nor what may be one in the address.
#[derive(Clone)]
pub struct ConsulConfig {
    /// The agent's HTTP address: `http://host:port`, `https://host:port`, `host:port` or `unix:///path`. It should be the agent of this
    /// machine, since the agent watches over the TTL.
    pub address: String,
    /// The ACL token.
    pub token: Option<SecretString>,
    /// The datacenter. It must be the agent's own; with another one registering fails.
    pub datacenter: Option<String>,
    /// The only CA, in PEM, that the agent's certificate may come from. Without it the system's certificates count.
    pub ca_file: Option<PathBuf>,
    /// The chain of this client's certificate, in PEM; together with `key_file`.
    pub cert_file: Option<PathBuf>,
    /// Its private key, in PEM.
    pub key_file: Option<PathBuf>,
    /// HTTPS where the address names no scheme.
    pub tls: bool,
}

impl fmt::Debug for ConsulConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, token, datacenter, ca_file, cert_file, key_file, tls } = self;
        let mut shown = f.debug_struct("ConsulConfig");
        shown.field("address", &without_secrets(address)).field("token", token).field("datacenter", datacenter);
        shown.field("ca_file", ca_file).field("cert_file", cert_file).field("key_file", key_file).field("tls", tls).finish()
    }
}

impl Default for ConsulConfig {
    /// The agent of this machine, without a token.
    fn default() -> Self {
        Self {
            address: DEFAULT_ADDRESS.to_owned(),
            token: None,
            datacenter: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            tls: false,
        }
    }
}

/// An address that has been understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AgentEndpoint {
    /// The prefix of all paths, without a slash at its end.
    pub(crate) base: String,
    pub(crate) tls: bool,
    pub(crate) socket: Option<PathBuf>,
}

impl fmt::Display for AgentEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.socket {
            Some(socket) => write!(f, "unix://{}", socket.display()),
            None => f.write_str(&self.base),
        }
    }
}

impl AgentEndpoint {
    /// Whether requests can be read on the way.
    pub(crate) fn is_open(&self) -> bool {
        let host = reqwest::Url::parse(&self.base).ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default();
        !self.tls && self.socket.is_none() && !is_this_machine(&host)
    }
}

impl ConsulConfig {
    pub(crate) fn endpoint(&self) -> Result<AgentEndpoint> {
        // The address is not repeated where it may hold a password.
        let refused = |why: &str| Failure::BadSetting { key: "address", why: why.to_owned() };
        let given = self.address.trim();
        let shown = |why: &str| {
            refused(&format!("is {:?}, {why}; write it like {DEFAULT_ADDRESS:?} or \"unix:///run/consul.sock\"", without_secrets(given)))
        };
        if let Some(path) = given.strip_prefix("unix://") {
            let socket = PathBuf::from(path);
            if cfg!(not(unix)) {
                return Err(shown("a Unix socket, which this system does not have"));
            }
            if !socket.is_absolute() {
                return Err(shown("whose path is not absolute"));
            }
            return Ok(AgentEndpoint { base: "http://localhost".into(), tls: false, socket: Some(socket) });
        }
        if given.contains('@') {
            return Err(refused("contains an @; leave user and password out, Consul takes a token (discovery.consul.token)"));
        }
        if given.contains(|sign: char| sign.is_whitespace() || sign.is_control()) {
            return Err(shown("which has a blank or a control character in it"));
        }
        let (tls, rest) = match given.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some(_) => return Err(shown("which begins neither with http:// nor with https://")),
            None => (self.tls, given),
        };
        let base = format!("{}://{}", if tls { "https" } else { "http" }, rest.trim_end_matches('/'));
        let parsed = reqwest::Url::parse(&base).map_err(|error| shown(&format!("which is not an address ({error})")))?;
        if parsed.query().is_some() || parsed.fragment().is_some() {
            return Err(shown("which has something behind its path"));
        }
        Ok(AgentEndpoint { base, tls, socket: None })
    }

    /// What the client hands to reqwest, which wants a configuration without TLS too.
    pub(crate) fn tls(&self, endpoint: &AgentEndpoint) -> Result<ClientConfig> {
        let lonely = |missing: TlsFile| {
            let set = if missing == TlsFile::Key { TlsFile::Certificate } else { TlsFile::Key };
            let why = format!("is set without discovery.consul.{}; set both or none", missing.setting());
            Failure::BadSetting { key: set.setting(), why }
        };
        let unusable = |error: TlsError| Failure::BadSetting { key: error.file.setting(), why: error.of_setting() };
        let files = TlsFiles::new(self.ca_file.as_ref(), self.cert_file.as_ref(), self.key_file.as_ref()).map_err(lonely)?;
        let trust = if endpoint.tls { SystemTrust::Required } else { SystemTrust::Unused };
        let mut client = files.client_config(trust).map_err(unusable)?;
        client.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(client)
    }

    /// The token as it is sent. Marked so that no log of a library below shows it.
    pub(crate) fn token_header(&self) -> Result<Option<HeaderValue>> {
        let Some(token) = &self.token else { return Ok(None) };
        let token = token.expose_secret();
        // Visible ASCII, as all tokens of Consul are; the offending token itself is never shown.
        let sent = HeaderValue::from_str(token).ok().filter(|_| !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()));
        let why = "is empty, or has characters that no token has (a space, a line break); check it, or the file it was read from";
        let mut header = sent.ok_or_else(|| Failure::BadSetting { key: "token", why: why.to_owned() })?;
        header.set_sensitive(true);
        Ok(Some(header))
    }

    pub(crate) fn datacenter(&self) -> Result<Option<String>> {
        if self.datacenter.as_deref() == Some("") {
            return Err(Failure::BadSetting { key: "datacenter", why: "is empty; leave it out, or name the agent's datacenter".into() });
        }
        Ok(self.datacenter.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str, tls: bool) -> std::result::Result<String, String> {
        let config = ConsulConfig { address: address.into(), tls, ..ConsulConfig::default() };
        config.endpoint().map(|endpoint| format!("{endpoint} {}", endpoint.tls)).map_err(|failure| failure.to_string())
    }

    #[test]
    fn addresses_are_taken_as_consuls_own_tools_take_them() {
        for (given, tls, taken) in [
            ("http://127.0.0.1:8500", true, "http://127.0.0.1:8500 false"),
            ("https://consul.example/base/", false, "https://consul.example/base true"),
            ("consul:8500", false, "http://consul:8500 false"),
            ("[::1]:8501", true, "https://[::1]:8501 true"),
            ("unix:///run/consul.sock", true, "unix:///run/consul.sock false"),
        ] {
            assert_eq!(at(given, tls).as_deref(), Ok(taken), "{given}");
        }
    }

    #[test]
    fn what_leaves_this_machine_without_tls_can_be_read() {
        for (address, open) in [
            ("http://consul:8500", true),
            ("consul:8500", true),
            ("http://10.0.0.7:8500", true),
            ("http://127.0.0.1:8500", false),
            ("http://[::1]:8500", false),
            ("localhost:8500", false),
            ("https://consul:8501", false),
            ("unix:///run/consul.sock", false),
        ] {
            let config = ConsulConfig { address: address.into(), ..ConsulConfig::default() };
            assert_eq!(config.endpoint().unwrap().is_open(), open, "{address}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused_by_name_and_a_secret_in_it_is_not_repeated() {
        for given in ["", "ftp://x", "unix://relative", "http://", "http://a b", "http://x?y"] {
            let said = at(given, false).unwrap_err();
            assert!(said.starts_with("discovery.consul.address is ") && !said.contains('\n'), "{given}: {said}");
        }
        for given in [
            "http://me:hush@x",
            "me:hush@x",
            "hush@x",
            "unix://me:hush@x",
            "ftp://me:hush@x",
            "ftp://hush@x",
            "http://x:8500?token=hush",
            "x:8500#hush",
            "http://x:8500/?token=hush@x",
            "ftp://x?token=hush",
        ] {
            let said = at(given, false).unwrap_err();
            assert!(!said.contains("hush"), "{said}");
            let config = ConsulConfig { address: given.into(), ..ConsulConfig::default() };
            assert!(!format!("{config:?}").contains("hush"), "{config:?}");
        }
    }

    #[test]
    fn a_token_with_a_line_break_is_refused_and_not_shown() {
        let config = ConsulConfig { token: Some("hush\nhush".into()), ..ConsulConfig::default() };
        let said = config.token_header().unwrap_err().to_string();
        assert!(said.starts_with("discovery.consul.token ") && !said.contains("hush"), "{said}");
        let config = ConsulConfig { token: Some("hush".into()), ..ConsulConfig::default() };
        assert!(!format!("{config:?} {:?}", config.token_header().unwrap()).contains("hush"));
    }
}
