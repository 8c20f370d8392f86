//! Handlers of names: requests to the holder of a singleton, a daemon or a timer.

use std::future::ready;
use std::sync::Arc;

use shardwise_core::{ClaimName, Epoch, OwnershipMode, Resource};

use crate::error::{Error, ErrorKind, Result};
use crate::membership::OwnershipContext;
use crate::requests::caller::Routing;
use crate::requests::handlers::{Handled, Handler, HandlerDecision, HandlerWork, RequestHandlers};
use crate::requests::{Addressee, Answer, Request, Undelivered};
use crate::service::ShardingService;
use crate::work::{Guard, enter_claim};

/// A request to a name, at the member that holds it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Held {
    /// The full name, such as `singleton/leader`.
    pub name: ClaimName,
    /// The epoch under which this member holds it, for your own writes.
    pub epoch: Epoch,
    /// The guard of the name. It is held until the handler has ended; a clone that outlives the handler keeps the name from moving.
    pub guard: Arc<Guard>,
    /// The request.
    pub request: Request,
}

impl ShardingService {
    /// Answers requests to names at `path` ([`To::Holder`](crate::requests::To::Holder)), at the member that holds the name. It is called
    /// for every name that this member holds; [`Held::name`] says which. Everything else is as with [`ShardingService::on_request`].
    ///
    /// The name moves only once the handler has ended. If it is lost before, the handler is dropped where it awaits, and the sender learns
    /// that the outcome is unknown. The handler runs besides the work of the name and not in it: to have them in one task, send it messages
    /// ([`crate::Singleton::handle`]).
    ///
    /// # Errors
    ///
    /// As with [`ShardingService::on_request`]; [`ErrorKind::Settings`] also under eventual ownership, which has no names.
    pub fn on_held<W, A>(&self, path: &str, handler: impl Fn(Held) -> W + Send + Sync + 'static) -> Result<()>
    where
        W: Future<Output = A> + Send + 'static,
        A: Into<Answer>,
    {
        if self.policy().ownership != OwnershipMode::Exclusive {
            let message =
                format!("a handler at {path:?}: policy {} has ownership = \"eventual\", and then no name is held", self.policy().name);
            return Err(Error::new(ErrorKind::Settings, message));
        }
        let context = &self.membership().ownership_context;
        let (routing, weak, handler) = (Arc::clone(Routing::of(self)), Arc::downgrade(context), Arc::new(handler));
        let taking = move |request: Request| -> HandlerDecision {
            let context = weak.upgrade().ok_or_else(|| Undelivered::Unsent("this worker is stopping".into()));
            let held = context.and_then(|context| take(&context, &routing, request));
            let taken = held.map(|held| {
                let handler = Arc::clone(&handler);
                let work: HandlerWork = Box::pin(handle(held, move |held| async move { Ok(handler(held).await.into()) }));
                work
            });
            Box::pin(ready(taken))
        };
        let taking: Handler = Arc::new(taking);
        RequestHandlers::of(context).register(Addressee::Holder, path, &taking)
    }
}

/// Takes the request, or names the member that should.
pub(super) fn take(
    context: &Arc<OwnershipContext>,
    routing: &Arc<Routing>,
    mut request: Request,
) -> std::result::Result<Held, Undelivered> {
    let name = request.name.take().ok_or_else(|| Undelivered::Barred("it names no name".into()))?;
    let guard = enter_claim(context, &Resource::Name(name.clone())).ok();
    let held = guard.and_then(|guard| Some((guard.epoch()?, Arc::new(guard))));
    let (epoch, guard) = held.ok_or_else(|| {
        routing.is_following();
        Undelivered::NotMine(routing.holder_of(&name, context.life.instance_id()))
    })?;
    Ok(Held { name, epoch, guard, request })
}

/// Handles it, under its guard.
pub(super) async fn handle<W>(held: Held, handler: impl FnOnce(Held) -> W) -> Handled
where
    W: Future<Output = Handled>,
{
    // Held here, so that a handler that takes only a part of `held` does not end it early.
    let guard = Arc::clone(&held.guard);
    tokio::select! {
        biased;
        answer = handler(held) => answer,
        () = guard.lost() => Err(Undelivered::Unknown("the member has lost the name while it handled the request".into())),
    }
}
