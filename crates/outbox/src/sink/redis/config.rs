//! Which server, which streams, and how events are encoded.

use shardwise::discovery::valkey::{Login, SentinelTarget, ValkeyAddress};

use super::super::net::ServerAddress;
use super::super::{Mode, Template, TlsFiles};
use crate::{Error, ErrorKind, Result};

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26_379;
/// The most Sentinels that may be named, as in the backend.
const SENTINELS_MAX: usize = 16;

/// Who says where the primary is.
#[derive(Debug, Clone)]
pub(super) enum RedisTarget {
    Server(ValkeyAddress),
    Sentinels(SentinelTarget),
}

impl RedisTarget {
    /// The servers, for messages.
    pub(super) fn places(&self) -> String {
        match self {
            Self::Server(address) => address.to_string(),
            Self::Sentinels(target) => target.places(),
        }
    }

    pub(super) const fn has_sentinels(&self) -> bool {
        matches!(self, Self::Sentinels(_))
    }
}

/// Where and how a [`RedisSink`](super::RedisSink) sends events. `Debug` shows no password.
#[derive(Debug, Clone)]
pub struct RedisConfig {
    pub(super) target: RedisTarget,
    pub(super) login: Login,
    pub(super) source: String,
    /// The trusted CA, and this client's own certificate.
    pub tls: TlsFiles,
    /// The stream of an event, `outbox.{aggregatetype}.{aggregateid}` by default. The fields in its name decide what the stream refuses:
    ///
    /// | the template has | ids | a repeated event | a publisher that lost its slot |
    /// |---|---|---|---|
    /// | `{aggregatetype}` and `{aggregateid}`, separated by a sign such as a dot, neither `{type}` nor `{id}` | `sequence-0` | is
    /// recognized and not added again | cannot go back |
    /// | else `{shardslot}` | `epoch-N` | is added again | is refused |
    /// | neither | the server's | is added again | is not noticed |
    pub stream: Template,
    /// How an event is encoded: attributes as fields of the entry and the payload as `data`, or the whole event as JSON in the field
    /// `event`.
    pub mode: Mode,
    /// The approximate number of newest entries that a stream keeps; all by default.
    pub length_max: Option<u64>,
}

impl RedisConfig {
    /// A Redis or Valkey server, such as `redis://user@host:6379/0`, or `rediss://` with TLS; or Sentinels and the name of the primary that
    /// they watch, such as `redis+sentinel://user@one:26379,two:26379/main/0`, or `rediss+sentinel://` if they and the servers speak TLS.
    /// `source` is the `CloudEvents` attribute, such as `/outbox/orders`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`]: the address is invalid, or contains a password.
    pub fn from_url(url: &str, source: impl Into<String>) -> Result<Self> {
        let sentinels = [("redis+sentinel://", false), ("rediss+sentinel://", true)];
        let found = sentinels.into_iter().find_map(|(scheme, tls)| url.strip_prefix(scheme).map(|rest| (rest, tls)));
        let (target, username, database) = match found {
            Some((rest, tls)) => by_sentinels(rest, tls)?,
            None => by_address(ServerAddress::parse(url, "Redis", [("redis", PORT), ("rediss", PORT)])?)?,
        };
        Ok(Self {
            target,
            login: Login { username, password: None, database },
            source: source.into(),
            tls: TlsFiles::default(),
            stream: Template::parse("outbox.{aggregatetype}.{aggregateid}")?,
            mode: Mode::Binary,
            length_max: None,
        })
    }

    /// The password of the address's user or of the server.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.login.password = Some(password.into().into());
        self
    }

    /// The password at the Sentinels, and the user there if it is not the default one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`]: the address names no Sentinels.
    pub fn sentinel_login(mut self, username: Option<String>, password: impl Into<String>) -> Result<Self> {
        let RedisTarget::Sentinels(target) = &mut self.target else {
            return Err(wrong("names no Sentinels, so a password for Sentinels has no use"));
        };
        target.login = Login { username, password: Some(password.into().into()), database: 0 };
        Ok(self)
    }
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::Settings, format!("the address of the Redis sink {what}"))
}

