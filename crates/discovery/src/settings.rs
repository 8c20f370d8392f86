//! Which settings a backend takes, and how it is made from them: one [`BackendKind`] per backend, which is all that the library's table
//! of backends contains. The library reads, checks, explains and masks the settings; the backend receives them ready to use.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::BoxFuture;
use secrecy::{ExposeSecret, SecretString};

use crate::{Clock, Discovery, Result};

/// A backend that settings can choose: `discovery.backend = "<name>"`, its keys below `discovery.<name>`.
#[derive(Debug, Clone, Copy)]
pub struct BackendKind {
    /// The name in the settings.
    pub name: &'static str,
    /// The keys, in the order in which people should read them.
    pub keys: &'static [BackendKey],
    /// A member that claims is granted its TTL divided by this: 1 where it is granted all of it.
    pub claims_share: u32,
    /// Makes the backend. Cheap: it checks the settings and contacts nothing. An error is [`crate::ErrorKind::Misconfigured`] and names
    /// the setting and the cause.
    pub open: fn(&BackendSettings, &Clock) -> Result<Arc<dyn Discovery>>,
    /// Makes what an operator must make before members can meet, such as tables: see [`InitBackend`]. `None`: there is no such thing.
    pub init: Option<InitBackend>,
}

impl BackendKind {
    /// The host of the backend's server by these settings, the first one if there are several; `None` if it has no server, or one that is
    /// reached by a socket of this machine.
    pub fn server_host<'a>(&self, settings: &'a BackendSettings) -> Option<&'a str> {
        let of_servers = self.keys.iter().filter(|key| key.is_server).map(|key| key.name);
        let mut addresses = of_servers.filter_map(|key| settings.text(key).or_else(|| settings.texts(key).first().map(String::as_str)));
        addresses.next().and_then(host_of)
    }
}

/// The host in an address such as `host:port` or `scheme://user@host:port/path`.
fn host_of(address: &str) -> Option<&str> {
    let rest = address.trim().split_once("://").map_or(address.trim(), |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next()?;
    let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
    // PostgreSQL takes a list.
    let first = place.split(',').next()?;
    let host = match first.strip_prefix('[') {
        Some(in_brackets) => in_brackets.split(']').next()?,
        // Without brackets an IPv6 address has no port.
        None if first.matches(':').count() > 1 => first,
        None => first.split(':').next()?,
    };
    (!host.is_empty()).then_some(host)
}

/// Makes what is missing, such as tables, and does nothing where nothing is. It may need rights that members do not need. The answer says
/// what was done, in words. An error of the settings is [`crate::ErrorKind::Misconfigured`].
pub type InitBackend = fn(&BackendSettings) -> BoxFuture<'static, Result<String>>;

/// One key below `discovery.<backend>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackendKey {
    /// Its name.
    pub name: &'static str,
    /// The kind of value.
    pub shape: BackendShape,
    /// The value without a setting, as one would write it into an environment variable; `None`: the key is optional.
    pub default: Option<&'static str>,
    /// A customary environment variable, such as `CONSUL_HTTP_ADDR`, that holds where the settings have nothing, and goes before the
    /// default.
    pub variable: Option<&'static str>,
    /// The key's purpose, in one line.
    pub why: &'static str,
    /// For a secret: the key that names a file to read it from, `token_file` beside `token`.
    pub file_twin: Option<FileTwin>,
    /// Its value has the addresses of servers ([`BackendKind::server_host`]).
    pub is_server: bool,
}

/// A key that names the file with a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileTwin {
    /// Its name: the secret's with `_file` behind it.
    pub name: &'static str,
    /// Its customary environment variable, such as `CONSUL_HTTP_TOKEN_FILE`.
    pub variable: Option<&'static str>,
    /// The purpose, in one line.
    pub why: &'static str,
}

impl BackendKey {
    /// An optional key without a customary variable.
    pub const fn new(name: &'static str, shape: BackendShape, why: &'static str) -> Self {
        Self { name, shape, default: None, variable: None, why, file_twin: None, is_server: false }
    }

    /// With a default.
    #[must_use]
    pub const fn or(self, default: &'static str) -> Self {
        Self { default: Some(default), ..self }
    }

