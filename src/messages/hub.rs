//! One member's message hub: the holders of names, the connections to them, and the messages taken here.

use std::sync::{Arc, Weak};

use shardwise_core::Holders;
use tokio::sync::{Semaphore, watch};

use super::inbox::Mailboxes;
use super::wire::{MESSAGES, WireAnswer, WireMessage};
use crate::error::Result;
use crate::membership::{Life, OwnershipContext};
use crate::requests::channel::{self, MemberConnections};
use crate::requests::handlers::{Handled, RequestHandlers, takes_at_its_end};
use crate::requests::{Addressee, Answer, Request, Undelivered};

/// The most messages of one worker that wait for a holder or for a reply.
pub(super) const OUTSTANDING_MAX: usize = 1_024;

/// The message hub of one member. It keeps no service alive.
pub(super) struct MessageHub {
    pub(super) life: Life,
    pub(super) mailboxes: Arc<Mailboxes>,
    /// Of their own, so that messages that wait long for a reply take no place of a request.
    pub(super) connections: MemberConnections,
    pub(super) outstanding: Semaphore,
    context: Weak<OwnershipContext>,
    leaders: watch::Receiver<Holders>,
}

impl MessageHub {
    pub(super) fn of(context: &Arc<OwnershipContext>) -> Arc<Self> {
        let handlers = RequestHandlers::of(context);
        context.extensions.get_or_make(|| {
            let mailboxes = Arc::new(Mailboxes::default());
            let taking = Arc::clone(&mailboxes);
            handlers.register_own(Addressee::Holder, MESSAGES, &takes_at_its_end(move |request| taken(Arc::clone(&taking), request)));
            Self {
                life: context.life.clone(),
                mailboxes,
                connections: MemberConnections::of(context, &handlers),
                outstanding: Semaphore::new(OUTSTANDING_MAX),
                context: Arc::downgrade(context),
                leaders: context.holders.follow(),
            }
        })
    }

    /// The holders of slots and names, now and whenever that changes.
    pub(super) fn leaders(&self) -> watch::Receiver<Holders> {
        self.leaders.clone()
    }

    /// Starts to listen, if necessary, and publishes the address.
    pub(super) async fn open(&self) -> Result<()> {
        // Without the context the service has ended, and there is nothing to listen for.
        let Some(context) = self.context.upgrade() else { return Ok(()) };
        channel::listen(&context).await.map(drop)
    }
}

/// Takes a message that has arrived, and waits until it is handled.
async fn taken(mailboxes: Arc<Mailboxes>, request: Request) -> Handled {
    let (Some(name), Ok(message)) = (&request.name, request.json::<WireMessage>()) else {
        return Ok(Answer::json(&WireAnswer::Unreadable("it is not a message".into())));
    };
    let answer = match mailboxes.deliver(name, message.epoch, message.body) {
        Ok(answer) => answer.await.unwrap_or_else(|_| WireAnswer::Lost("its holder ended before it had replied".into())),
        Err(answer) => answer,
    };
    match answer {
        WireAnswer::NotMine => Err(Undelivered::NotMine(None)),
        WireAnswer::Busy => Err(Undelivered::Busy(None)),
        answer => Ok(Answer::json(&answer)),
    }
}
