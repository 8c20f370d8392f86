//! The holder's side: messages one after another, each with its reply.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, Weak};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use shardwise_core::{ClaimName, Epoch};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::hub::MessageHub;
use super::wire::{MESSAGE_BYTES_MAX, WireAnswer};
use crate::error::{Result, locked};
use crate::work::{Guard, Tenure};

/// The messages of one period of holding a name. Created by [`crate::Tenure::messages`]; dropping it returns those that were not taken to
/// their senders, which send them to the next holder.
pub struct Inbox<M, R> {
    queue: mpsc::Receiver<Envelope>,
    number: u64,
    mailboxes: Arc<Mailboxes>,
    epoch: Epoch,
    cancel: CancellationToken,
    guard: Weak<Guard>,
    types: PhantomData<fn() -> (M, R)>,
}

impl Tenure {
    /// The messages that members send to the holder of this name ([`crate::Singleton::handle`]), each of which needs a reply. One inbox at
    /// a time: a second one replaces the first, which then ends. Messages that still wait when the work has to end go to the next holder.
    ///
    /// The first call makes this worker listen, unless [`crate::Singleton::handle`] has, and publishes its address; until then messages
    /// wait. It is an [`ErrorKind::Settings`](crate::ErrorKind::Settings) if it cannot listen at `peer_listen`.
    pub async fn messages<M, R>(&self) -> Result<Inbox<M, R>> {
        let hub = MessageHub::of(self.guard().context());
        hub.open().await?;
        let (epoch, cancel, guard) = (self.epoch(), self.cancel().clone(), Arc::downgrade(self.guard()));
        let (number, queue) = hub.mailboxes.open(self.name().clone(), epoch, guard.clone(), cancel.clone());
        Ok(Inbox { queue, number, mailboxes: Arc::clone(&hub.mailboxes), epoch, cancel, guard, types: PhantomData })
    }
}

/// A message and the means to reply.
#[derive(Debug)]
pub struct Message<M, R> {
    /// The message.
    pub body: M,
    /// The epoch under which it is handled, for your writes.
    pub epoch: Epoch,
    /// Sends the reply once the message is handled.
    pub reply: Reply<R>,
}

/// The means to reply to a message's sender. Dropping it reports to the sender that the outcome is unknown.
pub struct Reply<R> {
    answer: Option<oneshot::Sender<WireAnswer>>,
    guard: Weak<Guard>,
    type_: PhantomData<fn(R)>,
}

impl<R> std::fmt::Debug for Reply<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reply")
    }
}

impl<M, R> std::fmt::Debug for Inbox<M, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inbox(under epoch {})", self.epoch)
    }
}

impl<M: DeserializeOwned, R: Serialize> Inbox<M, R> {
    /// The next message; `None` once the work has to end: messages that were not taken then go to the next holder. Cancel safe.
    pub async fn recv(&mut self) -> Option<Message<M, R>> {
        loop {
            let envelope = tokio::select! {
                biased;
                () = self.cancel.cancelled() => None,
                envelope = self.queue.recv() => envelope,
            };
            let Some(mut envelope) = envelope.filter(|_| self.guard.upgrade().is_some_and(|guard| guard.is_held())) else {
                self.close();
                return None;
            };
            // A sender that has stopped waiting already counts it as possibly handled; it is better not to handle it.
            let Some(answer) = envelope.answer.take().filter(|answer| !answer.is_closed()) else { continue };
            match serde_json::from_str(envelope.body.get()) {
                Ok(body) => {
                    let reply = Reply { answer: Some(answer), guard: Weak::clone(&self.guard), type_: PhantomData };
                    return Some(Message { body, epoch: self.epoch, reply });
                }
                Err(error) => drop(answer.send(WireAnswer::Unreadable(error.to_string()))),
            }
        }
    }
}

impl<M, R> Inbox<M, R> {
    fn close(&mut self) {
        self.mailboxes.remove(self.number);
        self.queue.close();
        while self.queue.try_recv().is_ok() {}
    }
}

