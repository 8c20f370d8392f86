//! One member's handlers, and the address of requests to them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use shardwise_core::{Member, MemberState, ServiceState, WorkerHealth};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::security::PeerSecurity;
use super::{ADDRESS_KEY, Addressee, Answer, Method, Request, Undelivered, is_path};
use crate::error::{Error, ErrorKind, Result, locked};
use crate::membership::{Membership, OwnershipContext};

const HANDLERS_MAX: usize = 256;
const AT_ONCE_MAX: usize = 64;
/// Messages to singletons wait for their reply, for an hour at most, so they have a limit of their own.
const HOLDERS_AT_ONCE_MAX: usize = 512;
/// The most paths in a refusal.
const NAMED: usize = 20;
/// After this time a member with as many requests as it takes is asked again.
const BUSY_FOR: Duration = Duration::from_secs(1);

/// What a handler comes to: an answer, or that it is not the one to ask.
pub(crate) type Handled = std::result::Result<Answer, Undelivered>;
pub(crate) type Handler = Arc<dyn Fn(Request) -> BoxFuture<'static, Handled> + Send + Sync>;

/// The handlers of one member. It keeps no service alive.
pub(crate) struct RequestHandlers {
    handlers: Mutex<BTreeMap<(Addressee, String), Handler>>,
    /// For requests without a handler: the worker next to a sidecar.
    fallback: OnceLock<Handler>,
    at_once: Arc<Semaphore>,
    holders_at_once: Arc<Semaphore>,
    security: OnceLock<PeerSecurity>,
    #[cfg(feature = "requests")]
    pub(super) listener: crate::membership::MemberListener,
}

