//! The sender's side: finds the holder, sends it the message, and reports exactly what is known of its outcome.

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use shardwise_core::{Backoff, Claim, ClaimName, Epoch, Holder, Holders, Ownership, Resource};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use super::error::MessageError;
use super::hub::{MessageHub, OUTSTANDING_MAX};
use super::wire::{MESSAGE_BYTES_MAX, MESSAGES, WireAnswer, WireMessage};
use crate::error::inside_runtime;
use crate::requests::{ADDRESS_KEY, Addressee, Answer, Attempt, MemberEndpoint, Request, Transport, Undelivered};
use crate::work::Singleton;

/// The timeout of [`SingletonHandle::send`].
pub const MESSAGE_WAIT: Duration = Duration::from_secs(30);
const WAIT_LONGEST: Duration = Duration::from_hours(24 * 366);
/// First pause before a message that was not taken is sent again, unless something changes before; doubled up to the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_LONGEST: Duration = Duration::from_millis(500);

/// Sends typed messages to the holder of a name. Created by [`crate::Singleton::handle`]; clones are cheap and keep no service alive.
pub struct SingletonHandle<M, R> {
    hub: Arc<MessageHub>,
    ownership: watch::Receiver<Arc<Ownership>>,
    name: ClaimName,
    types: PhantomData<fn(M) -> R>,
}

enum SendAttempt<R> {
    Done(Result<R, MessageError>),
    /// It was certainly not handled; try again.
    Again {
        why: String,
        full: bool,
    },
}

impl<R> SendAttempt<R> {
    fn again(why: impl Into<String>) -> Self {
        Self::Again { why: why.into(), full: false }
    }
}

impl Singleton {
    /// Sends messages of type `M` to the member that runs this, and receives replies of type `R`, both as JSON. Every member of the group
    /// can; it need not run it. The holder receives them by [`Tenure::messages`](crate::Tenure::messages). If [`Singleton::run`] follows on
    /// the same value, this worker listens from then on, so that no sender waits for it at a takeover.
    pub fn handle<M, R>(&self) -> SingletonHandle<M, R> {
        let membership = self.service().membership();
        let hub = MessageHub::of(&membership.ownership_context);
        let opened = Arc::clone(&hub);
        self.on_run(move || {
            // The work itself gets the error too, from `Tenure::messages`.
            tokio::spawn(async move { opened.open().await.inspect_err(|error| tracing::warn!(%error, "no messages can arrive here")) });
        });
        SingletonHandle { hub, ownership: membership.changes(), name: self.name().clone(), types: PhantomData }
    }
}

impl<M: Serialize, R: DeserializeOwned> SingletonHandle<M, R> {
    /// Sends a message to the holder and waits for its reply, 30 s ([`MESSAGE_WAIT`]) at most in all.
    ///
    /// While no member holds the name, or its holder cannot be reached or takes no messages yet, the message waits. It is sent again as
    /// long as it was certainly not handled, and never after it may have been: each message is handled at most once. Concurrent messages
    /// have no order.
    ///
    /// # Errors
    ///
    /// [`MessageError`]; [`MessageError::may_have_been_handled`] says whether a retry may handle it twice.
    pub async fn send(&self, message: M) -> Result<R, MessageError> {
        self.send_within(message, MESSAGE_WAIT).await
    }

