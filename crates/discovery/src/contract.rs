//! The trait that a backend implements.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use shardwise_core::{GroupName, Incarnation, InstanceId, Member, MemberState, Moment, View};

use crate::{Claims, Error, ErrorKind, Notes, Result};

/// A member's record as it wants to be seen, and for how long it lives without renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// The group.
    pub group: GroupName,
    /// The member; `joined` is set by the backend.
    pub member: Member,
    /// The TTL asked for.
    pub ttl: Duration,
    /// The member will claim ([`Claims`]); some backends keep such a record in another way, and may grant a shorter TTL.
    pub claims: bool,
}

impl Registration {
    /// Which record this is.
    pub fn record_id(&self) -> RecordId {
        let Member { instance_id, incarnation, .. } = &self.member;
        RecordId { group: self.group.clone(), instance_id: instance_id.clone(), incarnation: *incarnation }
    }

    /// The state of the record while the member is away.
    pub fn away_member(&self) -> Member {
        Member { state: MemberState::Away, loss: None, worker: None, ..self.member.clone() }
    }
}

/// Which record: one life of one member of one group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId {
    /// The group.
    pub group: GroupName,
    /// The member.
    pub instance_id: InstanceId,
    /// Which life of it.
    pub incarnation: Incarnation,
}

/// The result of a registration or renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// When the request that counted began, on the backend's [`crate::Clock`].
    pub started: Moment,
    /// The TTL in force, which may be longer than the one asked for.
    pub ttl: Duration,
}

/// The group at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewSnapshot {
    /// The view.
    pub view: Arc<View>,
    /// When the request that proved it current began.
    pub proven: Moment,
}

/// An event from a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatchEvent {
    /// The whole group, after a change or at the beginning.
    View(ViewSnapshot),
    /// Nothing has changed; the last view was still current at this moment.
    Proven(Moment),
}

/// A stream of events. An error says that the view could not be proven just now; the stream goes on by itself unless the error is
/// permanent.
pub type WatchStream = BoxStream<'static, Result<WatchEvent>>;

/// A backend's capabilities and promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The name in the settings and in logs.
    pub name: &'static str,
    /// How much later than its TTL a silent member may leave the view.
    pub margin: Duration,
    /// It can keep a member's place while that is away: [`Discovery::step_away`].
    pub keeps_places: bool,
    /// How long anything but its record that a killed process left may keep others from registering its id. A worker that joins waits
    /// for at least as long.
    pub leftovers: Duration,
    /// Why it has no [`Claims`], and what to use instead, for the message to an operator who wants exclusive ownership. Empty: it has, or
    /// there is nothing to say.
    pub no_claims: &'static str,
}

impl Capabilities {
    /// A backend with that name and margin.
    pub const fn new(name: &'static str, margin: Duration) -> Self {
        Self { name, margin, keeps_places: false, leftovers: Duration::ZERO, no_claims: "" }
    }

    /// The same, of a backend that implements [`Discovery::step_away`].
    #[must_use]
    pub const fn with_places(self) -> Self {
        Self { keeps_places: true, ..self }
    }

    /// The same, of a backend in which a killed process may leave something for that long.
    #[must_use]
    pub const fn with_leftovers(self, leftovers: Duration) -> Self {
        Self { leftovers, ..self }
    }

    /// The same, of a backend that cannot hold claims for that reason.
    #[must_use]
    pub const fn without_claims(self, why: &'static str) -> Self {
        Self { no_claims: why, ..self }
    }
}

/// Where the workers of a group meet.
///
/// A call may be dropped at any point; whether it was carried out is then unknown, and repeating it must be harmless.
///
/// The clauses, each with cases in the `conformance` module:
///
/// 1. There is one record per member. It is alive by the backend's own lease, session or TTL, never by comparing two machines' wall
///    clocks.
/// 2. A member that stops renewing leaves the view within its TTL plus [`Capabilities::margin`].
/// 3. A renewal counts only when the backend's authority (its quorum, not a local agent or a cache) has answered. The time
///    that counts is when the request *started*: [`Grant::started`].
/// 4. `watch` yields a full view first, then a full view per change, with no change lost between the list and the watch, over
///    reconnects, compaction and index resets. Duplicates and merged changes are allowed; going back to an older view is not:
///    revisions never fall, not even when the store was restored or replaced.
/// 5. Silence proves nothing: at least every `prove_every` the backend proves the view current and says so with
///    [`WatchEvent::Proven`] or a view.
/// 6. A failed read is an error, and an unconfirmed empty read is not a view. No member disappears because of a failure in the backend.
/// 7. A draining member is visible as draining before it is gone, and keeps renewing while it drains.
/// 8. Only the incarnation that made a record touches it. Registering an id whose record is alive under another incarnation
///    fails with [`crate::ErrorKind::InUse`], whose stamp changes with each renewal of the other one.
/// 9. Renewing after expiry is reported as [`crate::ErrorKind::Lost`], never silently healed.
/// 10. Errors say what the caller can do: kind, retryable or not, operation, context. Wrong credentials and wrong settings are
///     permanent. No Debug or Display of anything prints a secret.
/// 11. Instance and group names may be any UTF-8 without NUL up to [`shardwise_core::NAME_BYTES_MAX`]; the backend escapes what it
///     must. Groups do not see each other.
/// 12. A member that has stepped away has one record, in state `away`, which takes the place of its living one in the same step. The
///     record lives at least for the rejoin grace that was asked for, and at most for that plus a second for rounding up and
///     [`Capabilities::margin`], by the backend's own clock. It can be neither renewed nor updated: both are
///     [`crate::ErrorKind::Lost`]. A registration of its id replaces it at once and in one step, so that at no moment the id is in a
///     view twice or not at all. Only a living record steps away; that ends the member's claims.
#[async_trait]
pub trait Discovery: Send + Sync + 'static {
    /// Name, margin and limits. Constant.
    fn capabilities(&self) -> Capabilities;

    /// Writes the member's record. The same incarnation may register again, whether its record is alive or not.
    async fn register(&self, registration: &Registration) -> Result<Grant>;

    /// Keeps the record alive for another `ttl`.
    async fn renew(&self, record_id: &RecordId, ttl: Duration) -> Result<Grant>;

    /// Replaces the record's content (state, weight, metadata …) without renewing it. [`crate::ErrorKind::Lost`] if it is gone.
    async fn update(&self, registration: &Registration) -> Result<()>;

    /// Deletes the record. It is no error if it is gone already, and a record of another incarnation stays.
    async fn deregister(&self, record_id: &RecordId) -> Result<()>;

    /// Puts in the place of the living record what `registration` says, in state `away`, for so long: 2 s to 1 h
    /// ([`shardwise_core::REJOIN_GRACE_MIN`]). [`crate::ErrorKind::Lost`] if there is no living one; no error if it is away already.
    ///
    /// To be implemented where [`Capabilities::keeps_places`] says so.
    async fn step_away(&self, _registration: &Registration, _rejoin_grace: Duration) -> Result<()> {
        let context = format!("the backend {} cannot keep a place for a member that is away", self.capabilities().name);
        Err(Error::new(ErrorKind::Misconfigured, "step_away", context))
    }

    /// The group now.
    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot>;

    /// Follows the group. Dropping the stream ends it.
    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream;

    /// The same backend as a place for claims; `None` if it has none, and then no policy with exclusive ownership can use it.
    fn as_claims(&self) -> Option<&dyn Claims> {
        None
    }

    /// The same backend as a place for notes; `None` if it has none, and then there are no daemons and no timers on it.
    fn as_notes(&self) -> Option<&dyn Notes> {
        None
    }
}
