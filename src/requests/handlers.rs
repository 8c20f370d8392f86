//! One member's handlers, and how a request gets its answer from them.

use std::future::ready;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use shardwise_discovery::LogThrottle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::handler_map::HandlerMap;
use super::security::PeerSecurity;
use super::status::status;
use super::{Addressee, Answer, Method, Request, Undelivered, is_path};
use crate::error::{Error, ErrorKind, Result};
use crate::membership::OwnershipContext;
use crate::settings::RequestSettings;
use crate::telemetry::metrics::RequestMeters;

const HANDLERS_MAX: usize = 256;
/// Messages to singletons wait for their reply, for an hour at most, so they have a limit of their own.
const MESSAGES_AT_ONCE_MAX: usize = 512;
/// The most bytes of a message with what is said of it: 256 KiB, its epoch and the names of the fields.
#[cfg(feature = "requests")]
pub(super) const MESSAGE_BODY_BYTES_MAX: usize = (256 << 10) + 256;
/// The most paths in a refusal.
const NAMED: usize = 20;
/// The longest wait for a place, and no longer than a tenth of the request's own time: handlers that are usually shorter make room in a
/// moment, and where they are not, the caller should ask another member soon.
const QUEUED_FOR_MAX: Duration = Duration::from_millis(50);
/// Why a leaving member refuses a request. Another one may serve it.
const LEAVES: &str = "this worker is leaving its group";

/// What a request comes to: an answer, or that this member is not the one to ask.
pub(crate) type Handled = std::result::Result<Answer, Undelivered>;
/// The work on a request that was taken.
pub(crate) type HandlerWork = BoxFuture<'static, Handled>;
/// The decision of a handler: the work on a request, or why it is not taken. Then no code of the user has seen it.
pub(crate) type HandlerDecision = BoxFuture<'static, std::result::Result<HandlerWork, Undelivered>>;
pub(crate) type Handler = Arc<dyn Fn(Request) -> HandlerDecision + Send + Sync>;

