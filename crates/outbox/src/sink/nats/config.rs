//! Which server, which stream, and how events are encoded.

use std::fmt;
use std::path::Path;

use async_nats::ServerAddr;
use secrecy::{ExposeSecret, SecretString};

use super::super::{Mode, Template, TlsFiles};
use crate::{Error, ErrorKind, Result, secret};

const SCHEMES: [&str; 2] = ["nats://", "tls://"];

/// Where and how a [`NatsSink`](super::NatsSink) sends events. `Debug` shows no password.
#[derive(Clone)]
pub struct NatsConfig {
    pub(super) servers: Vec<ServerAddr>,
    pub(super) place: String,
    pub(super) tls_needed: bool,
    pub(super) user: Option<String>,
    password: Option<SecretString>,
    pub(super) tls: TlsFiles,
    pub(super) stream: String,
    pub(super) create: bool,
    pub(super) subject: Template,
    pub(super) mode: Mode,
    pub(super) fence: bool,
    pub(super) source: String,
}

impl NatsConfig {
    /// Servers such as `nats://user@host:4222` or `tls://one:4222,two:4222`; `source` is the `CloudEvents` attribute, such as
    /// `/outbox/orders`. With `tls` nothing is sent without TLS. The default stream is `outbox`, the default subject
    /// `outbox.{aggregatetype}.{aggregateid}`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`]: the address is invalid, or contains a password.
    pub fn from_url(url: &str, source: impl Into<String>) -> Result<Self> {
        let wrong = |what: &str| Error::new(ErrorKind::Settings, format!("the address of the NATS sink {what}"));
        let scheme = SCHEMES.into_iter().find(|scheme| url.starts_with(scheme));
        let scheme = scheme.ok_or_else(|| wrong("must begin with nats:// or tls://, as in nats://user@host:4222"))?;
        let rest = &url[scheme.len()..];
        let (user, hosts) = rest.rsplit_once('@').map_or((None, rest), |(user, hosts)| (Some(user), hosts));
        if user.is_some_and(|user| user.contains(':')) {
            return Err(wrong("has a password in it: put it into a file"));
        }
        let servers: Option<Vec<ServerAddr>> = hosts.split(',').map(|host| format!("{scheme}{host}").parse().ok()).collect();
        let servers = servers.filter(|_| !hosts.is_empty() && !hosts.contains(['/', '?', '#']));
        Ok(Self {
            servers: servers.ok_or_else(|| wrong("cannot be read: write nats://user@host:4222, several hosts separated by commas"))?,
            place: hosts.to_owned(),
            tls_needed: scheme == "tls://",
            user: user.map(str::to_owned),
            password: None,
            tls: TlsFiles::default(),
            stream: "outbox".into(),
            create: false,
            subject: Template::parse("outbox.{aggregatetype}.{aggregateid}")?,
            mode: Mode::Binary,
            fence: false,
            source: source.into(),
        })
    }

    /// The password of the address's user, or a token if the address has no user.
    #[must_use]
    pub fn password(self, password: impl Into<String>) -> Self {
        Self { password: Some(password.into().into()), ..self }
    }

    /// The same from a file, without its last newline.
    pub fn password_file(self, path: &Path) -> Result<Self> {
        let password = secret::in_file(path, "the file with the NATS sink's password")?;
        Ok(self.password(password))
    }

    /// The trusted CA, and this client's own certificate.
    #[must_use]
    pub fn tls(self, tls: TlsFiles) -> Self {
        Self { tls, ..self }
    }

    /// The stream that receives events. It must exist and have the subjects; with `create` a missing stream is created, with one replica
    /// and a duplicate window of ten minutes.
    #[must_use]
    pub fn stream(self, name: impl Into<String>, create: bool) -> Self {
        Self { stream: name.into(), create, ..self }
    }

    /// The subject of an event.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`]: it would not be a valid NATS subject.
    pub fn subject(self, subject: Template) -> Result<Self> {
        let pattern = subject.pattern('.');
        let fits = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'>');
        if !pattern.split('.').all(|word| fits(word) && (word == "*" || !word.contains('*'))) || pattern.starts_with('$') {
            let what = "must be words of printable ASCII separated by dots, without * and >, as in orders.{aggregatetype}.{aggregateid}";
            return Err(Error::new(ErrorKind::Settings, format!("the subject of the NATS sink {what}")));
        }
        Ok(Self { subject, ..self })
    }

    /// How an event is encoded.
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Whether each message names the message of its subject that it must follow, so that the stream refuses late or repeated messages for
    /// as long as it keeps the subject's last message. This costs one request for each aggregate that this publisher has not sent to
    /// before.
    #[must_use]
    pub fn fence(self, fence: bool) -> Self {
        Self { fence, ..self }
    }

    /// Refuses options that exclude each other.
    pub(super) fn validated(self) -> Result<Self> {
        let wrong = |what: &str| Err(Error::new(ErrorKind::Settings, format!("the fence of the NATS sink {what}")));
        if self.fence && self.mode == Mode::Structured {
            return wrong("reads the headers of the subject's last message, and structured events have none: use binary");
        }
        if self.fence && !self.subject.is_per_aggregate() {
            return wrong(
                "needs a subject for each aggregate: one with {aggregatetype} and {aggregateid}, a dot between the two, and neither {type} nor {id}",
            );
        }
        Ok(self)
    }

    pub(super) fn secret(&self) -> Option<String> {
        self.password.as_ref().map(|password| password.expose_secret().to_owned())
    }
}

impl fmt::Debug for NatsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("NatsConfig");
        shown.field("place", &self.place).field("user", &self.user).field("stream", &self.stream).field("subject", &self.subject);
        shown.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_used_is_reported_and_no_password_is_shown() {
        for (url, expected) in [
            ("http://host", "must begin with nats:// or tls://"),
            ("nats://", "cannot be read"),
            ("nats://host:port", "cannot be read"),
            ("nats://host/path", "cannot be read"),
            ("nats://me:secret@host", "has a password in it: put it into a file"),
        ] {
            let error = NatsConfig::from_url(url, "/").unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("secret"), "{error}");
        }
        let config = NatsConfig::from_url("tls://me@one:4222,two:4223", "/").unwrap().password("secret");
        assert_eq!((config.servers.len(), config.tls_needed, config.user.as_deref()), (2, true, Some("me")));
        assert!(!format!("{config:?}").contains("secret"));
    }

    #[test]
    fn subjects_are_those_of_nats() {
        let subject = |text: &str| NatsConfig::from_url("nats://host", "/").unwrap().subject(Template::parse(text).unwrap());
        for good in ["orders", "orders.{aggregatetype}.{aggregateid}", "{type}", "a-{id}-b.c"] {
            assert!(subject(good).is_ok(), "{good}");
        }
        for bad in ["a..b", ".a", "a b", "a.*b", "a.>", "ü", "$JS.{id}"] {
            assert!(subject(bad).is_err(), "{bad}");
        }
        let config = || subject("orders.{type}.{aggregateid}").unwrap();
        assert!(config().fence(true).validated().unwrap_err().to_string().contains("a subject for each aggregate"));
        assert!(config().fence(true).mode(Mode::Structured).validated().is_err());
    }
}
