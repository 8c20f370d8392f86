//! Everything that can fail here, in one enum, converted once into the contract's error.

use std::time::Duration;

use shardwise_core::{Address, InstanceId, MEMBERS_MAX};
use shardwise_discovery::{Error, ErrorKind, RecordWriteError, at_address};

pub(crate) type EtcdResult<T> = Result<T, Failure>;

/// Each message is one line: what is wrong, with which server, which setting it concerns, and what to do.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Failure {
    #[error("discovery.etcd.{setting} {why}")]
    Setting { setting: &'static str, why: String },
    #[error("cannot reach {endpoint}: {why}; check discovery.etcd.endpoints, and whether etcd runs there")]
    Unreachable { endpoint: String, why: String },
    #[error("the connection to {endpoint} (discovery.etcd.endpoints) was lost: {why}")]
    Broken { endpoint: String, why: String },
    #[error("{endpoint} does not speak TLS; write it with http:// in discovery.etcd.endpoints, or turn TLS on in etcd")]
    NotTls { endpoint: String },
    #[error("{endpoint} speaks TLS only; write it with https:// in discovery.etcd.endpoints")]
    OnlyTls { endpoint: String },
    #[error("the certificate of {endpoint} (discovery.etcd.endpoints) {why}; {advice}")]
    Certificate { endpoint: String, why: String, advice: String },
    #[error("{endpoint} does not accept this client's certificate ({why}); check discovery.etcd.cert_file and discovery.etcd.key_file")]
    ClientCertificate { endpoint: String, why: String },
    #[error("no TLS with {endpoint}: {why}; check discovery.etcd.endpoints and discovery.etcd.ca_file")]
    Handshake { endpoint: String, why: String },
    #[error("{endpoint} answers, but not as etcd v3 does ({why}); check discovery.etcd.endpoints")]
    NotEtcd { endpoint: String, why: String },
    #[error("{endpoint} is a learner, which serves no clients; name the voting members in discovery.etcd.endpoints")]
    Learner { endpoint: String },
    #[error("etcd does not accept user {username:?} with this password; check discovery.etcd.username and discovery.etcd.password")]
    Credentials { username: String },
    #[error("etcd demands a user; set discovery.etcd.username and discovery.etcd.password")]
    NoCredentials,
    #[error(
        "etcd has no authentication turned on; remove discovery.etcd.username and discovery.etcd.password, or turn it on with `etcdctl auth enable`"
    )]
    NoAuthentication,
    #[error(
        "{} may not read and write below {prefix:?} in etcd; grant it: \
         `etcdctl role grant-permission ROLE --prefix=true readwrite {prefix}/`, or check discovery.etcd.username and discovery.etcd.prefix",
        user(.username.as_ref())
    )]
    Forbidden { username: Option<String>, prefix: String },
    #[error("{endpoint} (discovery.etcd.endpoints) is not ready: {why}")]
    NotReady { endpoint: String, why: String },
    #[error(
        "{endpoint} (discovery.etcd.endpoints) takes no writes, its space is used up (alarm NOSPACE): compact, defragment, then `etcdctl alarm disarm`"
    )]
    Full { endpoint: String },
    #[error("{endpoint} gave no answer within {} ms; check discovery.etcd.endpoints, the network and its load", .after.as_millis())]
    TimedOut { endpoint: String, after: Duration },
    #[error("the changes that were missed are compacted")]
    Compacted,
    #[error("{endpoint} (discovery.etcd.endpoints) ended the watch: {why}")]
    WatchEnded { endpoint: String, why: String },
    #[error("etcd's data was replaced by older data; members have to register again")]
    Replaced,
    #[error("{instance_id:?} has no living record here; register again")]
    Lost { instance_id: InstanceId },
    #[error("instance id {instance_id:?} is in use{}; stop the other one, or wait until its record expires", at_address(.address.as_ref()))]
    InUse { instance_id: InstanceId, address: Option<Address>, stamp: u64 },
    #[error("{what} was changed by others before each of {tries} attempts to write it; try again")]
    Contended { what: String, tries: usize },
    #[error("the group already has {MEMBERS_MAX} members; stop some")]
    TooManyMembers,
    #[error("there are more than {max} keys below {folder:?} in etcd; more than the claims of one group can be")]
    TooManyClaims { folder: String, max: usize },
    #[error("{0}")]
    OtherStore(String),
    #[error("the store of claims {key:?} in etcd cannot be read: {why}; delete that key, and set epoch_floor above the highest epoch used")]
    DamagedStore { key: String, why: String },
    #[error("the note {key:?} in etcd is not text; put back what stood there, or delete that key")]
    DamagedNote { key: String },
    #[error("cannot read the record of {instance_id:?}: {why}; if its worker is of another version, bring both to one")]
    Unreadable { instance_id: String, why: String },
    #[error(transparent)]
    Unwritable(RecordWriteError),
    #[error("{endpoint} (discovery.etcd.endpoints) refuses the request: {why}")]
    Refused { endpoint: String, why: String },
}

fn user(username: Option<&String>) -> String {
    username.map_or_else(|| "a client without a user".to_owned(), |name| format!("user {name:?}"))
}

impl Failure {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Credentials { .. } | Self::NoCredentials | Self::Forbidden { .. } | Self::ClientCertificate { .. } => ErrorKind::Denied,
            Self::Unreachable { .. }
            | Self::Broken { .. }
            | Self::NotReady { .. }
            | Self::Full { .. }
            | Self::Compacted
            | Self::WatchEnded { .. }
            | Self::Replaced
            | Self::Contended { .. } => ErrorKind::Unavailable,
            Self::TimedOut { .. } => ErrorKind::TimedOut,
            Self::Unwritable(refused) => refused.kind(),
            Self::Lost { .. } => ErrorKind::Lost,
            Self::OtherStore(_) => ErrorKind::OtherStore,
            Self::InUse { address, stamp, .. } => ErrorKind::InUse { address: address.clone(), stamp: *stamp },
            Self::TooManyMembers | Self::TooManyClaims { .. } => ErrorKind::TooLarge,
            // The rest lasts until the settings, etcd or the stored data are changed.
            _ => ErrorKind::Misconfigured,
        }
    }

    /// Whether another endpoint may do better, or the same one over a new connection.
    pub(crate) const fn is_of_endpoint(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::Broken { .. }
                | Self::NotTls { .. }
                | Self::OnlyTls { .. }
                | Self::Certificate { .. }
                | Self::ClientCertificate { .. }
                | Self::Handshake { .. }
                | Self::NotEtcd { .. }
                | Self::Learner { .. }
                | Self::NotReady { .. }
                | Self::TimedOut { .. }
                | Self::WatchEnded { .. }
        )
    }

    /// Whether the same call may succeed later without a change of the settings or the servers.
    pub(crate) fn may_pass(&self) -> bool {
        self.during("").is_retryable()
    }

    /// The contract's error for a failure of `operation`.
    pub(crate) fn during(&self, operation: &'static str) -> Error {
        Error::new(self.kind(), operation, self.to_string())
    }
}