/// A handler that takes every request.
pub(crate) fn takes_all<W>(work: impl Fn(Request) -> W + Send + Sync + 'static) -> Handler
where
    W: Future<Output = Handled> + Send + 'static,
{
    let work = Arc::new(work);
    Arc::new(move |request| {
        let work = Arc::clone(&work);
        // The task of the work includes what it does before its first await.
        let begun: HandlerWork = Box::pin(async move { work(request).await });
        Box::pin(ready(Ok(begun)))
    })
}

/// A handler of which only its end says whether it has taken the request: another process, or a message. A caller that does not wait for
/// the work waits for it here all the same.
pub(crate) fn takes_at_its_end<W>(work: impl Fn(Request) -> W + Send + Sync + 'static) -> Handler
where
    W: Future<Output = Handled> + Send + 'static,
{
    Arc::new(move |request| {
        let handled = work(request);
        Box::pin(async move { handled.await.map(answered) })
    })
}

/// The work on a request that has its answer already.
pub(crate) fn answered(answer: Answer) -> HandlerWork {
    Box::pin(ready(Ok(answer)))
}

/// Whether a request is a message to a singleton.
pub(super) fn is_message(to: Addressee, path: &str) -> bool {
    to == Addressee::Holder && is_reserved(path)
}

/// Reports the present load.
type LoadReport = Box<dyn Fn() -> u32 + Send + Sync>;

/// The handlers of one member. It keeps no service alive.
pub(crate) struct RequestHandlers {
    handlers: HandlerMap,
    /// For requests without a handler: the worker next to a sidecar.
    fallback: OnceLock<Handler>,
    at_once_max: usize,
    at_once: Arc<Semaphore>,
    /// As many places again for requests that wait for one of those.
    queue: Semaphore,
    messages_at_once: Arc<Semaphore>,
    load: OnceLock<LoadReport>,
    load_panics: LogThrottle<()>,
    /// Requests that were accepted and not handled to their end.
    pub(super) unfinished: LogThrottle<()>,
    pub(super) meters: RequestMeters,
    /// How many requests it has refused because it had too many, and because it was not the right member.
    refused_busy: AtomicU64,
    refused_not_mine: AtomicU64,
    security: OnceLock<PeerSecurity>,
    #[cfg(feature = "requests")]
    pub(super) listener: crate::membership::MemberListener,
}

/// A request's place among those that are handled at a time.
pub(crate) struct Turn {
    _permit: OwnedSemaphorePermit,
    /// A leaving member waits for it.
    _in_flight: TaskTrackerToken,
    /// It came when the member was leaving, which need not wait for it any more.
    is_late: bool,
}

impl RequestHandlers {
    pub(crate) fn of(context: &OwnershipContext) -> Arc<Self> {
        Arc::clone(context.handlers.get_or_make(|| {
            let at_once_max = RequestSettings::limit(context.requests.at_once);
            Arc::new(Self {
                handlers: HandlerMap::default(),
                fallback: OnceLock::new(),
                at_once_max,
                at_once: Arc::new(Semaphore::new(at_once_max)),
                queue: Semaphore::new(at_once_max),
                messages_at_once: Arc::new(Semaphore::new(MESSAGES_AT_ONCE_MAX)),
                load: OnceLock::new(),
                load_panics: LogThrottle::default(),
                unfinished: LogThrottle::default(),
                meters: RequestMeters::new(&context.policy),
                refused_busy: AtomicU64::new(0),
                refused_not_mine: AtomicU64::new(0),
                security: OnceLock::new(),
                #[cfg(feature = "requests")]
                listener: crate::membership::MemberListener::of(context),
            })
        }))
    }

    /// How this member proves itself, and what it expects of others.
    #[cfg(feature = "requests")]
    pub(crate) fn security(&self, context: &OwnershipContext) -> &PeerSecurity {
        self.security.get_or_init(|| PeerSecurity::of(&context.peers))
    }

    /// Instead of what the settings say, unless something relies on that already.
    pub(super) fn secure(&self, security: PeerSecurity) -> Result<()> {
        const LATE: &str = "this service has connections of members already: secure them before it listens and before its first handle";
        self.security.set(security).map_err(|_| Error::new(ErrorKind::Conflict, LATE.to_owned()))
    }

    /// Reports the load by `now` instead of by the requests in progress; the first call counts.
    pub(super) fn report_load(&self, now: LoadReport) {
        let _ = self.load.set(now);
    }

    /// The load that this member reports: requests in progress and those that wait for a place, unless its code reports its own.
    pub(super) fn load(&self) -> u32 {
        let taken = |places: &Semaphore| self.at_once_max.saturating_sub(places.available_permits());
        let in_progress = || u32::try_from(taken(&self.at_once) + taken(&self.queue)).unwrap_or(u32::MAX);
        let Some(now) = self.load.get() else { return in_progress() };
        // It is the worker's own code, and neither an answer that is ready nor the metrics may end with it.
        catch_unwind(AssertUnwindSafe(now)).unwrap_or_else(|_| {
            if let Some(count) = self.load_panics.another(()) {
                tracing::error!(count, "the report of the load panicked, so requests in progress count; one line a minute at most");
            }
            in_progress()
        })
    }

    #[cfg(feature = "requests")]
    pub(super) const fn meters(&self) -> &RequestMeters {
        &self.meters
    }

    pub(super) fn register(&self, to: Addressee, path: &str, handler: &Handler) -> Result<()> {
        let refused = |why: String| Err(Error::new(ErrorKind::Settings, format!("a handler at {path:?}: {why}")));
        if !is_path(path) {
            return refused("write parts of letters, digits and -._~ with single slashes between them, such as \"cache/size\"".into());
        }
        if is_reserved(path) {
            return refused("what begins with \"shardwise\" is answered by shardwise itself".into());
        }
        if !self.handlers.insert(to, path, handler, HANDLERS_MAX) {
            return refused(format!("there are {HANDLERS_MAX} already, and that is the most"));
        }
        Ok(())
    }

    /// A handler of shardwise itself, at a reserved path.
    #[cfg(feature = "requests")]
    pub(crate) fn register_own(&self, to: Addressee, path: &'static str, handler: &Handler) {
        self.handlers.insert(to, path, handler, usize::MAX);
    }

    /// Handles what no handler of this process does; the first call counts.
    pub(super) fn fall_back(&self, handler: Handler) {
        let _ = self.fallback.set(handler);
    }

    /// What a request without a handler comes to. One whose caller does not wait for an answer is barred, or it would count as accepted.
    fn unknown(&self, request: &Request) -> Handled {
        let (to, path, handlers) = (request.to, request.path.as_str(), self.handlers.keys());
        let of_addressee = handlers.iter().filter(|(of, path)| *of == to && !is_reserved(path)).map(|(_, path)| path.as_str());
        let known: Vec<_> = std::iter::once(STATUS).chain(of_addressee).take(NAMED).collect();
        let other = handlers.iter().find(|(of, known)| *of != to && known == path).map(|(of, _)| *of);
        let hint = other.map(|other| format!("; its handler there is for requests to {other}")).unwrap_or_default();
        let path: String = path.chars().take(64).collect();
        let known = known.join(", ");
        let detail = format!("this worker answers no requests to {to} at {path:?}{hint}; it answers at: {known}");
        if request.tell {
            return Err(Undelivered::Barred(format!("it has no handler for it: {detail}")));
        }
        Ok(Answer::problem(404, "not-found", "Not found", &detail))
    }

    /// A place for one more request that has its answer at `until`, taken before its body is read. If there is none, the request waits
    /// a moment for one. A member that leaves waits for it, up to `drain_timeout`.
    pub(crate) async fn turn(
        context: &OwnershipContext,
        to: Addressee,
        path: &str,
        until: Instant,
    ) -> std::result::Result<Turn, Undelivered> {
        let handlers = Self::of(context);
        let places = if is_message(to, path) { &handlers.messages_at_once } else { &handlers.at_once };
        // Counted before it looks: either a leaving member waits for it, or it is late.
        let in_flight = context.in_flight.token();
        let is_late = context.in_flight.is_closed();
        let permit = match Arc::clone(places).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => handlers.queued(places, until).await.ok_or_else(|| handlers.refused(Undelivered::Busy(None)))?,
        };
        Ok(Turn { _permit: permit, _in_flight: in_flight, is_late })
    }

    /// Waits for one of those places; `None` if too many wait already or none becomes free.
    async fn queued(&self, places: &Arc<Semaphore>, until: Instant) -> Option<OwnedSemaphorePermit> {
        let _place = self.queue.try_acquire().ok()?;
        let longest = (until.saturating_duration_since(Instant::now()) / 10).min(QUEUED_FOR_MAX);
        timeout(longest, Arc::clone(places).acquire_owned()).await.ok()?.ok()
    }

    /// Counts it, if it is a refusal.
    fn refused(&self, undelivered: Undelivered) -> Undelivered {
        let count = match undelivered {
            Undelivered::Busy(_) => &self.refused_busy,
            Undelivered::NotMine(_) => &self.refused_not_mine,
            _ => return undelivered,
        };
        count.fetch_add(1, Ordering::Relaxed);
        self.meters.refused(undelivered.outcome());
        undelivered
    }

    /// How many requests it has refused because it had too many, and because it was not the right member.
    #[cfg(feature = "requests")]
    pub(super) fn refusals(&self) -> (u64, u64) {
        (self.refused_busy.load(Ordering::Relaxed), self.refused_not_mine.load(Ordering::Relaxed))
    }

    /// The answer of the handler there, until that time. An error but `Unknown` says that no handler has seen the request. Dropping the
    /// future ends the handler, except that of a request whose caller does not wait for it and which was accepted.
    pub(crate) async fn answer(context: &OwnershipContext, request: Request, until: Instant, turn: Turn) -> Handled {
        let handlers = Self::of(context);
        let has_status = request.path == STATUS || request.path == OWN_STATUS;
        let own = handlers.handlers.get(request.to, &request.path);
        // Of what may have been begun before it is taken, only the end is certain.
        let is_taken_first = own.is_some() && !is_reserved(&request.path);
        // By what it owns, holds and has open, which is nothing once it leaves; it may know who does.
        let decides_itself = own.is_some() && matches!(request.to, Addressee::Owner | Addressee::Holder | Addressee::Session);
        let handler = match own {
            Some(handler) => handler,
            None if request.path == SUSPECT && request.to == Addressee::Instance && request.method == Method::Post => {
                context.suspect();
                return Ok(Answer::text("the next check is made at once"));
            }
            None if request.path == OWN_STATUS => return Ok(status(context)),
            None => match handlers.fallback.get().filter(|_| !is_reserved(&request.path)) {
                Some(fallback) => Arc::clone(fallback),
                None if has_status => return Ok(status(context)),
                None => return handlers.unknown(&request),
            },
        };
        if turn.is_late && !decides_itself {
            return Err(Undelivered::Unsent(LEAVES.into()));
        }
        let handled = if !is_taken_first {
            handlers.worked(context, &request.path.clone(), async move { handler(request).await?.await }, until).await
        } else if request.tell {
            handlers.accepted(context, handler, request, until, turn).await
        } else {
            let path = request.path.clone();
            match Self::taken(context, &path, handler, request, until).await {
                Ok(work) => handlers.worked(context, &path, work, until).await,
                Err(handled) => handled,
            }
        };
        match handled {
            // The worker next to a sidecar need not have the status that each member has.
            Ok(answer) if has_status && answer.status == 404 => Ok(status(context)),
            Ok(answer) => Ok(answer.checked()),
            Err(undelivered) => Err(handlers.refused(undelivered)),
        }
    }
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
