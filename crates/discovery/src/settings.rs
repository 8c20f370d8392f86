//! What a backend can be told, and how it is made from that: one [`BackendKind`] per backend, which is all that the library's table
//! of backends needs to know. The library reads, checks, explains and masks the settings; the backend receives them ready to use.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};

use crate::{Clock, Discovery, Result};

/// A backend that settings can choose: `discovery.backend = "<name>"`, its keys below `discovery.<name>`.
#[derive(Debug, Clone, Copy)]
pub struct BackendKind {
    /// The name in the settings.
    pub name: &'static str,
    /// What can be set, in the order in which people should read it.
    pub keys: &'static [BackendKey],
    /// Makes the backend. Cheap: it checks the settings and contacts nothing. An error is [`crate::ErrorKind::Misconfigured`] and names
    /// the setting and the cause.
    pub open: fn(&BackendSettings, &Clock) -> Result<Arc<dyn Discovery>>,
}

/// One key below `discovery.<backend>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackendKey {
    /// Its name.
    pub name: &'static str,
    /// What it takes.
    pub shape: BackendShape,
    /// What holds where nobody has written it, as one would write it into an environment variable; `None`: the key is optional.
    pub default: Option<&'static str>,
    /// A customary environment variable, such as `CONSUL_HTTP_ADDR`, that holds where the settings have nothing, and goes before the
    /// default.
    pub variable: Option<&'static str>,
    /// What the key is for, in one line.
    pub why: &'static str,
    /// For a secret: the key that names a file to read it from, `token_file` beside `token`.
    pub file_twin: Option<FileTwin>,
}

/// A key that names the file with a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileTwin {
    /// Its name: the secret's with `_file` behind it.
    pub name: &'static str,
    /// Its customary environment variable, such as `CONSUL_HTTP_TOKEN_FILE`.
    pub variable: Option<&'static str>,
    /// What it is for, in one line.
    pub why: &'static str,
}

impl BackendKey {
    /// An optional key without a customary variable.
    pub const fn new(name: &'static str, shape: BackendShape, why: &'static str) -> Self {
        Self { name, shape, default: None, variable: None, why, file_twin: None }
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

    /// With a key that names a file to read the secret from.
    #[must_use]
    pub const fn or_file(self, twin: FileTwin) -> Self {
        Self { file_twin: Some(twin), ..self }
    }
}

/// What a key takes.
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
    /// A text that nobody may see. With a [`FileTwin`] it can also be read from a file; either way it arrives under the secret's name.
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

/// What stands for a secret wherever somebody might read it.
pub const MASK: &str = "***";

/// An address without its user and password, if it has any: `http://user:password@host` and `user:password@host` become
/// `http://***@host` and `***@host`.
pub fn without_user(text: &str) -> String {
    let Some((before, host)) = text.rsplit_once('@') else { return text.to_owned() };
    match before.split_once("://") {
        Some((scheme, _)) => format!("{scheme}://{MASK}@{host}"),
        None if before.contains(':') => format!("{MASK}@{host}"),
        None => text.to_owned(),
    }
}

/// The values of one backend's keys. What nobody has set and what has no default is not in here.
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
    fn an_address_is_shown_without_its_user() {
        for (text, shown) in [
            ("http://u:hush@h:1/x", "http://***@h:1/x"),
            ("https://u:hu@sh@h", "https://***@h"),
            ("http://u:hu/sh@h", "http://***@h"),
            ("u:hush@h:8500", "***@h:8500"),
            ("http://h:1", "http://h:1"),
            ("me@example.org", "me@example.org"),
        ] {
            assert_eq!(without_user(text), shown);
            let settings =
                BackendSettings::new().with("a", BackendValue::Text(text.into())).with("b", BackendValue::Texts(vec![text.into()]));
            assert!(!format!("{settings:?}").contains("hu"), "{settings:?}");
        }
    }
}
