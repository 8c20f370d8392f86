//! Drained members: an operator's request that a member stays and owns nothing. It is stored in a note of the group, so that it outlives
//! the member's restarts, and each member follows it for itself.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shardwise_core::{ClaimName, InstanceId, Ownership, Policy, ServiceState, View};
use shardwise_discovery::{Discovery, NOTE_BYTES_MAX, Note, WriteOutcome};
use tokio::sync::{mpsc, oneshot, watch};

use super::driver::DriverCommand;
use super::note_book::NoteBook;
use crate::error::{Error, ErrorKind, Result};

/// The note's name. Names for daemons and timers start with their kind and a slash.
const NAME: &str = "drained";
/// How often a change of the note is retried because another writer was faster.
const ATTEMPTS: u32 = 16;
/// How long joining waits for the answer whether this member is drained; the note is read again soon after.
const HEARD_WITHIN: Duration = Duration::from_secs(1);

/// The note's content, the latest request last.
#[derive(Debug, Default, Serialize, Deserialize)]
struct DrainNote {
    drained: Vec<InstanceId>,
}

#[derive(Clone)]
pub(crate) struct DrainStore(NoteBook);

impl DrainStore {
    /// `None` if the backend does not support notes: then no member can be drained. Each call may take `limit`.
    pub(crate) fn of(policy: &Policy, limit: Duration, backend: &Arc<dyn Discovery>) -> Option<Self> {
        backend.as_notes()?;
        let name = ClaimName::new(NAME).ok()?;
        Some(Self(NoteBook::new(Arc::clone(backend), policy.group.clone(), name, limit)))
    }

    async fn read(&self) -> Result<(DrainNote, u64)> {
        let note = self.0.read().await?;
        let wishes = note.as_ref().map_or_else(|| Ok(DrainNote::default()), decoded)?;
        Ok((wishes, note.map_or(0, |note| note.version)))
    }

    pub(crate) async fn drained(&self) -> Result<Vec<InstanceId>> {
        Ok(self.read().await?.0.drained)
    }

    /// Stores whether this member is drained. Returns `false` if that was stored already.
    pub(crate) async fn set(&self, id: &InstanceId, drained: bool, view: &View) -> Result<bool> {
        for _ in 0..ATTEMPTS {
            let (mut wishes, version) = self.read().await?;
            if wishes.drained.contains(id) == drained {
                return Ok(false);
            }
            wishes.drained.retain(|known| known != id);
            wishes.drained.extend(drained.then(|| id.clone()));
            if let WriteOutcome::Written(_) = self.0.write(version, &fitting(wishes, view)?).await? {
                return Ok(true);
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the list of drained members keeps changing; try again"))
    }
}

fn decoded(note: &Note) -> Result<DrainNote> {
    serde_json::from_str(&note.text).map_err(|_| {
        let said = shardwise_discovery::one_line(&note.text);
        let message =
            format!("the note {NAME:?} cannot be read: {said:?}; it was edited by hand; write it like {{\"drained\":[\"worker-1\"]}}");
        Error::new(ErrorKind::Backend, message)
    })
}

/// The content as text. If it is too long, the oldest requests for absent members are dropped: those with generated ids never return.
fn fitting(mut wishes: DrainNote, view: &View) -> Result<String> {
    loop {
        let text = serde_json::to_string(&wishes).map_err(|error| Error::new(ErrorKind::Backend, error.to_string()))?;
        if text.len() <= NOTE_BYTES_MAX {
            return Ok(text);
        }
        let Some(gone) = wishes.drained.iter().position(|id| view.member(id).is_none()) else {
            let message = format!(
                "{} members are drained, and no more fit into the note of the group; undrain or stop some",
                wishes.drained.len() - 1
            );
            return Err(Error::new(ErrorKind::Settings, message));
        };
        wishes.drained.remove(gone);
    }
}

#[derive(Clone)]
pub(crate) struct DrainFollower {
    pub(crate) drains: DrainStore,
    pub(crate) me: InstanceId,
    /// The poll interval: with the timeout of a read it is below a TTL, so a request is seen within one.
    pub(crate) read_every: Duration,
}

impl DrainFollower {
    /// Whether this member is drained, before it joins: after a restart it must not own slots even briefly. It does not wait long for the
    /// answer: a worker that starts while the backend is unreachable may own slots for up to half a TTL once it is reachable.
    pub(crate) async fn wanted_at_start(&self) -> Option<bool> {
        let read = tokio::time::timeout(HEARD_WITHIN, self.drains.drained()).await;
        let drained = read.ok()?.ok()?;
        Some(drained.contains(&self.me))
    }

    /// Passes the request to the driver until the service is gone. Does not read while the worker is not a member.
    pub(crate) async fn follow(
        self,
        ways: mpsc::WeakSender<(DriverCommand, oneshot::Sender<()>)>,
        ownership: watch::Receiver<Arc<Ownership>>,
        mut noted: watch::Receiver<()>,
    ) {
        let mut complaint = None;
        loop {
            let is_member = matches!(ownership.borrow().state(), ServiceState::Active | ServiceState::Refused);
            if is_member {
                match self.drains.drained().await {
                    Ok(drained) => {
                        complaint = None;
                        let Some(way) = ways.upgrade() else { return };
                        let (taken, answer) = oneshot::channel();
                        if way.send((DriverCommand::Drain(drained.contains(&self.me)), taken)).await.is_err() || answer.await.is_err() {
                            return;
                        }
                    }
                    // The driver logs outages.
                    Err(error) if error.is_retryable() => {}
                    Err(error) => {
                        let said = Some(error.to_string());
                        if complaint != said {
                            tracing::info!(%error, "the list of drained members cannot be read, so this worker cannot be drained; it continues as before");
                            complaint = said;
                        }
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(self.read_every) => {}
                changed = noted.changed() => if changed.is_err() { return },
            }
            if ways.strong_count() == 0 {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shardwise_core::Member;

    fn id(name: &str) -> InstanceId {
        InstanceId::new(name).unwrap()
    }

    #[test]
    fn who_is_gone_is_forgotten_when_the_note_is_full_and_who_is_there_is_not() {
        let here = View::new(1, vec![Member::named(id("here"))]);
        let many = |last: &str| DrainNote {
            drained: std::iter::once(id("here")).chain((0..300).map(|n| id(&format!("worker-number-{n}")))).chain([id(last)]).collect(),
        };
        let text = fitting(many("last"), &here).unwrap();
        assert!(text.len() <= NOTE_BYTES_MAX && text.starts_with("{\"drained\":[\"here\",") && text.ends_with("\"last\"]}"), "{text}");
        let all_here = View::new(1, many("last").drained.into_iter().map(Member::named).collect());
        let error = fitting(many("last"), &all_here).unwrap_err();
        assert!(error.to_string().starts_with("301 members are drained"), "{error}");
    }
}
