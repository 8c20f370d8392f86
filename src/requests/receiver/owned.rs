//! Handlers of keys: each request runs under the guard of its key, at the member that owns it by its own clock and claims.

use std::sync::{Arc, Weak};

use shardwise_core::routing::QueueLimits;
use shardwise_core::{Fence, OwnedKey, Ownership, OwnershipMode, ShardKey as _};

use super::queue::{TurnPlace, TurnQueues};
use super::widths::{KeyRequest, KeyWidths};
use crate::error::Result;
use crate::membership::OwnershipContext;
use crate::requests::caller::Routing;
use crate::requests::handlers::{Handled, Handler, HandlerDecision, HandlerWork, RequestHandlers};
use crate::requests::{Addressee, Answer, Request, Undelivered};
use crate::service::ShardingService;
use crate::work::{Guard, enter};

/// A request to a key, at the member that handles it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Owned {
    /// The key.
    pub key: OwnedKey,
    /// The guard of the key, as of [`ShardingService::enter`]. It is held until the handler has ended, whatever becomes of this value; a
    /// clone that outlives the handler keeps the slot from moving.
    ///
    /// `None` only under eventual ownership and only if `max_width` is above 1: then this member helps the owner with a hot key. It does
    /// not own the key, and other members handle requests of the key at the same time.
    pub guard: Option<Arc<Guard>>,
    /// The request.
    pub request: Request,
}

impl Owned {
    /// The slot and the epoch for your own writes; `None` unless ownership is exclusive.
    pub fn fence(&self) -> Option<Fence> {
        self.guard.as_ref()?.fence()
    }

    /// Whether this member owns the key; else it helps the owner.
    pub const fn is_owner(&self) -> bool {
        self.guard.is_some()
    }
}

/// How a handler of [`ShardingService::on_owned_with`] takes its requests; by default any number of a key at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use]
pub struct OwnedOptions {
    queues: Option<QueueLimits>,
}

impl OwnedOptions {
    /// The handler takes one request of a key at a time, in order of arrival at this member. 16 wait for one key and 48 in all; further
    /// ones are refused as busy. Each that waits counts as one that is handled (`requests_at_once`).
    ///
    /// The order is that at one member: requests that wait during a handover go to the next member in any order. Keys with equal hashes
    /// share a queue. A request that waits does not keep the slot.
    pub fn one_at_a_time(self) -> Self {
        self.one_at_a_time_within(QueueLimits { per_key: 16, in_all: 48 })
    }

    /// The same with other limits.
    pub fn one_at_a_time_within(self, limits: QueueLimits) -> Self {
        Self { queues: Some(limits) }
    }
}

