//! Everything that can fail here, in one enum, converted once into the contract's error.

use std::time::Duration;

use shardwise_core::{Address, EpochError, InstanceId, SLOTS_MAX};
use shardwise_discovery::feeds::{NoReading, READING_LIMIT};
use shardwise_discovery::tls::TlsError;
use shardwise_discovery::{Error, ErrorKind, RecordWriteError, at_address};

pub(crate) type NatsResult<T> = Result<T, Failure>;

/// Each message is one line: what is wrong, which setting it concerns, and what to do. [`Failure::during`] names the servers.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Failure {
    #[error("discovery.nats.{setting} {why}")]
    Setting { setting: &'static str, why: String },
    #[error("discovery.nats.{} {}", .0.file.setting(), .0.of_setting())]
    TlsFile(TlsError),
    #[error("no server can be reached: {why}; check discovery.nats.urls, and whether NATS listens there")]
    Unreachable { why: String },
    #[error("the connection was lost")]
    Broken,
    #[error("TLS fails: {why}; check discovery.nats.urls, discovery.nats.ca_file and the server's certificate")]
    Tls { why: String },
    #[error(
        "the server demands a client certificate that it accepts ({why}); set discovery.nats.cert_file and discovery.nats.key_file to one \
         whose CA the server trusts"
    )]
    ClientCertificate { why: String },
    #[error(
        "the server refuses the credentials; check discovery.nats.username and discovery.nats.password, or discovery.nats.token, or \
         discovery.nats.creds_file, or discovery.nats.cert_file"
    )]
    Credentials,
    #[error("{why}; give the user of discovery.nats the rights of the documentation's section \"Least rights\"")]
    Forbidden { why: String },
    #[error("the server has version {version}; NATS 2.10 or newer is needed: upgrade it, or name others in discovery.nats.urls")]
    OldServer { version: String },
    #[error("the server has no JetStream for this user; turn it on, for the account as well")]
    NoJetStream,
    #[error("the bucket {bucket} {why}")]
    Bucket { bucket: String, why: String },
    #[error("exclusive ownership on NATS {0}, or use ownership = \"eventual\"")]
    NotExclusive(String),
    #[error("JetStream is not ready: {why}")]
    NotReady { why: String },
    #[error("JetStream takes no more ({why}); free some space, or raise the limits of the account or the bucket")]
    Full { why: String },
    #[error("no answer within {} ms; check discovery.nats.urls, the network and the servers' load", .after.as_millis())]
    TimedOut { after: Duration },
    #[error("the server that answered is behind the others; try again")]
    Behind,
    #[error("messages of the bucket were missed; the group is read again")]
    Missed,
    #[error("the stream has another history than before (it was recreated, or lost messages); everything is read again")]
    Replaced,
    #[error("other writers changed the same key before every attempt; try again")]
    Contended,
    #[error("{instance_id:?} has no living record here; register again")]
    Lost { instance_id: InstanceId },
    #[error("instance id {instance_id:?} is in use{}; stop the other one, or wait until its record expires", at_address(.address.as_ref()))]
    InUse { instance_id: InstanceId, address: Option<Address>, stamp: u64 },
    #[error("a later call has changed the record of {instance_id:?}")]
    Superseded { instance_id: InstanceId },
    #[error("{count} resources are too many for one call; {SLOTS_MAX} are allowed")]
    TooManyClaims { count: usize },
    #[error("{slot} is not a slot; slots are the numbers below {SLOTS_MAX}")]
    NoSlot { slot: u32 },
    #[error("the numbers of acquisitions are used up: {0}")]
    NoEpoch(EpochError),
    #[error("{0}")]
    OtherStore(String),
    #[error(
        "the bucket was made at {present}, and the group's epochs were counted in one made at {history}: some may be lost; set epoch_floor above \
         the highest epoch used, and start one worker with it"
    )]
    OtherHistory { present: String, history: String },
    #[error("cannot read what stands at {subject}: {why}; if its worker is of another version, bring both to one, else delete that key")]
    Unreadable { subject: String, why: String },
    #[error(transparent)]
    Unwritable(RecordWriteError),
    #[error("the process is shutting down")]
    ShuttingDown,
    #[error("the server refuses the request: {why}")]
    Refused { why: String },
}

impl Failure {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Credentials | Self::ClientCertificate { .. } | Self::Forbidden { .. } => ErrorKind::Denied,
            Self::Unreachable { .. }
            | Self::Broken
            | Self::NotReady { .. }
            | Self::Full { .. }
            | Self::Behind
            | Self::Missed
            | Self::Replaced
            | Self::Contended
            | Self::Superseded { .. }
            | Self::ShuttingDown => ErrorKind::Unavailable,
            Self::TimedOut { .. } => ErrorKind::TimedOut,
            Self::Lost { .. } => ErrorKind::Lost,
            Self::InUse { address, stamp, .. } => ErrorKind::InUse { address: address.clone(), stamp: *stamp },
            Self::OtherStore(_) => ErrorKind::OtherStore,
            Self::Unwritable(refused) => refused.kind(),
            Self::TooManyClaims { .. } | Self::NoSlot { .. } => ErrorKind::TooLarge,
            // The rest lasts until the settings, the servers or what is stored are changed.
            _ => ErrorKind::Misconfigured,
        }
    }

    /// Whether the same call may succeed later without a change of the settings or the servers.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self.kind(), ErrorKind::Unavailable | ErrorKind::TimedOut)
    }

    /// The contract's error for a failure of `operation`. `place` is the servers, for messages.
    pub(crate) fn during(&self, place: &str, operation: &'static str) -> Error {
        let text = match self {
            // Of a member, or of a call: the servers are not the point.
            Self::Setting { .. }
            | Self::TlsFile(_)
            | Self::Lost { .. }
            | Self::InUse { .. }
            | Self::Superseded { .. }
            | Self::Unwritable(_) => self.to_string(),
            _ => format!("NATS at {place}: {self}"),
        };
        Error::new(self.kind(), operation, text)
    }
}

impl From<NoReading> for Failure {
    fn from(none: NoReading) -> Self {
        match none {
            NoReading::Ended => Self::ShuttingDown,
            NoReading::TimedOut => Self::TimedOut { after: READING_LIMIT },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_servers_where_they_are_the_point() {
        let lost = Failure::Lost { instance_id: InstanceId::new("a b").unwrap() };
        assert_eq!(lost.during("h:4222", "renew").to_string(), "renew: \"a b\" has no living record here; register again");
        let late = Failure::TimedOut { after: Duration::from_secs(5) }.during("h:4222", "register");
        assert_eq!(
            late.to_string(),
            "register: NATS at h:4222: no answer within 5000 ms; check discovery.nats.urls, the network and the servers' load"
        );
        let memory = Failure::Bucket { bucket: "shardwise".into(), why: "is kept in memory".into() };
        assert!(late.is_retryable() && !memory.is_passing() && !memory.during("h", "watch").is_retryable());
    }
}