    /// With a customary variable.
    #[must_use]
    pub const fn or_variable(self, variable: &'static str) -> Self {
        Self { variable: Some(variable), ..self }
    }

    /// Its value is the address of a server, or a list of them. `instance.address = "auto"` is the address of a member towards it.
    #[must_use]
    pub const fn of_server(self) -> Self {
        Self { is_server: true, ..self }
    }

    /// With a key that names a file to read the secret from.
    #[must_use]
    pub const fn or_file(self, twin: FileTwin) -> Self {
        Self { file_twin: Some(twin), ..self }
    }
}

/// The kind of a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackendShape {
    /// `true` or `false`.
    Flag,
    /// A text.
    Text,
    /// A list of texts; separated by commas in an environment variable.
    Texts,
    /// A path. A relative one in the settings file, and the default, is taken from the file's directory.
    Path,
    /// A secret text, masked wherever it is shown. With a [`FileTwin`] it can also be read from a file; either way it arrives under the
    /// secret's name.
    Secret,
}

/// A value that fits its key. Neither `Display` nor `Debug` shows a secret, or the user and password of a URL.
#[derive(Clone)]
#[non_exhaustive]
pub enum BackendValue {
    /// For [`BackendShape::Flag`].
    Flag(bool),
    /// For [`BackendShape::Text`].
    Text(String),
    /// For [`BackendShape::Texts`].
    Texts(Vec<String>),
    /// For [`BackendShape::Path`].
    Path(PathBuf),
    /// For [`BackendShape::Secret`].
    Secret(SecretString),
}

impl PartialEq for BackendValue {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Flag(a), Self::Flag(b)) => a == b,
            (Self::Text(a), Self::Text(b)) => a == b,
            (Self::Texts(a), Self::Texts(b)) => a == b,
            (Self::Path(a), Self::Path(b)) => a == b,
            (Self::Secret(a), Self::Secret(b)) => a.expose_secret() == b.expose_secret(),
            _ => false,
        }
    }
}

impl Eq for BackendValue {}

impl fmt::Display for BackendValue {
    /// As people write it; a secret is `***`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Text(text) => f.write_str(&without_user(text)),
            Self::Texts(texts) => f.write_str(&texts.iter().map(|text| without_user(text)).collect::<Vec<_>>().join(",")),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Secret(_) => f.write_str(MASK),
        }
    }
}

impl fmt::Debug for BackendValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Replaces a secret in all output.
pub const MASK: &str = "***";

/// A text without what may be secret if it is an address: `http://user:password@host`, `user:password@host` and `http://host?token` become
/// `http://***@host`, `***@host` and `http://host?***`.
pub fn without_user(text: &str) -> String {
    if text.contains("://") {
        return without_secrets(text);
    }
    match text.rsplit_once('@') {
        Some((user, host)) if user.contains(':') => format!("{MASK}@{host}"),
        _ => text.to_owned(),
    }
}

/// An address, with or without a scheme, without whatever stands before an `@` or behind a `?` or `#`.
pub fn without_secrets(address: &str) -> String {
    let scheme = address.find("://").filter(|end| !address[..*end].contains(['@', '?', '#']));
    let (scheme, rest) = address.split_at(scheme.map_or(0, |end| end + "://".len()));
    let (user, host) = rest.rsplit_once('@').map_or((String::new(), rest), |(_, host)| (format!("{MASK}@"), host));
    let (host, query) = host.find(['?', '#']).map_or((host, ""), |end| (&host[..=end], MASK));
    format!("{scheme}{user}{host}{query}")
}

/// Whether what is sent to that host stays on this machine, as far as the host
/// itself says so: `localhost` or a loopback address, with or without brackets.
pub fn is_this_machine(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost") || address.parse().is_ok_and(|address: IpAddr| address.to_canonical().is_loopback())
}

/// The values of one backend's keys. A key that is not set and has no default is missing here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackendSettings {
    values: BTreeMap<String, BackendValue>,
}

impl BackendSettings {
    /// No values at all.
    pub fn new() -> Self {
        Self::default()
    }

