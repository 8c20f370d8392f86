//! Opens sessions.

use std::fmt;
use std::sync::Arc;

use shardwise_core::routing::{SessionEnd, SessionId, SessionLimits, SessionRefusal};
use shardwise_core::{NotHeld, OwnedKey, ShardKey, write_with_causes};

use super::registry::Sessions;
use super::session::{OpenedSession, Session, SessionHold};
use crate::error::inside_runtime;
use crate::service::ShardingService;
use crate::work::Guard;

/// Why a session is not opened.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// This member does not hold the slot of the key, under exclusive ownership; or it is not a member now.
    #[error("no session is opened here: {0}")]
    NotHeld(NotHeld),
    /// A limit is reached.
    #[error(transparent)]
    Refused(#[from] SessionRefusal),
    /// It was called outside a tokio runtime.
    #[error("a session can only be opened inside a tokio runtime")]
    NoRuntime,
}

impl fmt::Debug for SessionError {
    /// Like [`Display`](fmt::Display), with the causes: `main` prints a returned error by its `Debug`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_causes(f, self)
    }
}

impl ShardingService {
    /// Opens a session for a key at this member. Later requests reach it by its id ([`Session::id`]), from every member, and are answered
    /// by handlers of [`ShardingService::on_session`].
    ///
    /// It ends when it had no request for `limits.idle`, `limits.life` after it was opened, by [`Session::end`], and when this member
    /// leaves or its lease expires. Under exclusive ownership it holds the slot of its key, and also ends when the slot must be handed
    /// over. Under eventual ownership it stays here when the key moves. A member has at most 65,536 sessions.
    ///
    /// # Errors
    ///
    /// [`SessionError`].
    pub fn open_session<K: ShardKey + ?Sized>(&self, key: &K, limits: SessionLimits) -> Result<Session, SessionError> {
        inside_runtime().map_err(|_| SessionError::NoRuntime)?;
        let membership = self.membership();
        let sessions = Sessions::of(membership);
        let guard = if sessions.is_exclusive { Some(self.enter(key).map_err(SessionError::NotHeld)?) } else { None };
        let state_now = membership.read(|ownership, now| (ownership.is_live_at(now), ownership.state_at(now)));
        if let (false, state) = state_now {
            return Err(SessionError::NotHeld(NotHeld::NotLive(state)));
        }
        let finish = guard.as_ref().map(Guard::finish_token);
        let hold = SessionHold { guard, _in_flight: membership.in_flight.token() };
        let state = Arc::new(OpenedSession::new(OwnedKey::of(key), hold, membership.policy.drain_timeout));
        let id = SessionId::new(sessions.life.incarnation(), rand::random());
        sessions.open(id, key.key_hash(), limits, Arc::clone(&state))?;
        sessions.time(membership.changes());
        let session = Session { id, state, sessions: Arc::downgrade(&sessions) };
        if let Some(finish) = finish {
            let session = session.clone();
            tokio::spawn(async move {
                tokio::select! {
                    () = finish.cancelled() => {}
                    _ = session.ended() => return,
                }
                if let Some(sessions) = session.sessions.upgrade() {
                    sessions.end(&session.id, SessionEnd::Moved);
                }
            });
        }
        Ok(session)
    }
}
