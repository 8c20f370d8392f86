//! The sessions that one member has open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use shardwise_core::routing::{SessionEnd, SessionId, SessionLimits, SessionRefusal, SessionTable};
use shardwise_core::{Incarnation, Moment, OwnershipMode};
use shardwise_discovery::Clock;
use tokio::sync::Notify;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::session::{OpenedSession, Session};
use crate::error::locked;
use crate::membership::{Life, OwnershipContext};

/// The most sessions of one member.
const SESSIONS_MAX: usize = 65_536;

/// The sessions of one member. It keeps no service alive.
pub(in crate::requests) struct Sessions {
    pub(super) clock: Clock,
    pub(super) life: Life,
    pub(super) is_exclusive: bool,
    tables: Mutex<SessionTables>,
    /// Signals that a session was opened or has ended, and the end of this value.
    pub(super) changed: Arc<Notify>,
    /// Whether the timer runs.
    pub(super) timed: OnceLock<()>,
}

struct SessionTables {
    table: SessionTable,
    /// Those of the table.
    open: HashMap<SessionId, Arc<OpenedSession>>,
}

/// A request of a session, until this is dropped.
pub(super) struct SessionUse {
    sessions: Arc<Sessions>,
    pub(super) session: Session,
    /// The callback of the session's end waits for it.
    _in_progress: TaskTrackerToken,
}

impl Sessions {
    pub(in crate::requests) fn of(context: &OwnershipContext) -> Arc<Self> {
        context.extensions.get_or_make(|| Self {
            clock: context.clock.clone(),
            life: context.life.clone(),
            is_exclusive: context.policy.ownership == OwnershipMode::Exclusive,
            tables: Mutex::new(SessionTables { table: SessionTable::new(SESSIONS_MAX), open: HashMap::new() }),
            changed: Arc::default(),
            timed: OnceLock::new(),
        })
    }

    /// How many sessions are open.
    pub(in crate::requests) fn len(&self) -> usize {
        locked(&self.tables).table.len()
    }

    pub(super) fn open(&self, id: SessionId, key: u64, limits: SessionLimits, state: Arc<OpenedSession>) -> Result<(), SessionRefusal> {
        let mut tables = locked(&self.tables);
        tables.table.open(self.clock.now(), id, key, limits)?;
        tables.open.insert(id, state);
        drop(tables);
        self.changed.notify_one();
        Ok(())
    }

    /// Begins a request of a session; `None` if it is not open.
    pub(super) fn begin(self: &Arc<Self>, id: &SessionId) -> Option<SessionUse> {
        let mut tables = locked(&self.tables);
        if !tables.table.begin(self.clock.now(), id) {
            return None;
        }
        // Under the lock, so that its end comes before or waits for it.
        let used = tables.open.get(id).map(|state| (Arc::clone(state), state.requests.token()));
        drop(tables);
        let (state, in_progress) = used?;
        let session = Session { id: *id, state, sessions: Arc::downgrade(self) };
        Some(SessionUse { sessions: Arc::clone(self), session, _in_progress: in_progress })
    }

    /// Ends a session. Returns whether it was open.
    pub(super) fn end(&self, id: &SessionId, why: SessionEnd) -> bool {
        let mut tables = locked(&self.tables);
        tables.table.end(id);
        let state = tables.open.remove(id);
        drop(tables);
        state.inspect(|state| state.finish(why)).is_some()
    }

    pub(super) fn end_all(&self, why: SessionEnd) {
        let mut tables = locked(&self.tables);
        tables.table.end_where(|_| true);
        let ended = std::mem::take(&mut tables.open);
        drop(tables);
        for state in ended.values() {
            state.finish(why);
        }
    }

    /// Ends the sessions that other incarnations of this member have opened.
    pub(super) fn end_former(&self, present: Incarnation) {
        let former: Vec<_> = locked(&self.tables).open.keys().copied().filter(|id| id.minter() != present).collect();
        for id in &former {
            self.end(id, SessionEnd::Left);
        }
    }

    /// Ends the sessions that are due.
    pub(super) fn expire(&self) {
        let mut tables = locked(&self.tables);
        let due = tables.table.expire(self.clock.now());
        let ended: Vec<_> = due.into_iter().filter_map(|(id, why)| Some((tables.open.remove(&id)?, why))).collect();
        drop(tables);
        for (state, why) in &ended {
            state.finish(*why);
        }
    }

    pub(super) fn next_due(&self) -> Option<Moment> {
        locked(&self.tables).table.next_due()
    }

    fn finished(&self, id: &SessionId) {
        locked(&self.tables).table.finish(self.clock.now(), id);
    }
}

impl Drop for SessionUse {
    fn drop(&mut self) {
        self.sessions.finished(&self.session.id);
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.changed.notify_one();
    }
}