    /// Like [`SingletonHandle::send`], with its own time limit for waiting and reply together.
    pub async fn send_within(&self, message: M, limit: Duration) -> Result<R, MessageError> {
        inside_runtime().map_err(|_| MessageError::NoRuntime)?;
        let body = to_raw_value(&message).map_err(|error| MessageError::Unwritable(error.to_string()))?;
        drop(message);
        if body.get().len() > MESSAGE_BYTES_MAX {
            return Err(MessageError::TooLarge { bytes: body.get().len(), most: MESSAGE_BYTES_MAX });
        }
        let Ok(_place) = self.hub.outstanding.try_acquire() else {
            return Err(self.full(format!("{OUTSTANDING_MAX} messages of this worker wait already")));
        };
        let (begun, mut backoff) = (Instant::now(), Backoff::new(PAUSE_FIRST, PAUSE_LONGEST));
        // An unlimited wait is a wait of a year.
        let until = begun.checked_add(limit.min(WAIT_LONGEST)).unwrap_or(begun);
        let (mut leaders, mut ownership) = (self.hub.leaders(), self.ownership.clone());
        let mut earlier = None;
        loop {
            // Any change from here on counts.
            let leader = self.claim_in(&leaders.borrow_and_update());
            ownership.mark_unchanged();
            let (why, full) = match self.try_once(body.clone(), until).await {
                SendAttempt::Done(done) => return done,
                SendAttempt::Again { why, full } => (why, full),
            };
            // An attempt that the limit cut short says less than the one before it.
            let why = earlier.take().filter(|_| Instant::now() >= until).unwrap_or(why);
            earlier = Some(why.clone());
            let changed = async {
                tokio::select! {
                    true = async { leaders.wait_for(|now| self.claim_in(now) != leader).await.is_ok() } => true,
                    changed = ownership.changed() => changed.is_ok(),
                    () = sleep(backoff.fail()) => true,
                }
            };
            match timeout_at(until, changed).await {
                Ok(true) => {}
                Ok(false) => return Err(MessageError::Closed),
                Err(_) if full => return Err(self.full(why)),
                Err(_) => return Err(MessageError::NoLeader { name: self.name.to_string(), waited: begun.elapsed(), why }),
            }
        }
    }

    async fn try_once(&self, body: Box<RawValue>, until: Instant) -> SendAttempt<R> {
        // This worker knows the names that it holds before the watch reports them.
        if let Some(epoch) = self.hub.mailboxes.epoch_of(&self.name) {
            return self.to_oneself(epoch, body, until).await;
        }
        let leader = self.claim_in(&self.hub.leaders().borrow());
        let Some(Claim { holder, epoch }) = leader else { return SendAttempt::again("no member holds the name") };
        let is_me = holder == self.hub.life.holder();
        match self.address_of(&holder).filter(|_| !is_me) {
            Some(address) => self.to_another(&holder, &address, epoch, body, until).await,
            None => SendAttempt::again(format!("{} holds the name and takes no messages yet", holder.instance_id)),
        }
    }

    /// The claim on this name.
    fn claim_in(&self, holders: &Holders) -> Option<Claim> {
        holders.get(&Resource::Name(self.name.clone())).map(|held| held.claim.clone())
    }

    fn address_of(&self, holder: &Holder) -> Option<String> {
        let ownership = self.ownership.borrow();
        let member = ownership.view().member(&holder.instance_id)?;
        (member.incarnation == holder.incarnation).then(|| member.metadata.get(ADDRESS_KEY).cloned())?
    }

    async fn to_oneself(&self, epoch: Epoch, body: Box<RawValue>, until: Instant) -> SendAttempt<R> {
        match self.hub.mailboxes.deliver(&self.name, epoch, body) {
            Err(answer) => self.judged(epoch, answer),
            Ok(answer) => match timeout_at(until, answer).await {
                Ok(Ok(answer)) => self.judged(epoch, answer),
                Ok(Err(_)) => self.lost(epoch, "its holder ended before it had replied"),
                Err(_) => self.lost(epoch, "there was no reply in time"),
            },
        }
    }

