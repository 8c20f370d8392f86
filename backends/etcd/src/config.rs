//! The backend's settings, checked before any request.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;

use http::Uri;
use secrecy::SecretString;
use shardwise_discovery::settings::without_secrets;
use shardwise_discovery::tls::{TlsFile, TlsFiles};

use crate::error::{EtcdResult, Failure};

/// The place of all keys unless another one is set.
pub const PREFIX_DEFAULT: &str = "/shardwise";
/// The endpoint unless others are set.
pub const ENDPOINT_DEFAULT: &str = "http://127.0.0.1:2379";
/// The most endpoints that may be named.
pub const ENDPOINTS_MAX: usize = 16;

/// Where etcd is, and who asks. Its `Debug` shows neither the password nor what may be one in an endpoint.
#[derive(Clone)]
pub struct EtcdConfig {
    /// The members of one etcd cluster, such as `https://etcd-1:2379`. They are asked in this order; while one is down, the next is.
    /// Without a scheme it is `https` if a TLS file is set, else `http`.
    pub endpoints: Vec<String>,
    /// The user, if etcd has authentication turned on.
    pub username: Option<String>,
    /// The user's password.
    pub password: Option<SecretString>,
    /// The certificates that etcd's own may be signed with, as PEM; else those that this machine trusts.
    pub ca_file: Option<PathBuf>,
    /// This client's certificate with its chain, as PEM, if etcd asks for one.
    pub cert_file: Option<PathBuf>,
    /// The private key of `cert_file`, as PEM.
    pub key_file: Option<PathBuf>,
    /// All keys begin with this.
    pub prefix: String,
}

impl fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoints, username, password, ca_file, cert_file, key_file, prefix } = self;
        let endpoints: Vec<_> = endpoints.iter().map(|endpoint| without_secrets(endpoint)).collect();
        let mut shown = f.debug_struct("EtcdConfig");
        shown.field("endpoints", &endpoints).field("username", username).field("password", password);
        shown.field("ca_file", ca_file).field("cert_file", cert_file).field("key_file", key_file).field("prefix", prefix).finish()
    }
}

impl Default for EtcdConfig {
    /// etcd on this machine, without TLS and user.
    fn default() -> Self {
        Self {
            endpoints: vec![ENDPOINT_DEFAULT.into()],
            username: None,
            password: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            prefix: PREFIX_DEFAULT.into(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority())
    }
}

impl Endpoint {
    /// `host:port`, as URLs have it.
    pub(crate) fn authority(&self) -> String {
        if self.host.contains(':') { format!("[{}]:{}", self.host, self.port) } else { format!("{}:{}", self.host, self.port) }
    }

    fn parse(text: &str, number: usize, tls_files: bool) -> EtcdResult<Self> {
        let refused = |why: &str| Failure::Setting { setting: "endpoints", why: format!("has {:?}: {why}", without_secrets(text)) };
        if text.contains('@') {
            // Not shown: there may be a password in it.
            let why = format!("no. {number} contains a user; set discovery.etcd.username and discovery.etcd.password instead");
            return Err(Failure::Setting { setting: "endpoints", why });
        }
        let with_scheme = match text.trim() {
            text if text.contains("://") => text.to_owned(),
            text => format!("{}://{text}", if tls_files { "https" } else { "http" }),
        };
        let example = "write it as https://host:2379";
        let uri: Uri = with_scheme.parse().map_err(|_| refused(example))?;
        let tls = match uri.scheme_str() {
            Some("http") if tls_files => {
                return Err(refused("it has no TLS, but discovery.etcd.ca_file, cert_file or key_file is set; write it with https://"));
            }
            Some("http") => false,
            Some("https") => true,
            _ => return Err(refused("only http:// and https:// are possible")),
        };
        let host = uri.host().and_then(name_or_address).ok_or_else(|| refused(example))?.to_owned();
        // What stands behind a # is not in what was parsed.
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() || text.contains('#') {
            return Err(refused("it must end with the port; write it as https://host:2379"));
        }
        let port = uri.port_u16().ok_or_else(|| refused("it has no port; etcd's is usually 2379"))?;
        Ok(Self { tls, host, port })
    }
}

impl EtcdConfig {
    pub(crate) fn servers(&self) -> EtcdResult<Vec<Endpoint>> {
        let refused = |why: &str| Err(Failure::Setting { setting: "endpoints", why: why.into() });
        let tls_files = self.ca_file.is_some() || self.cert_file.is_some() || self.key_file.is_some();
        match self.endpoints.len() {
            0 => return refused("is empty; name at least one etcd server, such as \"http://127.0.0.1:2379\""),
            count if count > ENDPOINTS_MAX => return refused("names more than 16 servers"),
            _ => {}
        }
        (1..).zip(&self.endpoints).map(|(number, text)| Endpoint::parse(text, number, tls_files)).collect()
    }

