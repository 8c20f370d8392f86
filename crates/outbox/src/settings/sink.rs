//! Where an outbox's events go: `sink` and the keys beside it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use shardwise::Result;
use shardwise::discovery::settings::MASK;
use shardwise::settings::{ResolvedValue, SettingKey, SettingsTable};

use super::keys;
use crate::sink::{Mode, SaslMechanism};

const SINKS: &str = "write \"stdout\", file: and a path, such as \"file:events.jsonl\", or an address that begins with nats://, tls:// (NATS), \
                     redis://, rediss://, redis+sentinel://, rediss+sentinel://, amqp://, amqps://, kafka://, kafkas://, http:// or https://";

/// The addresses of Redis, RabbitMQ and Kafka with TLS.
const WITH_TLS: [&str; 4] = ["rediss://", "rediss+sentinel://", "amqps://", "kafkas://"];

const PAIR: &str = "sink_cert_file and sink_key_file belong together; set both or none";

/// Where an outbox's events go.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SinkSettings {
    /// `stdout`: one JSON line an event.
    Stdout,
    /// `file:PATH`: one JSON line an event, appended. A relative path in the settings file has been joined to the file's directory.
    File {
        /// The file to append to.
        path: PathBuf,
    },
    /// A server.
    Remote(Box<RemoteSink>),
}

impl fmt::Display for SinkSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("stdout"),
            Self::File { path } => write!(f, "file:{}", path.display()),
            Self::Remote(remote) => f.write_str(&remote.shown()),
        }
    }
}

/// The protocol of a server that receives events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SinkKind {
    /// NATS `JetStream`.
    Nats,
    /// Redis or Valkey streams.
    Redis,
    /// RabbitMQ.
    RabbitMq,
    /// Kafka.
    Kafka,
    /// A webhook.
    Http,
}

impl SinkKind {
    const BY_SCHEME: [(&str, Self); 12] = [
        ("nats", Self::Nats),
        ("tls", Self::Nats),
        ("redis", Self::Redis),
        ("rediss", Self::Redis),
        ("redis+sentinel", Self::Redis),
        ("rediss+sentinel", Self::Redis),
        ("amqp", Self::RabbitMq),
        ("amqps", Self::RabbitMq),
        ("kafka", Self::Kafka),
        ("kafkas", Self::Kafka),
        ("http", Self::Http),
        ("https", Self::Http),
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Nats => "NATS",
            Self::Redis => "Redis",
            Self::RabbitMq => "RabbitMQ",
            Self::Kafka => "Kafka",
            Self::Http => "HTTP",
        }
    }
}

/// A server that receives events. For values that are not set, the sink has defaults. Relative paths in the settings file have been joined
/// to the file's directory. `Debug` shows only the host of a webhook's address.
#[derive(Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RemoteSink {
    /// The protocol.
    pub kind: SinkKind,
    /// The address, without a password.
    pub url: String,
    /// A file with the password or the token.
    pub password_file: Option<PathBuf>,
    /// The user at the Sentinels of Redis.
    pub sentinel_username: Option<String>,
    /// A file with the password at the Sentinels of Redis.
    pub sentinel_password_file: Option<PathBuf>,
    /// A credentials file of NATS.
    pub creds_file: Option<PathBuf>,
    /// A file with the CA that must have signed the server's certificate.
    pub ca_file: Option<PathBuf>,
    /// This client's certificate chain and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The subject, stream, routing key or topic, with fields in braces.
    pub to: Option<String>,
    /// The key of a message in Kafka, with fields in braces.
    pub message_key: Option<String>,
    /// How the user proves the password to Kafka.
    pub sasl: Option<SaslMechanism>,
    /// The NATS stream.
    pub stream: Option<String>,
    /// Whether a missing NATS stream is created.
    pub create: bool,
    /// Whether NATS refuses a message that does not follow its predecessor.
    pub fence: bool,
    /// The RabbitMQ exchange.
    pub exchange: Option<String>,
    /// The approximate number of entries that a Redis stream keeps.
    pub length: Option<u32>,
    /// How events are encoded.
    pub format: Option<Mode>,
    /// A file with the secret that webhooks are signed with.
    pub secret_file: Option<PathBuf>,
    /// Whether a webhook may have an address that is not public.
    pub private: bool,
    /// The timeout of a webhook request, or of a batch to Kafka.
    pub timeout: Option<Duration>,
}

