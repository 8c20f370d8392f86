//! Everything that can fail here, in one enum, converted once into the contract's error.

use std::time::Duration;

use shardwise_core::{Address, ClaimStore, EpochError, InstanceId, MEMBERS_MAX, format_duration};
use shardwise_discovery::{Error, ErrorKind, RecordWriteError, at_address};

pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Each message is one line: what is wrong, which setting it concerns, and what to do. What came from outside is quoted or brought onto
/// one line first; a token is never in it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("discovery.consul.{key} {why}")]
    BadSetting { key: &'static str, why: String },
    #[error("cannot reach Consul at {at} ({why}); check discovery.consul.address, and that the agent runs")]
    Unreachable { at: String, why: String },
    #[error("no right to open {at} (discovery.consul.address); run this process as a user or group that may, or name another agent")]
    SocketDenied { at: String },
    #[error("{at} speaks plain HTTP, not HTTPS; begin discovery.consul.address with http://, or turn on HTTPS in the agent")]
    NotTls { at: String },
    #[error("{at} speaks HTTPS only; begin discovery.consul.address with https://")]
    TlsOnly { at: String },
    #[error("the certificate of {at} (discovery.consul.address) is not accepted: {why}")]
    Certificate { at: String, why: String },
    #[error(
        "{at} refuses this client's certificate ({why}); set discovery.consul.cert_file and discovery.consul.key_file to a pair that its CA has signed"
    )]
    ClientCertificate { at: String, why: String },
    #[error("{at} does not answer like Consul ({why}); check discovery.consul.address")]
    NotConsul { at: String, why: String },
    #[error("no answer from {at} within {} ms ({what}); check discovery.consul.address, the agent and the network between", .after.as_millis())]
    TimedOut { at: String, what: &'static str, after: Duration },
    #[error("Consul does not know the token ({said}); check discovery.consul.token")]
    BadToken { said: String },
    #[error("discovery.consul.token is not set, and without one Consul does not allow this: {right} is needed ({said})")]
    NoToken { right: String, said: String },
    #[error("the token in discovery.consul.token may not do this: it lacks {right} ({said})")]
    NoRight { right: String, said: String },
    #[error("discovery.consul.datacenter is {datacenter:?}, which Consul does not know ({said})")]
    NoDatacenter { datacenter: String, said: String },
    #[error(
        "discovery.consul.datacenter is {given:?}, but the agent at {at} is in {actual:?}; leave it out, or name that agent's datacenter"
    )]
    OtherDatacenter { at: String, given: String, actual: String },
    #[error(
        "the agent at {at} (discovery.consul.address) has no servers that could answer ({said}); wait for an election, or join the agent to its servers"
    )]
    NoServers { at: String, said: String },
    #[error("Consul at {at} (discovery.consul.address) cannot answer now ({said})")]
    Busy { at: String, said: String },
    #[error("Consul at {at} (discovery.consul.address) refuses the request ({said})")]
    Refused { at: String, said: String },
    #[error("Consul's answer is larger than {max} bytes; put fewer members into one group")]
    AnswerTooLarge { max: usize },
    #[error("the answer was overtaken by a newer one several times; it is asked for again")]
    Overtaken,
    #[error("instance id {instance_id:?} is in use{}", at_address(.address.as_ref()))]
    InUse { instance_id: InstanceId, address: Option<Address>, stamp: u64 },
    #[error("the record of another worker with the id {instance_id:?} has expired, and the servers still show it")]
    Expired { instance_id: InstanceId },
    #[error("another process is changing the record of {instance_id:?} just now")]
    Contended { instance_id: InstanceId },
    #[error("{instance_id:?} has no living record of this incarnation ({why}); register again")]
    Lost { instance_id: InstanceId, why: &'static str },
    #[error("the agent of discovery.consul.address has {instance_id:?}, but the servers do not show it as passing{why}")]
    NotShown { instance_id: InstanceId, why: String },
    #[error("the group has more than {MEMBERS_MAX} members; stop some")]
    TooMany,
    #[error("this process follows {max} groups already; leave some")]
    TooManyGroups { max: usize },
    #[error("cannot read the record of {instance_id:?}: {why}; if its worker is of another version, bring both to one")]
    BadRecord { instance_id: String, why: String },
    #[error("the key {key:?} in Consul cannot be read ({why}); {remedy}")]
    BadClaim { key: String, why: String, remedy: &'static str },
    #[error("the store of claims {}; ask for it again", other(.asked, .found.as_ref()))]
    OtherStore { asked: ClaimStore, found: Option<ClaimStore> },
    #[error("the store of claims was written while it was asked for claims")]
    StoreChanged,
    #[error("{0}; epoch_floor and Consul's index together are too high")]
    Epoch(EpochError),
    #[error("{instance_id:?} was registered as a member that does not claim; register it with claims")]
    DoesNotClaim { instance_id: InstanceId },
    #[error(
        "ttl is {}: for exclusive ownership Consul takes at most {}, since its lock delay, which is half of it, is at most {}",
        format_duration(*.ttl), format_duration(*.max), format_duration(*.max / 2)
    )]
    TtlTooLong { ttl: Duration, max: Duration },
    #[error(transparent)]
    Unwritable(RecordWriteError),
    #[error("the caller has given up")]
    GivenUp,
    #[error("the process is shutting down")]
    ShuttingDown,
}

fn other(asked: &ClaimStore, found: Option<&ClaimStore>) -> String {
    match found {
        None => format!("{} is not there any more", asked.id),
        Some(found) if found.id != asked.id => format!("is {} now, it was {}", found.id, asked.id),
        Some(found) => format!("has the floor {} now, it was {}", found.floor, asked.floor),
    }
}

impl Failure {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::OtherStore { .. } => ErrorKind::OtherStore,
            Self::SocketDenied { .. }
            | Self::ClientCertificate { .. }
            | Self::BadToken { .. }
            | Self::NoToken { .. }
            | Self::NoRight { .. } => ErrorKind::Denied,
            Self::Unreachable { .. }
            | Self::NoServers { .. }
            | Self::Busy { .. }
            | Self::Overtaken
            | Self::StoreChanged
            | Self::Contended { .. }
            | Self::Expired { .. }
            | Self::NotShown { .. }
            | Self::GivenUp
            | Self::ShuttingDown => ErrorKind::Unavailable,
            Self::TimedOut { .. } => ErrorKind::TimedOut,
            Self::Unwritable(refused) => refused.kind(),
            Self::Lost { .. } => ErrorKind::Lost,
            Self::InUse { address, stamp, .. } => ErrorKind::InUse { address: address.clone(), stamp: *stamp },
            Self::AnswerTooLarge { .. } | Self::TooMany | Self::TooManyGroups { .. } => ErrorKind::TooLarge,
            // The rest lasts until the settings, the agent or the stored data are changed.
            _ => ErrorKind::Misconfigured,
        }
    }

    /// The contract's error for a failure of `operation`.
    pub(crate) fn during(&self, operation: &'static str) -> Error {
        Error::new(self.kind(), operation, self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_an_id_is_named() {
        let instance_id = InstanceId::new("w\n1").unwrap();
        let address = Some(Address { host: "10.0.0.9".into(), port: 80 });
        let error = Failure::InUse { instance_id, address, stamp: 7 }.during("register");
        assert_eq!(error.to_string(), "register: instance id \"w\\n1\" is in use at 10.0.0.9:80");
    }
}