    /// With this value for the key.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: BackendValue) -> Self {
        self.values.insert(key.into(), value);
        self
    }

    /// The flag of that name; `false` where there is none.
    pub fn flag(&self, key: &str) -> bool {
        matches!(self.values.get(key), Some(BackendValue::Flag(true)))
    }

    /// The text of that name.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.values.get(key) {
            Some(BackendValue::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The list of that name; empty where there is none.
    pub fn texts(&self, key: &str) -> &[String] {
        match self.values.get(key) {
            Some(BackendValue::Texts(texts)) => texts,
            _ => &[],
        }
    }

    /// The path of that name.
    pub fn path(&self, key: &str) -> Option<&Path> {
        match self.values.get(key) {
            Some(BackendValue::Path(path)) => Some(path),
            _ => None,
        }
    }

    /// The secret of that name.
    pub fn secret(&self, key: &str) -> Option<&SecretString> {
        match self.values.get(key) {
            Some(BackendValue::Secret(secret)) => Some(secret),
            _ => None,
        }
    }

    /// All values by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &BackendValue)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_compared_but_never_shown() {
        let with = |secret: &str| BackendSettings::new().with("token", BackendValue::Secret(secret.into()));
        assert_eq!(with("hush"), with("hush"));
        assert_ne!(with("hush"), with("hash"));
        assert!(!format!("{:?}", with("hush")).contains("hush"));
        assert_eq!(BackendValue::Secret("hush".into()).to_string(), "***");
    }

    #[test]
    fn the_host_of_a_server_is_found_in_its_address() {
        const KEYS: &[BackendKey] = &[
            BackendKey::new("name", BackendShape::Text, "no address"),
            BackendKey::new("url", BackendShape::Text, "one").of_server(),
            BackendKey::new("urls", BackendShape::Texts, "several").of_server(),
        ];
        for (address, host) in [
            ("http://10.0.0.7:8500", "10.0.0.7"),
            ("etcd-1:2379", "etcd-1"),
            ("https://[fd00::7]:2379/", "fd00::7"),
            ("fd00::7", "fd00::7"),
            ("postgres://me:hush@db.example/shop?sslmode=verify-full", "db.example"),
            ("postgres://me@db-1:5432,db-2:5432/shop", "db-1"),
            (" nats://h ", "h"),
        ] {
            assert_eq!(host_of(address), Some(host), "{address}");
        }
        for socket in ["unix:///run/consul.sock", "postgres:///shop?host=/run/postgresql", ""] {
            assert_eq!(host_of(socket), None, "{socket}");
        }
        let kind = BackendKind { name: "x", keys: KEYS, claims_share: 1, open: |_, _| unreachable!("nobody opens it"), init: None };
        let settings = BackendSettings::new().with("name", BackendValue::Text("n:1".into()));
        assert_eq!(kind.server_host(&settings), None);
        let settings = settings.with("urls", BackendValue::Texts(vec!["a:1".into(), "b:2".into()]));
        assert_eq!(kind.server_host(&settings), Some("a"));
    }

    #[test]
    fn an_address_is_shown_without_its_user_and_its_query() {
        for (text, shown) in [
            ("http://u:hush@h:1/x", "http://***@h:1/x"),
            ("https://u:hu@sh@h", "https://***@h"),
            ("http://u:hu/sh@h", "http://***@h"),
            ("u:hush@h:8500", "***@h:8500"),
            ("http://h:1", "http://h:1"),
            ("me@example.org", "me@example.org"),
            ("http://h:1?token=hush", "http://h:1?***"),
            ("http://hush@h:1#hush", "http://***@h:1#***"),
            ("u:hush@h:1?to=http://h:2", "***@h:1?***"),
        ] {
            assert_eq!(without_user(text), shown);
            assert!(!without_secrets(text).contains("hu"), "{text}");
            let settings =
                BackendSettings::new().with("a", BackendValue::Text(text.into())).with("b", BackendValue::Texts(vec![text.into()]));
            assert!(!format!("{settings:?}").contains("hu"), "{settings:?}");
        }
        assert_eq!(without_secrets("hush@h:1?hush"), "***@h:1?***", "what can only be an address");
        assert_eq!(without_secrets("h:1"), "h:1");
    }
}
