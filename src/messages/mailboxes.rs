//! The names that take messages here, each with its epoch.

use std::collections::HashMap;
use std::sync::{Mutex, Weak};

use serde_json::value::RawValue;
use shardwise_core::{ClaimName, Epoch};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::wire::WireAnswer;
use crate::error::locked;
use crate::work::Guard;

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