impl ShardingService {
    /// Answers requests to keys at `path` ([`To::Owner`](crate::requests::To::Owner)), at the member that owns the key. Everything else is
    /// as with [`ShardingService::on_request`].
    ///
    /// The handler runs under the guard of its key. Under exclusive ownership the slot moves only once the handler has ended; if the slot
    /// is lost before (the lease has expired, or `drain_timeout` has passed), the handler is dropped where it awaits, and the sender learns
    /// that the outcome is unknown: put [`Owned::fence`] into your writes. Under eventual ownership the handler goes on, and the guard
    /// shows that the key was lost.
    ///
    /// A member that does not own the key by its own clock and claims refuses the request, and the sender brings it to the one that does.
    ///
    /// # Errors
    ///
    /// As with [`ShardingService::on_request`].
    pub fn on_owned<W, A>(&self, path: &str, handler: impl Fn(Owned) -> W + Send + Sync + 'static) -> Result<()>
    where
        W: Future<Output = A> + Send + 'static,
        A: Into<Answer>,
    {
        self.on_owned_with(path, OwnedOptions::default(), handler)
    }

    /// Like [`ShardingService::on_owned`], for example with [`OwnedOptions::one_at_a_time`].
    ///
    /// # Errors
    ///
    /// As with [`ShardingService::on_request`].
    pub fn on_owned_with<W, A>(&self, path: &str, options: OwnedOptions, handler: impl Fn(Owned) -> W + Send + Sync + 'static) -> Result<()>
    where
        W: Future<Output = A> + Send + 'static,
        A: Into<Answer>,
    {
        let (receiver, handler) = (Arc::new(KeyReceiver::of(self, options)), Arc::new(handler));
        let taking = move |request| -> HandlerDecision {
            let (receiver, handler) = (Arc::clone(&receiver), Arc::clone(&handler));
            Box::pin(async move {
                let taken = receiver.take(request).await?;
                let work: HandlerWork = Box::pin(taken.work(move |owned| async move { Ok(handler(owned).await.into()) }));
                Ok(work)
            })
        };
        let taking: Handler = Arc::new(taking);
        RequestHandlers::of(self.membership()).register(Addressee::Owner, path, &taking)
    }
}

/// What the calls of one handler share. It keeps no service alive.
pub(super) struct KeyReceiver {
    routing: Arc<Routing>,
    widths: Arc<KeyWidths>,
    queues: Option<Arc<TurnQueues>>,
    context: Weak<OwnershipContext>,
}

/// A request to a key that this member has taken.
pub(super) struct TakenOwned {
    owned: Owned,
    is_exclusive: bool,
    place: Option<TurnPlace>,
    /// Of the owner, where keys are spread.
    counted: Option<KeyRequest>,
}

impl KeyReceiver {
    pub(super) fn of(service: &ShardingService, options: OwnedOptions) -> Self {
        let (context, routing) = (&service.membership().ownership_context, Arc::clone(Routing::of(service)));
        if routing.is_spread() {
            // So that the successors of each slot are known before the first request to help with.
            routing.is_following();
        }
        Self {
            routing,
            widths: KeyWidths::of(context),
            queues: options.queues.map(|limits| Arc::new(TurnQueues::new(limits))),
            context: Arc::downgrade(context),
        }
    }

    /// Takes the request, or names the member that should.
    pub(super) async fn take(&self, mut request: Request) -> std::result::Result<TakenOwned, Undelivered> {
        let key = request.key.take().ok_or_else(|| Undelivered::Barred("it names no key".into()))?;
        let hash = key.key_hash();
        let place = match &self.queues {
            None => None,
            Some(queues) => {
                // What is not served here does not wait. The guard is not kept: a request that waits must not hold up a handover.
                drop(self.enter(&key)?);
                Some(queues.turn(hash).await?)
            }
        };
        let guard = self.enter(&key)?;
        let counted = guard.as_ref().and_then(|_| self.widths.begin(hash));
        let is_exclusive = self.upgraded()?.policy.ownership == OwnershipMode::Exclusive;
        Ok(TakenOwned { owned: Owned { key, guard, request }, is_exclusive, place, counted })
    }

    /// The guard of a key that is this member's; `None` if it helps the owner.
    fn enter(&self, key: &OwnedKey) -> std::result::Result<Option<Arc<Guard>>, Undelivered> {
        let context = self.upgraded()?;
        if let Ok(guard) = enter(&context, key) {
            return Ok(Some(Arc::new(guard)));
        }
        self.routing.is_following();
        let me = context.life.instance_id();
        let is_live = context.read(Ownership::is_live_at);
        if is_live && self.routing.may_help(key.as_key(), me) {
            return Ok(None);
        }
        Err(Undelivered::NotMine(self.routing.owner_of(key.as_key(), me)))
    }

    fn upgraded(&self) -> std::result::Result<Arc<OwnershipContext>, Undelivered> {
        self.context.upgrade().ok_or_else(|| Undelivered::Unsent("this worker is stopping".into()))
    }
}

impl TakenOwned {
    /// Handles it, under its guard.
    pub(super) async fn work<W>(self, handler: impl FnOnce(Owned) -> W) -> Handled
    where
        W: Future<Output = Handled>,
    {
        let Self { owned, is_exclusive, place, counted } = self;
        // Held here, so that a handler that takes only a part of `owned` does not end it early.
        let guard = owned.guard.clone();
        let handling = handler(owned);
        let answer = match guard.as_ref().filter(|_| is_exclusive) {
            None => handling.await?,
            Some(guard) => tokio::select! {
                biased;
                answer = handling => answer?,
                () = guard.lost() => return Err(Undelivered::Unknown("the member has lost the slot while it handled the request".into())),
            },
        };
        let width = counted.and_then(KeyRequest::finish);
        drop((guard, place));
        Ok(Answer { width, ..answer })
    }
}