/// A request's place among those that are handled at a time.
pub(crate) struct Turn(#[expect(dead_code, reason = "dropped at the end of the turn")] OwnedSemaphorePermit);

impl RequestHandlers {
    pub(crate) fn of(context: &OwnershipContext) -> Arc<Self> {
        context.extensions.get_or_make(|| Self {
            handlers: Mutex::default(),
            fallback: OnceLock::new(),
            at_once: Arc::new(Semaphore::new(AT_ONCE_MAX)),
            holders_at_once: Arc::new(Semaphore::new(HOLDERS_AT_ONCE_MAX)),
            security: OnceLock::new(),
            #[cfg(feature = "requests")]
            listener: crate::membership::MemberListener::of(context),
        })
    }

    /// How this member proves itself, and what it expects of others.
    pub(crate) fn security(&self, context: &OwnershipContext) -> &PeerSecurity {
        self.security.get_or_init(|| PeerSecurity::of(&context.peers))
    }

    /// Instead of what the settings say, unless something relies on that already.
    pub(super) fn secure(&self, security: PeerSecurity) -> Result<()> {
        const LATE: &str = "this service has connections of members already: secure them before it listens and before its first handle";
        self.security.set(security).map_err(|_| Error::new(ErrorKind::Conflict, LATE.to_owned()))
    }

    pub(super) fn register(&self, to: Addressee, path: &str, handler: Handler) -> Result<()> {
        let refused = |why: String| Err(Error::new(ErrorKind::Settings, format!("a handler at {path:?}: {why}")));
        if !is_path(path) {
            return refused("write parts of letters, digits and -._~ with single slashes between them, such as \"cache/size\"".into());
        }
        if is_reserved(path) {
            return refused("what begins with \"shardwise\" is answered by shardwise itself".into());
        }
        let (mut handlers, key) = (locked(&self.handlers), (to, path.to_owned()));
        if handlers.len() >= HANDLERS_MAX && !handlers.contains_key(&key) {
            drop(handlers);
            return refused(format!("there are {HANDLERS_MAX} already, and that is the most"));
        }
        handlers.insert(key, handler);
        Ok(())
    }

    /// A handler of shardwise itself, at a reserved path.
    pub(crate) fn register_own(&self, to: Addressee, path: &'static str, handler: Handler) {
        locked(&self.handlers).insert((to, path.to_owned()), handler);
    }

    /// Handles what no handler of this process does; the first call counts.
    pub(super) fn fall_back(&self, handler: Handler) {
        let _ = self.fallback.set(handler);
    }

    fn handler(&self, to: Addressee, path: &str) -> Option<Handler> {
        locked(&self.handlers).get(&(to, path.to_owned())).cloned()
    }

    fn unknown(&self, to: Addressee, path: &str) -> Answer {
        let handlers = locked(&self.handlers);
        let of_addressee = handlers.keys().filter(|(of, path)| *of == to && !is_reserved(path)).map(|(_, path)| path.as_str());
        let known: Vec<_> = std::iter::once(STATUS).chain(of_addressee).take(NAMED).collect();
        let other = handlers.keys().find(|(of, known)| *of != to && known == path).map(|(of, _)| *of);
        let hint = other.map(|other| format!("; its handler there is for requests to {other}")).unwrap_or_default();
        let path: String = path.chars().take(64).collect();
        let known = known.join(", ");
        let detail = format!("this worker answers no requests to {to} at {path:?}{hint}; it answers at: {known}");
        Answer::problem(404, "not-found", "There is no such thing", &detail)
    }

    /// A place for one more request to that addressee, taken before its body is read.
    pub(crate) fn turn(&self, to: Addressee) -> std::result::Result<Turn, Undelivered> {
        let places = if to == Addressee::Holder { &self.holders_at_once } else { &self.at_once };
        Arc::clone(places).try_acquire_owned().map(Turn).map_err(|_| Undelivered::Busy(Some(BUSY_FOR)))
    }

    /// The answer of the handler there, until that time. An error says that no handler has seen the request.
    pub(crate) async fn answer(context: &OwnershipContext, request: Request, until: Instant, _turn: Turn) -> Handled {
        let (request_handlers, to, path) = (Self::of(context), request.to, request.path.clone());
        let has_status = path == STATUS || path == OWN_STATUS;
        let handler = match request_handlers.handler(to, &path) {
            Some(handler) => handler,
            None if path == SUSPECT && to == Addressee::Instance && request.method == Method::Post => {
                context.suspect();
                return Ok(Answer::text("the next check is made at once"));
            }
            None if path == OWN_STATUS => return Ok(status(context)),
            None => match request_handlers.fallback.get().filter(|_| !is_reserved(&path)) {
                Some(fallback) => Arc::clone(fallback),
                None if has_status => return Ok(status(context)),
                None => return Ok(request_handlers.unknown(to, &path)),
            },
        };
        // A separate task, so that a panic ends only that; it ends with the caller that waits for it.
        let answering = AbortOnDropHandle::new(tokio::spawn(async move { handler(request).await }.in_current_span()));
        match timeout_at(until, answering).await {
            // The worker next to a sidecar need not have the status that each member has.
            Ok(Ok(Ok(answer))) if has_status && answer.status == 404 => Ok(status(context)),
            Ok(Ok(handled)) => handled.map(Answer::checked),
            Ok(Err(_)) => {
                tracing::error!(policy = %context.policy.name, path, "a handler of requests panicked; the request was answered with 500");
                Ok(Answer::failed("it panicked; its own log says more"))
            }
            Err(_) => {
                let detail = "it has not answered within the time that its caller gives it, and was ended";
                Ok(Answer::problem(504, "too-late", "No answer in time", detail))
            }
        }
    }
}

/// How an address without TLS begins, and one with.
pub(super) const PLAIN: &str = "tcp://";
pub(super) const SECURED: &str = "tls://";

/// Publishes the address of requests and returns it as the others see it.
pub(super) fn arrive_at(context: &OwnershipContext, bound: SocketAddr, tls: bool) -> Result<String> {
    let everywhere = bound.ip().is_unspecified();
    // A certificate is for a name, and a wildcard address is not one that others could call.
    let named = if tls || everywhere { context.advertised.at_host(bound.port()) } else { None };
    if named.is_none() && everywhere {
        let message = format!(
            "requests to this worker arrive at {bound}, and others cannot know where that is: set instance.address and instance.port"
        );
        return Err(Error::new(ErrorKind::Settings, message));
    }
    let address = format!("{}{}", if tls { SECURED } else { PLAIN }, named.unwrap_or_else(|| bound.to_string()));
    context.advertised.show(ADDRESS_KEY, &address)?;
    Ok(address)
}

/// The path of the status, which every member answers. The worker's own answer at this path takes precedence.
pub const STATUS: &str = "status";
/// The path at which handlers cannot replace it.
pub(super) const OWN_STATUS: &str = "shardwise/status";
/// The path at which a caller says that this worker does not answer; a POST brings its next check forward.
pub const SUSPECT: &str = "shardwise/suspect";
const RESERVED: &str = "shardwise";

pub(super) fn is_reserved(path: &str) -> bool {
    path.split('/').next() == Some(RESERVED)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The status that every member has.
fn status(context: &OwnershipContext) -> Answer {
    match context.membership() {
        Some(membership) => Answer::from(told(&membership)),
        None => Answer::problem(503, "unavailable", "Not now", "this worker is stopping"),
    }
}

fn told(membership: &Membership) -> Value {
    let (ownership, now) = (membership.ownership(), membership.clock.now());
    let (is_live, view) = (ownership.is_live_at(now), ownership.view());
    let me = view.member(&membership.instance_id);
    let by_operator = |me: &Member| me.state == MemberState::Draining && me.worker.is_none();
    let is_drained = ownership.state() == ServiceState::Active && me.is_some_and(by_operator);
    let worker = membership.worker.report.borrow().clone();
    json!({
        "policy": membership.policy.name.as_str(),
        "group": membership.policy.group.as_str(),
        "instance_id": membership.instance_id.as_str(),
        "incarnation": membership.life.incarnation().to_string(),
        "version": me.and_then(|me| me.version.as_deref()),
        "state": ownership.state_at(now).as_str(),
        "hint": ownership.not_owning_at(now).map(|why| why.hint),
        "drained": is_drained,
        "worker": worker.health.map(WorkerHealth::as_str),
        "worker_failure": worker.failure.as_deref(),
        "revision": view.revision(),
        "view_fingerprint": view.fingerprint().to_string(),
        "view_age_ms": membership.view_age().map(millis),
        "policy_fingerprint": ownership.policy_fingerprint().map(|fingerprint| fingerprint.to_string()),
        "members": view.members().len(),
        "slots_owned": ownership.slots_owned().map(|owned| if is_live { owned } else { 0 }),
        "owned_for_ms": ownership.deadline().filter(|_| is_live).map(|end| millis(end.since(now))),
        "renewed_ms_ago": membership.renewed_ago().map(millis),
        "stands_still": ownership.rebalancing_frozen(),
    })
}