    pub(crate) fn tls_files(&self) -> EtcdResult<TlsFiles> {
        let lonely = |file: TlsFile| missing(file.setting(), if file == TlsFile::Key { "cert_file" } else { "key_file" });
        TlsFiles::new(self.ca_file.as_ref(), self.cert_file.as_ref(), self.key_file.as_ref()).map_err(lonely)
    }

    pub(crate) fn credentials(&self) -> EtcdResult<Option<(String, SecretString)>> {
        match (self.username.as_deref().filter(|name| !name.is_empty()), &self.password) {
            (Some(username), Some(password)) => Ok(Some((username.to_owned(), password.clone()))),
            (None, None) => Ok(None),
            (Some(_), None) => Err(missing("password", "username")),
            (None, Some(_)) => Err(missing("username", "password")),
        }
    }
}

fn missing(setting: &'static str, other: &str) -> Failure {
    Failure::Setting { setting, why: format!("is missing, but discovery.etcd.{other} is set; set both or none") }
}

/// What a URL has for a host, without the brackets around an address; `None` if something else is in brackets.
fn name_or_address(host: &str) -> Option<&str> {
    match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok().then_some(address),
        None => (!host.is_empty() && !host.contains(['[', ']'])).then_some(host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(endpoints: &[&str], ca_file: Option<&str>) -> Result<Vec<String>, String> {
        let endpoints = endpoints.iter().map(|&text| text.to_owned()).collect();
        let config = EtcdConfig { endpoints, ca_file: ca_file.map(Into::into), ..EtcdConfig::default() };
        let servers = config.servers().map_err(|failure| failure.to_string())?;
        Ok(servers.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_scheme_follows_from_the_tls_files() {
        assert_eq!(servers(&["h:1", "https://h:2/", "http://[::1]:3"], None).unwrap(), ["http://h:1", "https://h:2", "http://[::1]:3"]);
        assert_eq!(servers(&["h:1"], Some("ca.pem")).unwrap(), ["https://h:1"]);
    }

    #[test]
    fn what_is_no_server_is_refused_by_name() {
        for (endpoint, why) in [
            ("", "write it as"),
            ("http://", "write it as"),
            ("h", "has no port"),
            ("https://h", "has no port"),
            ("ftp://h:1", "only http"),
            ("http://h:1/v3", "must end with the port"),
            ("http://h:99999", ""),
        ] {
            let said = servers(&[endpoint], None).unwrap_err();
            assert!(said.starts_with("discovery.etcd.endpoints has ") && said.contains(why), "{said}");
        }
        assert!(servers(&[], None).unwrap_err().starts_with("discovery.etcd.endpoints is empty"));
        assert!(servers(&["h:1"; 17], None).unwrap_err().contains("more than 16"));
        assert!(servers(&["http://h:1"], Some("ca.pem")).unwrap_err().contains("write it with https://"));
    }

    #[test]
    fn a_secret_in_an_endpoint_is_not_repeated() {
        let said = servers(&["h:1", "http://root:hush@h:1"], None).unwrap_err();
        assert_eq!(said, "discovery.etcd.endpoints no. 2 contains a user; set discovery.etcd.username and discovery.etcd.password instead");
        for endpoint in ["http://root:hush@h:1", "hush@h:1", "http://h:1?token=hush", "h:1/#hush", "ftp://h:1?hush"] {
            assert!(!servers(&[endpoint], None).unwrap_err().contains("hush"), "{endpoint}");
            let config = EtcdConfig { endpoints: vec!["h:1".into(), endpoint.into()], ..EtcdConfig::default() };
            assert!(!format!("{config:?}").contains("hush"), "{config:?}");
        }
    }

    #[test]
    fn user_and_password_come_together() {
        let config = |username: Option<&str>, password: Option<&str>| EtcdConfig {
            username: username.map(Into::into),
            password: password.map(Into::into),
            ..EtcdConfig::default()
        };
        let said = |config: EtcdConfig| config.credentials().unwrap_err().to_string();
        assert!(config(None, None).credentials().unwrap().is_none());
        assert!(config(Some("a"), Some("b")).credentials().unwrap().is_some());
        assert_eq!(
            said(config(Some("a"), None)),
            "discovery.etcd.password is missing, but discovery.etcd.username is set; set both or none"
        );
        assert_eq!(
            said(config(None, Some("hush"))),
            "discovery.etcd.username is missing, but discovery.etcd.password is set; set both or none"
        );
        assert!(!format!("{:?}", config(Some("a"), Some("hush"))).contains("hush"));
    }
}