impl<M, R> Drop for Inbox<M, R> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<R: Serialize> Reply<R> {
    /// Reports to the sender that its message was handled, with the result. If the name was lost meanwhile, the outcome counts as
    /// unknown: writes under the old epoch may have been refused.
    pub fn send(mut self, reply: R) {
        let Some(answer) = self.answer.take() else { return };
        let held = self.guard.upgrade().is_some_and(|guard| guard.is_held());
        let _ = answer.send(if held { written(&reply) } else { WireAnswer::Lost("its holder lost the name before it had replied".into()) });
    }
}

fn written(reply: &impl Serialize) -> WireAnswer {
    match to_raw_value(reply) {
        Ok(reply) if reply.get().len() <= MESSAGE_BYTES_MAX => WireAnswer::Reply(reply),
        Ok(reply) => WireAnswer::Unwritable(format!("it has {} bytes as JSON; at most {MESSAGE_BYTES_MAX} are allowed", reply.get().len())),
        Err(error) => WireAnswer::Unwritable(error.to_string()),
    }
}

impl<R> Drop for Reply<R> {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            let _ = answer.send(WireAnswer::Lost("its holder took it and gave no reply".into()));
        }
    }
}

/// The most messages that wait for one name's holder.
pub(super) const INBOX_MAX: usize = 256;

#[derive(Default)]
pub(super) struct Mailboxes(Mutex<MailboxTable>);

#[derive(Default)]
struct MailboxTable {
    opened: u64,
    open: HashMap<ClaimName, Mailbox>,
}

/// A message on its way to its holder. One that is dropped before was not handled.
pub(super) struct Envelope {
    pub(super) body: Box<RawValue>,
    pub(super) answer: Option<oneshot::Sender<WireAnswer>>,
}

impl Drop for Envelope {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            let _ = answer.send(WireAnswer::NotMine);
        }
    }
}

struct Mailbox {
    /// Another one each time the name's mailbox is opened.
    number: u64,
    epoch: Epoch,
    /// Weak, so that it does not keep the name from going to another member.
    guard: Weak<Guard>,
    cancel: CancellationToken,
    queue: mpsc::Sender<Envelope>,
}

impl Mailbox {
    fn takes(&self) -> bool {
        let held = self.guard.upgrade().is_some_and(|guard| guard.is_held() && !guard.is_asked_to_finish());
        held && !self.cancel.is_cancelled()
    }
}

impl Mailboxes {
    /// Opens a mailbox and returns its number; an earlier one of the same name takes nothing from here on.
    pub(super) fn open(
        &self,
        name: ClaimName,
        epoch: Epoch,
        guard: Weak<Guard>,
        cancel: CancellationToken,
    ) -> (u64, mpsc::Receiver<Envelope>) {
        let (queue, envelopes) = mpsc::channel(INBOX_MAX);
        let mut table = locked(&self.0);
        table.opened += 1;
        let number = table.opened;
        table.open.insert(name, Mailbox { number, epoch, guard, cancel, queue });
        (number, envelopes)
    }

    pub(super) fn remove(&self, number: u64) {
        locked(&self.0).open.retain(|_, mailbox| mailbox.number != number);
    }

    /// The epoch under which messages to that name are taken here.
    pub(super) fn epoch_of(&self, name: &ClaimName) -> Option<Epoch> {
        locked(&self.0).open.get(name).filter(|mailbox| mailbox.takes()).map(|mailbox| mailbox.epoch)
    }

    /// Delivers a message, or returns why not. If no answer follows, the outcome is unknown.
    pub(super) fn deliver(&self, name: &ClaimName, epoch: Epoch, body: Box<RawValue>) -> Result<oneshot::Receiver<WireAnswer>, WireAnswer> {
        let table = locked(&self.0);
        let mailbox = table.open.get(name).filter(|mailbox| mailbox.epoch == epoch && mailbox.takes()).ok_or(WireAnswer::NotMine)?;
        let (answer, receiver) = oneshot::channel();
        match mailbox.queue.try_reserve() {
            Ok(place) => {
                place.send(Envelope { body, answer: Some(answer) });
                Ok(receiver)
            }
            Err(mpsc::error::TrySendError::Full(())) => Err(WireAnswer::Busy),
            Err(mpsc::error::TrySendError::Closed(())) => Err(WireAnswer::NotMine),
        }
    }
}
