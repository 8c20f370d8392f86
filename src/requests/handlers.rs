//! One member's handlers, and the address of requests to them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use shardwise_core::{Member, MemberState, ServiceState, WorkerHealth};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::{ADDRESS_KEY, ANSWER_WITHIN, Addressee, Answer, Method, Request, is_path, path_to};
use crate::error::{Error, ErrorKind, Result, locked};
use crate::membership::{Membership, OwnershipContext};

const HANDLERS_MAX: usize = 256;
const AT_ONCE_MAX: usize = 64;
/// The most paths in a refusal.
const NAMED: usize = 20;

pub(super) type Handler = Arc<dyn Fn(Request) -> BoxFuture<'static, Answer> + Send + Sync>;

/// The handlers of one member. It keeps no service alive.
pub(super) struct RequestHandlers {
    handlers: Mutex<BTreeMap<(Addressee, String), Handler>>,
    at_once: Semaphore,
    #[cfg(feature = "requests")]
    pub(super) listener: crate::membership::MemberListener,
}

impl RequestHandlers {
    pub(super) fn of(context: &OwnershipContext) -> Arc<Self> {
        context.extensions.get_or_make(|| Self {
            handlers: Mutex::default(),
            at_once: Semaphore::new(AT_ONCE_MAX),
            #[cfg(feature = "requests")]
            listener: crate::membership::MemberListener::of(context),
        })
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

    fn handler(&self, to: Addressee, path: &str) -> Option<Handler> {
        locked(&self.handlers).get(&(to, path.to_owned())).cloned()
    }

    pub(super) fn handles(&self, to: Addressee, path: &str) -> bool {
        is_reserved(path) || self.handler(to, path).is_some()
    }

    fn unknown(&self, to: Addressee, path: &str) -> Answer {
        let handlers = locked(&self.handlers);
        let of_addressee = handlers.keys().filter(|(of, _)| *of == to).map(|(_, path)| path.as_str());
        let known: Vec<_> = std::iter::once(STATUS).chain(of_addressee).take(NAMED).collect();
        let other = handlers.keys().find(|(of, known)| *of != to && known == path).map(|(of, _)| *of);
        let hint = other.map(|other| format!("; its handler there is for requests to {other}")).unwrap_or_default();
        let path: String = path.chars().take(64).collect();
        let known = known.join(", ");
        let detail = format!("this worker answers no requests to {to} at {path:?}{hint}; it answers at: {known}");
        Answer::problem(404, "not-found", "Not found", &detail)
    }

    /// The answer of the handler there, within the time limit. An error is the refusal at the limit on concurrent requests: no handler has
    /// seen the request.
    pub(super) async fn answer(membership: &Membership, path: &str, request: Request) -> std::result::Result<Answer, Answer> {
        let (request_handlers, to) = (Self::of(membership), request.to);
        let handler = match request_handlers.handler(to, path) {
            Some(handler) => handler,
            None if path == STATUS || path == OWN_STATUS => return Ok(Answer::from(status(membership))),
            None if path == SUSPECT && to == Addressee::Instance && request.method == Method::Post => {
                membership.suspect();
                return Ok(Answer::text("the next check is made at once"));
            }
            None => return Ok(request_handlers.unknown(to, path)),
        };
        let Ok(_turn) = request_handlers.at_once.try_acquire() else {
            let detail = format!("this worker answers {AT_ONCE_MAX} requests at a time already; try again");
            return Err(Answer::problem(429, "too-many", "Too many requests", &detail));
        };
        // A separate task, so that a panic ends only that; it ends with the caller that waits for it.
        let answering = AbortOnDropHandle::new(tokio::spawn(async move { handler(request).await }.in_current_span()));
        Ok(match timeout(ANSWER_WITHIN, answering).await {
            Ok(Ok(answer)) => answer.checked(),
            Ok(Err(_)) => {
                tracing::error!(policy = %membership.policy.name, path, "a handler of requests panicked; the request was answered with 500");
                Answer::failed("it panicked; its own log says more")
            }
            Err(_) => {
                let detail = format!("it has not answered within {ANSWER_WITHIN:?} and was ended");
                Answer::problem(504, "too-late", "No answer in time", &detail)
            }
        })
    }
}

/// The start of the path of every request to this member.
pub(super) fn requests_path(context: &OwnershipContext) -> String {
    path_to(&context.policy.group, context.life.instance_id(), context.life.incarnation())
}

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
    let address = format!("{}://{}", if tls { "https" } else { "http" }, named.unwrap_or_else(|| bound.to_string()));
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

pub(super) fn status(membership: &Membership) -> Value {
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
