//! Which server, which stream, and how events are encoded.

use std::path::PathBuf;

use async_nats::ServerAddr;
use secrecy::SecretString;

use super::super::{Mode, Template, TlsFiles};
use crate::{Error, ErrorKind, Result};

const SCHEMES: [&str; 2] = ["nats://", "tls://"];

/// Where and how a [`NatsSink`](super::NatsSink) sends events. `Debug` shows no password.
#[derive(Debug, Clone)]
pub struct NatsConfig {
    pub(super) servers: Vec<ServerAddr>,
    pub(super) place: String,
    pub(super) tls_needed: bool,
    pub(super) user: Option<String>,
    pub(super) password: Option<SecretString>,
    pub(super) source: String,
    /// A credentials file with the user's JWT and `NKey` (`.creds`), instead of a user or a token. It is read for each connection.
    pub creds_file: Option<PathBuf>,
    /// The trusted CA, and this client's own certificate.
    pub tls: TlsFiles,
    /// The stream that receives events, `outbox` by default. It must have their subjects.
    pub stream: String,
    /// Whether a missing stream is created, with one replica and a duplicate window of ten minutes.
    pub create: bool,
    /// The subject of an event, `outbox.{aggregatetype}.{aggregateid}` by default.
    pub subject: Template,
    /// How an event is encoded.
    pub mode: Mode,
    /// Whether each message names the message of its subject that it must follow, so that the stream refuses late or repeated messages for
    /// as long as it keeps the subject's last message. This costs one request for each aggregate that this publisher has not sent to
    /// before.
    pub fence: bool,
}

impl NatsConfig {
    /// Servers such as `nats://user@host:4222` or `tls://one:4222,two:4222`; `source` is the `CloudEvents` attribute, such as
    /// `/outbox/orders`. With `tls` nothing is sent without TLS.
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
            creds_file: None,
            source: source.into(),
            tls: TlsFiles::default(),
            stream: "outbox".into(),
            create: false,
            subject: Template::parse("outbox.{aggregatetype}.{aggregateid}")?,
            mode: Mode::Binary,
            fence: false,
        })
    }

    /// The password of the address's user, or a token if the address has no user.
    #[must_use]
    pub fn password(self, password: impl Into<String>) -> Self {
        Self { password: Some(password.into().into()), ..self }
    }

    /// Refuses a subject that NATS would not take, and options that exclude each other.
    pub(super) fn validated(self) -> Result<Self> {
        let wrong = |what: &str| Err(Error::new(ErrorKind::Settings, format!("the {what}")));
        if self.creds_file.is_some() && (self.user.is_some() || self.password.is_some()) {
            return wrong("credentials file of the NATS sink is instead of a user, a password and a token: leave these out");
        }
        let pattern = self.subject.pattern('.');
        let fits = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'>');
        if !pattern.split('.').all(|word| fits(word) && (word == "*" || !word.contains('*'))) || pattern.starts_with('$') {
            return wrong(
                "subject of the NATS sink must be words of printable ASCII separated by dots, without * and >, as in \
                 orders.{aggregatetype}.{aggregateid}",
            );
        }
        if self.fence && self.mode == Mode::Structured {
            return wrong(
                "fence of the NATS sink reads the headers of the subject's last message, and structured events have none: use binary",
            );
        }
        if self.fence && !self.subject.is_per_aggregate() {
            return wrong(
                "fence of the NATS sink needs a subject for each aggregate: one with {aggregatetype} and {aggregateid}, a dot between the \
                 two, and neither {type} nor {id}",
            );
        }
        Ok(self)
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
        let subject = |text| NatsConfig { subject: Template::parse(text).unwrap(), ..NatsConfig::from_url("nats://host", "/").unwrap() };
        for good in ["orders", "orders.{aggregatetype}.{aggregateid}", "{type}", "a-{id}-b.c"] {
            assert!(subject(good).validated().is_ok(), "{good}");
        }
        for bad in ["a..b", ".a", "a b", "a.*b", "a.>", "ü", "$JS.{id}"] {
            assert!(subject(bad).validated().is_err(), "{bad}");
        }
        let fenced = || NatsConfig { fence: true, ..subject("orders.{type}.{aggregateid}") };
        assert!(fenced().validated().unwrap_err().to_string().contains("a subject for each aggregate"));
        assert!(NatsConfig { mode: Mode::Structured, ..fenced() }.validated().is_err());
    }
}
