//! For a server that stands before this worker, such as a sidecar: it takes requests as the handlers of this process do, and has them
//! handled in another process.

use std::time::Duration;

use shardwise_core::routing::SessionId;
use tokio::time::Instant;

use super::held::{self, Held};
use super::owned::{KeyReceiver, Owned, OwnedOptions};
use crate::error::inside_runtime;
use crate::requests::caller::Routing;
use crate::requests::handlers::RequestHandlers;
use crate::requests::{Answer, Request, Undelivered};
use crate::service::ShardingService;

impl ShardingService {
    /// For a server that stands before this worker: takes a request to a key as a handler of [`ShardingService::on_owned`] does, and has
    /// `work` handle it under the guard of the key. Under exclusive ownership `work` is dropped where it awaits if the slot is lost.
    ///
    /// # Errors
    ///
    /// [`Undelivered::NotMine`] if this member does not serve the key; [`Undelivered::Unknown`] if the slot is lost meanwhile; and what
    /// `work` returns.
    pub async fn handle_owned<W>(&self, request: Request, work: impl FnOnce(Owned) -> W) -> Result<Answer, Undelivered>
    where
        W: Future<Output = Result<Answer, Undelivered>>,
    {
        let receiver = KeyReceiver::of(self, OwnedOptions::default());
        receiver.take(request).await?.work(work).await
    }

    /// The same for a request to a name, as with a handler of [`ShardingService::on_held`].
    ///
    /// # Errors
    ///
    /// As [`ShardingService::handle_owned`].
    pub async fn handle_held<W>(&self, request: Request, work: impl FnOnce(Held) -> W) -> Result<Answer, Undelivered>
    where
        W: Future<Output = Result<Answer, Undelivered>>,
    {
        let held = held::take(&self.membership().ownership_context, Routing::of(self), request)?;
        held::handle(held, work).await
    }

    /// Checks that the session's id names this member. Whether the session is open is known to the process that has opened it.
    ///
    /// # Errors
    ///
    /// [`Undelivered::NotMine`], with the member that the id names, if it is known.
    pub fn check_session(&self, id: &SessionId) -> Result<(), Undelivered> {
        let (life, routing) = (&self.membership().life, Routing::of(self));
        if id.minter() == life.incarnation() {
            return Ok(());
        }
        routing.is_following();
        Err(Undelivered::NotMine(routing.minter_of(id, life.instance_id())))
    }

    /// As [`ShardingService::answer`], with a time limit.
    ///
    /// # Errors
    ///
    /// As [`ShardingService::answer`].
    pub async fn answer_within(&self, request: Request, within: Duration) -> Result<Answer, Undelivered> {
        if let Err(error) = inside_runtime() {
            return Ok(Answer::failed(&error.to_string()));
        }
        let until = Instant::now() + within;
        let turn = RequestHandlers::turn(self.membership(), request.to, &request.path, until).await?;
        RequestHandlers::answer_apart(&self.membership().ownership_context, request, until, turn).await
    }
}
