//! One session.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use shardwise_core::OwnedKey;
use shardwise_core::routing::{SessionEnd, SessionId};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::registry::Sessions;
use crate::error::locked;
use crate::work::Guard;

/// What is called at the end of a session.
type EndCallback = Box<dyn FnOnce(SessionEnd) -> BoxFuture<'static, ()> + Send>;

/// A session that this member has opened. Clones are the same session; dropping them does not end it.
#[derive(Clone)]
pub struct Session {
    pub(super) id: SessionId,
    pub(super) state: Arc<OpenedSession>,
    pub(super) sessions: Weak<Sessions>,
}

/// What the clones of one session share.
pub(super) struct OpenedSession {
    pub(super) key: OwnedKey,
    /// Why it has ended, once it has.
    pub(super) end: watch::Sender<Option<SessionEnd>>,
    /// Its requests in progress.
    pub(super) requests: TaskTracker,
    /// Cancelled once the slot of its key is lost.
    pub(super) lost: CancellationToken,
    /// What it holds until the callback of its end has ended.
    hold: Mutex<Option<SessionHold>>,
    on_end: Mutex<EndCall>,
    runtime: Handle,
    /// How long the callback of its end may take.
    patience: Duration,
}

/// What a session holds: under exclusive ownership the slot of its key. A leaving member waits for it.
pub(super) struct SessionHold {
    pub(super) guard: Option<Guard>,
    pub(super) _in_flight: TaskTrackerToken,
}

enum EndCall {
    None,
    Callback(EndCallback),
    /// The session has ended for that reason, and the callback was called if there was one.
    Called(SessionEnd),
}

impl Session {
    /// Its id, which callers send with their requests ([`To::Session`](crate::requests::To::Session)). Any caller that has it can use the
    /// session.
    pub const fn id(&self) -> &SessionId {
        &self.id
    }

    /// The key that it was opened for.
    pub fn key(&self) -> &OwnedKey {
        &self.state.key
    }

    /// Calls `end` once the session has ended, whatever the reason; at once if it has ended already. Only one callback is kept, the last
    /// one.
    ///
    /// It is called when no request of the session is in progress any more, and it may take as long as the policy's `drain_timeout`: roll
    /// back here. Under exclusive ownership the slot is held until it has ended, unless it is lost before: in a handover after
    /// `drain_timeout` in all, or if this member loses its lease. The callback goes on then, so writes of it need the fence.
    pub fn on_end<W>(&self, end: impl FnOnce(SessionEnd) -> W + Send + 'static)
    where
        W: Future<Output = ()> + Send + 'static,
    {
        let callback: EndCallback = Box::new(move |why| Box::pin(end(why)));
        let mut call = locked(&self.state.on_end);
        let EndCall::Called(why) = &*call else {
            *call = EndCall::Callback(callback);
            return;
        };
        let why = *why;
        drop(call);
        let state = Arc::clone(&self.state);
        self.state.runtime.spawn(async move { state.call(callback, why).await });
    }

    /// Ends the session. Returns whether it was open. Requests of it that are in progress go on, also the one that calls this.
    pub fn end(&self) -> bool {
        self.sessions.upgrade().is_some_and(|sessions| sessions.end(&self.id, SessionEnd::Closed))
    }

    /// Waits until the session has ended, and returns why.
    pub async fn ended(&self) -> SessionEnd {
        let mut end = self.state.end.subscribe();
        let ended = end.wait_for(Option::is_some).await.ok().and_then(|end| *end);
        // Its sender is in this value, so it is always known.
        ended.unwrap_or(SessionEnd::Left)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({:?}, ended: {:?})", self.id, *self.state.end.borrow())
    }
}

impl OpenedSession {
    pub(super) fn new(key: OwnedKey, hold: SessionHold, patience: Duration) -> Self {
        let lost = hold.guard.as_ref().map_or_else(CancellationToken::new, |guard| guard.lost_token().clone());
        Self {
            key,
            end: watch::Sender::new(None),
            requests: TaskTracker::new(),
            lost,
            hold: Mutex::new(Some(hold)),
            on_end: Mutex::new(EndCall::None),
            runtime: Handle::current(),
            patience,
        }
    }

    /// The session has left the registry: no request of it begins any more.
    pub(super) fn finish(self: &Arc<Self>, why: SessionEnd) {
        self.requests.close();
        self.end.send_replace(Some(why));
        let state = Arc::clone(self);
        self.runtime.spawn(async move {
            state.requests.wait().await;
            let call = std::mem::replace(&mut *locked(&state.on_end), EndCall::Called(why));
            if let EndCall::Callback(callback) = call {
                state.call(callback, why).await;
            }
            drop(locked(&state.hold).take());
        });
    }

    /// Waits until its requests in progress have to stop. After a close, and while the slot is being handed over, they may end by
    /// themselves.
    pub(super) async fn aborted(&self) -> SessionEnd {
        let mut end = self.end.subscribe();
        tokio::select! {
            over = end.wait_for(|end| matches!(end, Some(SessionEnd::Expired | SessionEnd::Idle | SessionEnd::Left))) => {
                over.ok().and_then(|why| *why).unwrap_or(SessionEnd::Left)
            }
            () = self.lost.cancelled() => SessionEnd::Moved,
        }
    }

    async fn call(&self, callback: EndCallback, why: SessionEnd) {
        // A separate task, so that a panic ends only that.
        let called = AbortOnDropHandle::new(tokio::spawn(callback(why)));
        match timeout(self.patience, called).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => tracing::error!(end = why.as_str(), "the callback of a session's end panicked"),
            Err(_) => {
                tracing::warn!(end = why.as_str(), "the callback of a session's end took longer than {:?} and was ended", self.patience);
            }
        }
    }
}