impl RemoteSink {
    /// The address for messages. Everything after the host of a webhook's address may be a secret, and often is.
    fn shown(&self) -> String {
        let behind = |rest: &str| rest.find(['/', '?', '#', '\\']);
        match self.url.split_once("://").filter(|_| self.kind == SinkKind::Http) {
            Some((scheme, rest)) => behind(rest).map_or_else(|| self.url.clone(), |end| format!("{scheme}://{}/{MASK}", &rest[..end])),
            None => self.url.clone(),
        }
    }
}

impl fmt::Debug for RemoteSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteSink").field("kind", &self.kind).field("url", &self.shown()).finish_non_exhaustive()
    }
}

const ONLY: [(&SettingKey, &[SinkKind]); 19] = {
    use SinkKind::{Http, Kafka, Nats, RabbitMq, Redis};
    [
        (&keys::SINK_PASSWORD_FILE, &[Nats, Redis, RabbitMq, Kafka, Http]),
        (&keys::SINK_SENTINEL_USERNAME, &[Redis]),
        (&keys::SINK_SENTINEL_PASSWORD_FILE, &[Redis]),
        (&keys::SINK_CREDS_FILE, &[Nats]),
        (&keys::SINK_CA_FILE, &[Nats, Redis, RabbitMq, Kafka, Http]),
        (&keys::SINK_CERT_FILE, &[Nats, Redis, RabbitMq, Kafka, Http]),
        (&keys::SINK_KEY_FILE, &[Nats, Redis, RabbitMq, Kafka, Http]),
        (&keys::SINK_TO, &[Nats, Redis, RabbitMq, Kafka]),
        (&keys::SINK_MESSAGE_KEY, &[Kafka]),
        (&keys::SINK_SASL, &[Kafka]),
        (&keys::SINK_FORMAT, &[Nats, Redis, RabbitMq, Kafka, Http]),
        (&keys::SINK_STREAM, &[Nats]),
        (&keys::SINK_CREATE, &[Nats]),
        (&keys::SINK_FENCE, &[Nats]),
        (&keys::SINK_EXCHANGE, &[RabbitMq]),
        (&keys::SINK_LENGTH, &[Redis]),
        (&keys::SINK_SECRET_FILE, &[Http]),
        (&keys::SINK_PRIVATE, &[Http]),
        (&keys::SINK_TIMEOUT, &[Kafka, Http]),
    ]
};

pub(super) fn sink(table: &SettingsTable<'_>) -> Result<SinkSettings> {
    let found = table.require(&keys::SINK)?;
    let text = found.text();
    let kind = text.split_once("://").and_then(|(scheme, _)| SinkKind::BY_SCHEME.iter().find(|(known, _)| *known == scheme));
    let kind = kind.map(|(_, kind)| *kind);
    only_fitting(table, kind)?;
    let sink = match (text, kind) {
        ("stdout", _) => SinkSettings::Stdout,
        (_, Some(kind)) => SinkSettings::Remote(Box::new(remote(table, &found, kind)?)),
        _ => match text.split_once(':') {
            Some(("file", path)) => SinkSettings::File { path: table.resolve(&found, path.strip_prefix("//").unwrap_or(path))? },
            _ if text.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("http")) => return Err(found.refuse_masked(SINKS).into()),
            _ => return Err(found.refuse(SINKS).into()),
        },
    };
    table.note(&found, &sink);
    Ok(sink)
}

/// Refuses keys that have no effect on this sink, because the user would expect one.
fn only_fitting(table: &SettingsTable<'_>, kind: Option<SinkKind>) -> Result<()> {
    for (key, kinds) in ONLY {
        if kind.is_some_and(|kind| kinds.contains(&kind)) {
            continue;
        }
        if let Some(found) = table.find(key)? {
            let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
            return Err(found.refuse(format_args!("only these sinks have this key: {}; remove it", names.join(", "))).into());
        }
    }
    Ok(())
}

