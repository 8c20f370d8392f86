//! How many members there are, and what is done to them.

use std::time::Duration;

use crate::figures;
use crate::meeting::Kind;

/// How large it is, and for how long it is watched.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) processes: usize,
    pub(crate) members: usize,
    pub(crate) slots: u32,
    pub(crate) ttl: Duration,
    pub(crate) lasts: Duration,
    /// Between joins and leaves.
    pub(crate) pace: Duration,
    pub(crate) settles_within: Duration,
    pub(crate) is_soak: bool,
}

impl Shape {
    /// The soak's is `None` in a test run on backends that have other scenes with many members.
    pub(crate) fn of(kind: Kind) -> Option<Self> {
        let small = Self {
            processes: 3,
            members: 4,
            slots: 64,
            ttl: Duration::from_secs(3),
            lasts: Duration::from_secs(12),
            pace: Duration::from_secs(1),
            settles_within: Duration::from_mins(1),
            is_soak: false,
        };
        match figures::wanted() {
            None => (!matches!(kind, Kind::Consul | Kind::Etcd)).then_some(small),
            Some(minutes) => Some(Self {
                processes: 16,
                members: if kind == Kind::Consul { 19 } else { 64 },
                slots: 4_096,
                ttl: Duration::from_secs(30),
                lasts: Duration::from_secs(60 * u64::try_from(minutes).unwrap()),
                pace: Duration::from_secs(10),
                settles_within: Duration::from_mins(10),
                is_soak: true,
            }),
        }
    }

    /// What is done, and when: three processes are killed, and in a soak two leading servers in between.
    pub(crate) fn events(&self) -> Vec<(Duration, Event)> {
        let toggles = (1..).map(|number| self.pace * number).take_while(|at| *at < self.lasts).map(|at| (at, Event::Toggle));
        let kills = (1..4).map(|quarter| (self.lasts * quarter / 4, Event::Kill));
        let leaders = [3, 5].into_iter().filter(|_| self.is_soak).map(|eighth| (self.lasts * eighth / 8, Event::Leader));
        let mut events: Vec<_> = toggles.chain(kills).chain(leaders).collect();
        events.sort_by_key(|(at, _)| *at);
        events
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A member joins, or leaves in good order.
    Toggle,
    /// A process is killed, and started again once its members are gone.
    Kill,
    /// The server that leads is killed and started again.
    Leader,
}
