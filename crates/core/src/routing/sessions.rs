//! The sessions that one member has opened: their limits, and when they end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::SessionId;
use crate::Moment;

/// The shortest time limit; a shorter one counts as this.
const LIMIT_MIN: Duration = Duration::from_millis(1);

/// The limits of one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLimits {
    /// It ends after so long without a request, at least a millisecond.
    pub idle: Duration,
    /// It ends so long after it was opened, at least a millisecond.
    pub life: Duration,
    /// How many sessions the key may have on this member.
    pub per_key: u32,
}

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SessionEnd {
    /// It had no request for its idle time.
    Idle,
    /// Its longest life was over.
    Expired,
    /// The worker's code or the caller closed it.
    Closed,
    /// Under exclusive ownership: this member gave up the slot of its key.
    Moved,
    /// The member left, or its lease expired.
    Left,
}

impl SessionEnd {
    /// The name in output and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Expired => "expired",
            Self::Closed => "closed",
            Self::Moved => "moved",
            Self::Left => "left",
        }
    }
}

/// Why a session is not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionRefusal {
    /// The key has as many as its limit allows.
    #[error("the key has {most} sessions here, and no more are allowed: end one, or raise the limit")]
    PerKey {
        /// The limit.
        most: u32,
    },
    /// The member has as many as it allows.
    #[error("this member has {most} sessions, and no more are allowed: try again later")]
    InAll {
        /// The limit.
        most: usize,
    },
    /// A session has this id already, so the id was not random.
    #[error("a session has this id already: draw another one at random")]
    Taken,
}

#[derive(Debug, Clone, Copy)]
struct OpenSession {
    /// The hash of its key.
    key: u64,
    idle: Duration,
    /// The end of its longest life.
    ends: Moment,
    /// When it was opened, touched, or its last request ended.
    touched: Moment,
    /// Its requests in progress.
    requests: u32,
    /// Its entry in the queue, never later than it is due.
    queued: Moment,
}

impl OpenSession {
    /// When it ends unless it is used, and why. Idle time does not count during a request.
    fn due(&self) -> (Moment, SessionEnd) {
        let idle = self.touched.plus(self.idle);
        if self.requests > 0 || self.ends <= idle { (self.ends, SessionEnd::Expired) } else { (idle, SessionEnd::Idle) }
    }

    /// The earliest moment after `now` at which it may be due.
    fn next_check(&self, now: Moment) -> Moment {
        let idle_from = if self.requests > 0 { now } else { self.touched };
        self.ends.min(idle_from.plus(self.idle))
    }
}

/// The open sessions of one incarnation of a member. Nothing of it remains once they have ended.
///
/// The caller draws the ids, and calls [`SessionTable::expire`] no later than at [`SessionTable::next_due`].
#[derive(Debug)]
pub struct SessionTable {
    most: usize,
    open: BTreeMap<SessionId, OpenSession>,
    /// How many each key has, by its hash.
    per_key: BTreeMap<u64, u32>,
    queue: BTreeSet<(Moment, SessionId)>,
}

impl SessionTable {
    /// No session is open; at most `most` will be.
    pub const fn new(most: usize) -> Self {
        Self { most, open: BTreeMap::new(), per_key: BTreeMap::new(), queue: BTreeSet::new() }
    }

    /// Opens a session for the key with that hash.
    ///
    /// # Errors
    ///
    /// [`SessionRefusal`]; nothing is opened then.
    pub fn open(&mut self, now: Moment, id: SessionId, key: u64, limits: SessionLimits) -> Result<(), SessionRefusal> {
        if self.open.len() >= self.most {
            return Err(SessionRefusal::InAll { most: self.most });
        }
        if self.of_key(key) >= limits.per_key {
            return Err(SessionRefusal::PerKey { most: limits.per_key });
        }
        if self.open.contains_key(&id) {
            return Err(SessionRefusal::Taken);
        }
        let (idle, ends) = (limits.idle.max(LIMIT_MIN), now.plus(limits.life.max(LIMIT_MIN)));
        let mut session = OpenSession { key, idle, ends, touched: now, requests: 0, queued: now };
        session.queued = session.next_check(now);
        self.queue.insert((session.queued, id));
        self.open.insert(id, session);
        *self.per_key.entry(key).or_default() += 1;
        Ok(())
    }

    /// Begins the idle time of a session anew. Returns whether it is open.
    pub fn touch(&mut self, now: Moment, id: &SessionId) -> bool {
        let Some(session) = self.live(now, id) else { return false };
        session.touched = now;
        true
    }

    /// A request of a session begins; [`SessionTable::finish`] ends it. Returns whether the session is open; nothing begins if not.
    pub fn begin(&mut self, now: Moment, id: &SessionId) -> bool {
        let Some(session) = self.live(now, id) else { return false };
        session.requests = session.requests.saturating_add(1);
        true
    }

    /// A request of a session ended, and its idle time begins anew. Nothing happens if the session has ended meanwhile.
    pub fn finish(&mut self, now: Moment, id: &SessionId) {
        if let Some(session) = self.open.get_mut(id) {
            session.requests = session.requests.saturating_sub(1);
            session.touched = now;
        }
    }

    /// A session that is open and not due. One that is due is not used any more, even if `expire` has not been called yet.
    fn live(&mut self, now: Moment, id: &SessionId) -> Option<&mut OpenSession> {
        self.open.get_mut(id).filter(|session| now < session.due().0)
    }

    /// Ends a session. Returns whether it was open.
    pub fn end(&mut self, id: &SessionId) -> bool {
        let Some(session) = self.open.remove(id) else { return false };
        self.queue.remove(&(session.queued, *id));
        if let Some(count) = self.per_key.get_mut(&session.key) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.per_key.remove(&session.key);
            }
        }
        true
    }

    /// Ends the sessions of all keys whose hash is chosen, such as those of a slot, and returns them.
    pub fn end_where(&mut self, is_chosen: impl Fn(u64) -> bool) -> Vec<SessionId> {
        let chosen: Vec<_> = self.open.iter().filter(|(_, session)| is_chosen(session.key)).map(|(id, _)| *id).collect();
        for id in &chosen {
            self.end(id);
        }
        chosen
    }

    /// Ends the sessions that are due, and returns them with the reason.
    pub fn expire(&mut self, now: Moment) -> Vec<(SessionId, SessionEnd)> {
        let mut checked = Vec::new();
        while let Some((_, id)) = self.queue.first().copied().filter(|(check, _)| *check <= now) {
            self.queue.pop_first();
            checked.push(id);
        }
        let mut ended = Vec::new();
        for id in checked {
            let Some(session) = self.open.get_mut(&id) else { continue };
            let (due, why) = session.due();
            session.queued = session.next_check(now);
            self.queue.insert((session.queued, id));
            if due <= now {
                ended.push((id, why));
            }
        }
        for (id, _) in &ended {
            self.end(id);
        }
        ended
    }

    /// When [`SessionTable::expire`] must be called next; `None` without sessions. It may be earlier than the first one ends.
    pub fn next_due(&self) -> Option<Moment> {
        self.queue.first().map(|(due, _)| *due)
    }

    /// Whether a session is open and not due.
    pub fn is_open(&self, now: Moment, id: &SessionId) -> bool {
        self.open.get(id).is_some_and(|session| now < session.due().0)
    }

    /// How many sessions the key with that hash has.
    pub fn of_key(&self, key: u64) -> u32 {
        self.per_key.get(&key).copied().unwrap_or(0)
    }

    /// How many sessions are open.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether no session is open.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

#[cfg(test)]
mod tests;
