//! Everything that can fail here, in one enum, converted once into the contract's error.

use std::time::Duration;

use redis::RedisError;
use shardwise_core::{Address, InstanceId, MEMBERS_MAX};
use shardwise_discovery::{Error, ErrorKind, RecordWriteError, at_address, one_line};

pub(crate) type ValkeyResult<T> = Result<T, Failure>;

/// Each message is one line: what is wrong, with which server, which setting it concerns, and what to do.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Failure {
    #[error("discovery.valkey.{setting} {why}")]
    Setting { setting: &'static str, why: String },
    #[error("cannot reach {place}: {why}; check {setting}, and whether the server runs there")]
    Unreachable { place: String, setting: &'static str, why: String },
    #[error("the connection to {place} was lost: {why}")]
    Broken { place: String, why: String },
    #[error("{place} does not speak TLS; write redis:// instead of rediss:// in {setting}, or turn TLS on at the server")]
    NotTls { place: String, setting: &'static str },
    #[error("{place} speaks TLS only; write rediss:// instead of redis:// in {setting}")]
    OnlyTls { place: String, setting: &'static str },
    #[error("the certificate of {place} {why}; {advice}")]
    Certificate { place: String, why: String, advice: String },
    #[error(
        "{place} demands a client certificate that it accepts ({why}); set discovery.valkey.cert_file and discovery.valkey.key_file to one \
         whose CA the server trusts"
    )]
    ClientCertificate { place: String, why: String },
    #[error("no TLS with {place}: {why}; check {setting} and discovery.valkey.ca_file")]
    Handshake { place: String, setting: &'static str, why: String },
    #[error("{place} has no database {database} ({why}); set discovery.valkey.database to one that it has, or raise its setting databases")]
    NoDatabase { place: String, database: u16, why: String },
    #[error("{place} does not answer as Valkey and Redis do ({why}); check {setting}")]
    NotValkey { place: String, setting: &'static str, why: String },
    #[error("{place} does not accept {user} with this password; check discovery.valkey.{of}username and discovery.valkey.{of}password")]
    Credentials { place: String, user: String, of: &'static str },
    #[error("{place} demands a password; set discovery.valkey.{of}password")]
    NoCredentials { place: String, of: &'static str },
    #[error("{place} refuses {user} a right ({why}); run: {grant}")]
    Forbidden { place: String, user: String, why: String, grant: String },
    #[error("{place} refuses {user} the database {database} ({why}); run: {grant}, or remove discovery.valkey.database")]
    DatabaseForbidden { place: String, user: String, database: u16, why: String, grant: String },
    #[error("{place} is a Sentinel; name it in discovery.valkey.sentinels instead of discovery.valkey.url, and set master_name")]
    IsSentinel { place: String },
    #[error("{place} is a node of a Cluster, which this backend does not support; name a server that is in none, or Sentinels")]
    Cluster { place: String },
    #[error("{place} has version {version}; Redis 7.0 or newer, or any Valkey, is needed: upgrade it, or name another one in {setting}")]
    OldServer { place: String, setting: &'static str, version: String },
    #[error(
        "{place} deletes keys when its memory is full (maxmemory-policy {policy}), so members would vanish; set maxmemory-policy to noeviction or \
         to one that begins with volatile, or use another server"
    )]
    Evicts { place: String, policy: String },
    #[error("{place} is a replica, which may lag behind; name the primary in discovery.valkey.url, or set discovery.valkey.sentinels")]
    Replica { place: String },
    #[error("{place} is not the primary, or not yet; the Sentinels will name another one, or it will become the primary")]
    NotPrimary { place: String },
    #[error("no Sentinel of discovery.valkey.sentinels answers: {why}")]
    NoSentinel { why: String },
    #[error("the Sentinels know no primary named {name:?}; check discovery.valkey.master_name")]
    UnknownMaster { name: String },
    #[error("{place} is not ready: {why}")]
    NotReady { place: String, why: String },
    #[error("{place} has no memory left ({why}); raise maxmemory, or free some")]
    Full { place: String, why: String },
    #[error("{place} gave no answer within {} ms; check the network and the server's load", .after.as_millis())]
    TimedOut { place: String, after: Duration },
    #[error("changes of the group were missed; it is read again")]
    Gap,
    #[error("{instance_id:?} has no living record here; register again")]
    Lost { instance_id: InstanceId },
    #[error("instance id {instance_id:?} is in use{}; stop the other one, or wait until its record expires", at_address(.address.as_ref()))]
    InUse { instance_id: InstanceId, address: Option<Address>, stamp: u64 },
    #[error("a later call of this process has changed the record of {instance_id:?}")]
    Superseded { instance_id: InstanceId },
    #[error("the group already has {MEMBERS_MAX} members; stop some")]
    TooManyMembers,
    #[error("cannot read the record of {instance_id:?}: {why}; if its worker is of another version, bring both to one")]
    Unreadable { instance_id: String, why: String },
    #[error("the note {name:?} cannot be read: it was edited by hand; delete its field in {key:?}")]
    DamagedNote { name: String, key: String },
    #[error("a key of this prefix belongs to another program ({why}); set discovery.valkey.prefix to another one")]
    ForeignKey { why: String },
    #[error(transparent)]
    Unwritable(RecordWriteError),
    #[error("{place} refuses the request: {why}")]
    Refused { place: String, why: String },
}

impl Failure {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Credentials { .. }
            | Self::NoCredentials { .. }
            | Self::Forbidden { .. }
            | Self::DatabaseForbidden { .. }
            | Self::ClientCertificate { .. } => ErrorKind::Denied,
            Self::Unreachable { .. }
            | Self::Broken { .. }
            | Self::NotPrimary { .. }
            | Self::NoSentinel { .. }
            | Self::NotReady { .. }
            | Self::Full { .. }
            | Self::Gap
            | Self::Superseded { .. } => ErrorKind::Unavailable,
            Self::TimedOut { .. } => ErrorKind::TimedOut,
            Self::Unwritable(refused) => refused.kind(),
            Self::Lost { .. } => ErrorKind::Lost,
            Self::InUse { address, stamp, .. } => ErrorKind::InUse { address: address.clone(), stamp: *stamp },
            Self::TooManyMembers => ErrorKind::TooLarge,
            // The rest lasts until the settings, the server or the stored data are changed.
            _ => ErrorKind::Misconfigured,
        }
    }

    /// Whether the same call may succeed later without a change of the settings or the servers.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self.kind(), ErrorKind::Unavailable | ErrorKind::TimedOut)
    }

    /// Whether a new connection may do better, perhaps to another server.
    pub(crate) const fn is_of_connection(&self) -> bool {
        matches!(
            self,
            Self::Broken { .. } | Self::TimedOut { .. } | Self::Replica { .. } | Self::NotPrimary { .. } | Self::NotValkey { .. }
        )
    }

    /// The contract's error for a failure of `operation`.
    pub(crate) fn during(&self, operation: &'static str) -> Error {
        Error::new(self.kind(), operation, self.to_string())
    }
}

/// A connection's server and user, for the meaning of errors.
#[derive(Debug, Clone)]
pub(crate) struct ServerContext {
    /// Host and port.
    pub(crate) place: String,
    /// The setting that names the server.
    pub(crate) setting: &'static str,
    /// What the names of its user's settings begin with: nothing, or `sentinel_`.
    pub(crate) of: &'static str,
    pub(crate) username: Option<String>,
    pub(crate) prefix: String,
    /// Another primary may be found.
    pub(crate) has_sentinels: bool,
}

impl ServerContext {
    pub(crate) fn user(&self) -> String {
        self.username.as_ref().map_or_else(|| "the default user".to_owned(), |name| format!("user {name:?}"))
    }

    fn forbidden(&self, why: String) -> Failure {
        let name = self.username.as_deref().unwrap_or("default");
        let grant =
            if self.of.is_empty() { grant(name, &self.prefix) } else { format!("ACL SETUSER {name} +sentinel|get-master-addr-by-name") };
        Failure::Forbidden { place: self.place.clone(), user: self.user(), why, grant }
    }

    /// It is not the primary.
    pub(crate) fn no_primary(&self) -> Failure {
        let place = self.place.clone();
        if self.has_sentinels { Failure::NotPrimary { place } } else { Failure::Replica { place } }
    }

    /// The meaning of an error on a connection.
    pub(crate) fn meaning(&self, error: &RedisError) -> Failure {
        let (place, why) = (self.place.clone(), one_line(error.detail().unwrap_or_default()));
        let Some(code) = error.code() else {
            let why = one_line(&error.to_string());
            return match error.kind() {
                redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType | redis::ErrorKind::RESP3NotSupported => {
                    Failure::NotValkey { place, setting: self.setting, why }
                }
                redis::ErrorKind::AuthenticationFailed => self.credentials(),
                _ => Failure::Broken { place, why },
            };
        };
        match code {
            "WRONGPASS" => self.credentials(),
            "NOAUTH" => Failure::NoCredentials { place, of: self.of },
            "NOPERM" => self.forbidden(why),
            // Redis 7.0 has no code for what a script may not do.
            "ERR" if why.contains("user executing the script") || why.contains("ACL failure in script") => self.forbidden(why),
            "READONLY" => self.no_primary(),
            "WRONGTYPE" => Failure::ForeignKey { why },
            "OOM" => Failure::Full { place, why },
            "LOADING" | "BUSY" | "MASTERDOWN" | "NOREPLICAS" | "MISCONF" | "TRYAGAIN" => {
                Failure::NotReady { place, why: format!("{code} {why}") }
            }
            "MOVED" | "ASK" | "CLUSTERDOWN" | "CROSSSLOT" => Failure::Cluster { place },
            "ERR" if why.contains("WRONGTYPE") => Failure::ForeignKey { why },
            // A script is stopped at the write that finds the server a replica.
            "ERR" if why.contains("READONLY") => self.no_primary(),
            _ => Failure::Refused { place, why: format!("{code} {why}") },
        }
    }

    /// The meaning of an error when the database is chosen.
    pub(crate) fn meaning_for_database(&self, database: u16, error: &RedisError) -> Failure {
        let (place, why) = (self.place.clone(), one_line(error.detail().unwrap_or_default()));
        match error.code() {
            Some("ERR") => Failure::NoDatabase { place, database, why },
            Some("NOPERM") => {
                let grant = format!("ACL SETUSER {} +select", self.username.as_deref().unwrap_or("default"));
                Failure::DatabaseForbidden { place, user: self.user(), database, why, grant }
            }
            _ => self.meaning(error),
        }
    }

    fn credentials(&self) -> Failure {
        Failure::Credentials { place: self.place.clone(), user: self.user(), of: self.of }
    }
}

/// The commands that a member's user needs. `docs.md` has the same.
pub(crate) const COMMANDS: [&str; 20] = [
    "info",
    "evalsha",
    "eval",
    "subscribe",
    "unsubscribe",
    "publish",
    "time",
    "hmget",
    "hset",
    "hget",
    "hgetall",
    "hdel",
    "hlen",
    "zadd",
    "zrem",
    "zrange",
    "zrangebyscore",
    "zscore",
    "get",
    "set",
];

/// The command that gives a user all rights that it needs.
pub(crate) fn grant(name: &str, prefix: &str) -> String {
    let commands: Vec<_> = COMMANDS.iter().map(|command| format!("+{command}")).collect();
    format!("ACL SETUSER {name} ~{prefix}:* &{prefix}:* {}", commands.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rights_are_those_of_the_documentation_and_of_the_scripts() {
        let docs = include_str!("../docs.md");
        let documented = docs.lines().find(|line| line.starts_with("ACL SETUSER worker ")).unwrap_or_default();
        let documented: Vec<_> = documented.split(' ').filter(|word| !word.starts_with('>') && *word != "on").collect();
        assert_eq!(documented.join(" "), grant("worker", "shardwise"));
        let scripts = [
            include_str!("lua/group.lua"),
            include_str!("lua/register.lua"),
            include_str!("lua/renew.lua"),
            include_str!("lua/update.lua"),
            include_str!("lua/step_away.lua"),
            include_str!("lua/deregister.lua"),
            include_str!("lua/list.lua"),
            include_str!("lua/poll.lua"),
            include_str!("lua/note.lua"),
            include_str!("lua/write_note.lua"),
        ];
        for script in scripts {
            for called in script.split("redis.call('").skip(1) {
                let command = called.split('\'').next().unwrap_or_default().to_lowercase();
                assert!(COMMANDS.contains(&command.as_str()), "{command}");
            }
        }
    }

    #[test]
    fn an_error_says_whether_it_may_pass() {
        let place = || "h:1".to_owned();
        assert!(Failure::NotPrimary { place: place() }.during("renew").is_retryable());
        assert!(!Failure::Replica { place: place() }.during("renew").is_retryable());
        let error = Failure::Cluster { place: place() }.during("register");
        assert_eq!(
            error.to_string(),
            "register: h:1 is a node of a Cluster, which this backend does not support; name a server that is in none, or Sentinels"
        );
    }
}
