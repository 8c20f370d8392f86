//! What calls and watches share.

use shardwise_discovery::{Clock, RecordId, UsedStores};

use crate::error::Failure;
use crate::keys::Prefix;
use crate::pool::ServerPool;
use crate::revisions::Revisions;

/// How often a record is tried to be written while others come and go in its place, or earlier calls arrive late.
pub(crate) const WRITE_TRIES: usize = 3;

/// The backend of a cluster and a prefix.
pub(crate) struct EtcdInner {
    pub(crate) pool: ServerPool,
    pub(crate) clock: Clock,
    pub(crate) revisions: Revisions,
    pub(crate) prefix: Prefix,
    pub(crate) stores: UsedStores,
}

pub(crate) fn lost(record_id: &RecordId) -> Failure {
    Failure::Lost { instance_id: record_id.instance_id.clone() }
}

pub(crate) fn contended(what: String) -> Failure {
    Failure::Contended { what, tries: WRITE_TRIES }
}