/// Refuses files of TLS for an address without TLS, and a login at Sentinels where there are none.
fn only_where_used(table: &SettingsTable<'_>, url: &str) -> Result<()> {
    let has_tls = WITH_TLS.iter().any(|scheme| url.starts_with(scheme));
    let has_sentinels = url.split_once("://").is_some_and(|(scheme, _)| scheme.ends_with("+sentinel"));
    for (keys, is_used, why) in [
        (
            [&keys::SINK_CA_FILE, &keys::SINK_CERT_FILE, &keys::SINK_KEY_FILE].as_slice(),
            has_tls,
            "the address in sink has no TLS; write rediss://, rediss+sentinel://, amqps:// or kafkas://, or remove it",
        ),
        (
            [&keys::SINK_SENTINEL_USERNAME, &keys::SINK_SENTINEL_PASSWORD_FILE].as_slice(),
            has_sentinels,
            "the address in sink names no Sentinels; write redis+sentinel://HOST:26379/NAME, or remove it",
        ),
    ] {
        for key in keys {
            if let Some(found) = table.find(key)?.filter(|_| !is_used) {
                return Err(found.refuse(why).into());
            }
        }
    }
    if let Some(found) = table.find(&keys::SINK_SENTINEL_USERNAME)?
        && table.find(&keys::SINK_SENTINEL_PASSWORD_FILE)?.is_none()
    {
        return Err(found.refuse("sink_sentinel_password_file is missing; set both or none").into());
    }
    Ok(())
}

/// Refuses a way to prove the password where there is no user, and one that sends the password where others can read it.
fn fitting_sasl(table: &SettingsTable<'_>, url: &str) -> Result<()> {
    let Some(found) = table.find(&keys::SINK_SASL)? else { return Ok(()) };
    if !url.contains('@') {
        return Err(found.refuse("the address in sink has no user; write kafkas://USER@HOST:9093, or remove it").into());
    }
    if found.text().eq_ignore_ascii_case(SaslMechanism::Plain.name()) && !url.starts_with("kafkas://") {
        return Err(found
            .refuse("it would send the password in clear; write the address in sink with kafkas://, or use scram-sha-512")
            .into());
    }
    Ok(())
}

/// Checks only what keeps a password out; the rest of the address is checked when the sink is created.
fn remote(table: &SettingsTable<'_>, found: &ResolvedValue, kind: SinkKind) -> Result<RemoteSink> {
    let url = found.text();
    let authority = url.split_once("://").map_or("", |(_, rest)| rest);
    if authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':')) {
        return Err(found.refuse_masked("leave the password out, and put it into a file that sink_password_file names").into());
    }
    if matches!(kind, SinkKind::Redis | SinkKind::RabbitMq | SinkKind::Kafka) {
        only_where_used(table, url)?;
    }
    fitting_sasl(table, url)?;
    let text = |key: &SettingKey| -> Result<_> { Ok(table.take_if_set(key)?.map(|found| found.text().to_owned())) };
    let flag = |key: &SettingKey| table.take_if_set(key)?.map_or(Ok(false), |found| found.flag());
    let identity = match (table.take_path(&keys::SINK_CERT_FILE)?, table.take_path(&keys::SINK_KEY_FILE)?) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ if kind == SinkKind::Http => return Err(found.refuse_masked(PAIR).into()),
        _ => return Err(found.refuse(PAIR).into()),
    };
    let format = text(&keys::SINK_FORMAT)?.map(|format| if format == "binary" { Mode::Binary } else { Mode::Structured });
    let named = |name: String| SaslMechanism::ALL.into_iter().find(|mechanism| mechanism.name().eq_ignore_ascii_case(&name));
    Ok(RemoteSink {
        kind,
        url: url.to_owned(),
        password_file: table.take_path(&keys::SINK_PASSWORD_FILE)?,
        sentinel_username: text(&keys::SINK_SENTINEL_USERNAME)?,
        sentinel_password_file: table.take_path(&keys::SINK_SENTINEL_PASSWORD_FILE)?,
        creds_file: table.take_path(&keys::SINK_CREDS_FILE)?,
        ca_file: table.take_path(&keys::SINK_CA_FILE)?,
        identity,
        to: text(&keys::SINK_TO)?,
        message_key: text(&keys::SINK_MESSAGE_KEY)?,
        sasl: text(&keys::SINK_SASL)?.and_then(named),
        stream: text(&keys::SINK_STREAM)?,
        create: flag(&keys::SINK_CREATE)?,
        fence: flag(&keys::SINK_FENCE)?,
        exchange: text(&keys::SINK_EXCHANGE)?,
        length: table.take_if_set(&keys::SINK_LENGTH)?.map(|found| found.parse(str::parse)).transpose()?,
        format,
        secret_file: table.take_path(&keys::SINK_SECRET_FILE)?,
        private: flag(&keys::SINK_PRIVATE)?,
        timeout: table.take_if_set(&keys::SINK_TIMEOUT)?.map(|found| found.time()).transpose()?,
    })
}