    async fn to_another(&self, holder: &Holder, address: &str, epoch: Epoch, body: Box<RawValue>, until: Instant) -> SendAttempt<R> {
        let request = match Request::post_json(MESSAGES, &WireMessage { epoch, body }) {
            Ok(request) => Request { to: Addressee::Holder, name: Some(self.name.clone()), ..request },
            Err(error) => return SendAttempt::Done(Err(MessageError::Unwritable(error.to_string()))),
        };
        let Holder { instance_id, incarnation } = holder.clone();
        let (endpoint, attempt) = (MemberEndpoint { instance_id, incarnation, address: address.to_owned() }, Attempt::until(until));
        let answer = tokio::select! {
            answer = self.hub.connections.bring(&endpoint, &request, &attempt) => answer,
            never = self.overtaken(epoch, &attempt.superseded) => match never {},
        };
        match answer {
            Ok(answer) => self.answered(epoch, &answer),
            // What is not proven is not final: that process may not be the holder, and then the message waits for the next one.
            Err(Undelivered::Unsent(why) | Undelivered::Unproven(why)) => SendAttempt::again(why),
            Err(Undelivered::NotMine(_)) => self.judged(epoch, WireAnswer::NotMine),
            Err(Undelivered::Busy(_)) => self.judged(epoch, WireAnswer::Busy),
            Err(Undelivered::Barred(why)) => SendAttempt::Done(Err(self.refused(why))),
            Err(Undelivered::Unknown(why)) => self.lost(epoch, why),
        }
    }

    /// Reports once another member is seen to hold the name, and never ends.
    async fn overtaken(&self, epoch: Epoch, superseded: &CancellationToken) -> Infallible {
        let mut leaders = self.hub.leaders();
        if leaders.wait_for(|now| self.claim_in(now).is_some_and(|claim| claim.epoch > epoch)).await.is_ok() {
            superseded.cancel();
        }
        std::future::pending().await
    }

    fn answered(&self, epoch: Epoch, answer: &Answer) -> SendAttempt<R> {
        match answer.status {
            200 => match serde_json::from_slice(&answer.body) {
                Ok(answer) => self.judged(epoch, answer),
                Err(error) => self.lost(epoch, format!("its holder's answer cannot be read: {error}")),
            },
            // It takes no messages yet: there is no handler.
            404 => self.judged(epoch, WireAnswer::NotMine),
            status => self.lost(epoch, format!("its holder answered with status {status}: {}", String::from_utf8_lossy(&answer.body))),
        }
    }

    fn judged(&self, epoch: Epoch, answer: WireAnswer) -> SendAttempt<R> {
        let reply = |why: String| MessageError::Reply { name: self.name.to_string(), why };
        match answer {
            WireAnswer::Reply(body) => SendAttempt::Done(serde_json::from_str(body.get()).map_err(|error| reply(error.to_string()))),
            WireAnswer::NotMine => SendAttempt::again("its holder is giving up the name or takes no messages yet"),
            WireAnswer::Busy => SendAttempt::Again { why: "its holder has too many messages waiting".into(), full: true },
            WireAnswer::Unreadable(why) => SendAttempt::Done(Err(self.refused(format!("it is not a message of the holder's type: {why}")))),
            WireAnswer::Lost(why) => self.lost(epoch, why),
            WireAnswer::Unwritable(why) => SendAttempt::Done(Err(reply(why))),
        }
    }

    fn full(&self, why: String) -> MessageError {
        MessageError::Full { name: self.name.to_string(), why }
    }

    fn refused(&self, why: String) -> MessageError {
        MessageError::Refused { name: self.name.to_string(), why }
    }

    fn lost(&self, epoch: Epoch, why: impl Into<String>) -> SendAttempt<R> {
        SendAttempt::Done(Err(MessageError::Lost { name: self.name.to_string(), epoch, why: why.into() }))
    }
}

impl<M, R> Clone for SingletonHandle<M, R> {
    fn clone(&self) -> Self {
        Self { hub: Arc::clone(&self.hub), ownership: self.ownership.clone(), name: self.name.clone(), types: PhantomData }
    }
}

impl<M, R> fmt::Debug for SingletonHandle<M, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SingletonHandle({})", self.name)
    }
}