/// The number of a database, as it stands in an address.
fn database(text: &str) -> Result<u16> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| wrong(&format!("has {text:?} behind the last slash, which must be the number of a database")))
}

/// Where the primary is, the user, and the database.
type ReadTarget = (RedisTarget, Option<String>, u16);

fn by_address(address: ServerAddress) -> Result<ReadTarget> {
    let database = database(&address.path)?;
    let ServerAddress { tls, user, host, port, .. } = address;
    Ok((RedisTarget::Server(ValkeyAddress { tls, host, port }), user, database))
}

/// Reads `user@host:port,host:port/NAME/DATABASE`.
fn by_sentinels(rest: &str, tls: bool) -> Result<ReadTarget> {
    let example = "cannot be read: write redis+sentinel://user@host:26379,host:26379/NAME, where NAME is the primary's name in the \
                   Sentinels' configuration";
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, hosts) = authority.rsplit_once('@').map_or((None, authority), |(user, hosts)| (Some(user), hosts));
    if user.is_some_and(|user| user.contains(':')) {
        return Err(wrong("has a password in it: put it into a file"));
    }
    let (master_name, number) = path.split_once('/').unwrap_or((path, ""));
    if master_name.is_empty() || master_name.contains(['?', '#', ' ']) {
        return Err(wrong(example));
    }
    let read = |host: &str| {
        let parsed = ServerAddress::parse(&format!("redis://{host}"), "Redis", [("redis", SENTINEL_PORT), ("rediss", SENTINEL_PORT)]);
        parsed.map(|ServerAddress { host, port, .. }| ValkeyAddress { tls, host, port }).map_err(|_| wrong(example))
    };
    let sentinels: Vec<_> = hosts.split(',').map(read).collect::<Result<_>>()?;
    if sentinels.len() > SENTINELS_MAX {
        return Err(wrong(&format!("names more than {SENTINELS_MAX} Sentinels")));
    }
    let target = SentinelTarget { sentinels, tls, master_name: master_name.to_owned(), login: Login::default() };
    Ok((RedisTarget::Sentinels(target), user.map(str::to_owned), database(number)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<RedisConfig> {
        RedisConfig::from_url(url, "/")
    }

    #[test]
    fn sentinels_are_read_with_the_name_and_the_database() {
        let config = read("rediss+sentinel://me@one,[::1]:7000/main/3").unwrap();
        assert_eq!(config.target.places(), "main by one:26379, [::1]:7000");
        assert_eq!((config.login.username.as_deref(), config.login.database), (Some("me"), 3));
        let RedisTarget::Sentinels(target) = &config.target else { unreachable!("it has Sentinels") };
        assert!(target.tls && target.sentinels.iter().all(|address| address.tls));
        let config = config.password("hush").sentinel_login(Some("watcher".into()), "hush").unwrap();
        assert!(!format!("{config:?}").contains("hush"));
        let plain = read("redis://me@h:1/2").unwrap();
        assert_eq!((plain.target.places().as_str(), plain.login.database), ("h:1", 2));
        assert!(plain.sentinel_login(None, "hush").unwrap_err().to_string().contains("names no Sentinels"));
    }

    #[test]
    fn what_is_no_address_is_refused_without_a_secret() {
        let many = format!("redis+sentinel://{}/main", ["h"; 17].join(","));
        for (url, expected) in [
            ("redis+sentinel://h", "write redis+sentinel://user@host:26379,host:26379/NAME"),
            ("redis+sentinel://h/", "/NAME"),
            ("redis+sentinel:///main", "/NAME"),
            ("redis+sentinel://h,/main", "/NAME"),
            ("redis+sentinel://h:x/main", "/NAME"),
            ("redis+sentinel://h/main?db=1", "/NAME"),
            ("redis+sentinel://h/main/x", "must be the number of a database"),
            ("redis+sentinel://me:hush@h/main", "put it into a file"),
            ("redis://h/x", "must be the number of a database"),
            (many.as_str(), "more than 16 Sentinels"),
        ] {
            let error = read(url).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("hush"), "{url}: {error}");
        }
    }
}
