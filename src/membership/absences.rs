//! Members that have left for a while (`rejoin_grace`), and how long their places are kept.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use shardwise_core::{Incarnation, InstanceId, MemberState, Moment, View};

use crate::error::locked;

/// A member that has left for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Absence {
    /// The member.
    pub instance_id: InstanceId,
    /// The longest time for which its place is still kept: `rejoin_grace` less the time for which it has been seen away. An observer that
    /// started only after it left sees up to the whole `rejoin_grace`; records carry no times, because clocks differ between machines.
    pub within: Duration,
}

/// Since when each member's incarnation has been seen away.
#[derive(Default)]
pub(crate) struct Absences(Mutex<BTreeMap<InstanceId, (Incarnation, Moment)>>);

impl Absences {
    pub(crate) fn on_view(&self, view: &View, now: Moment) {
        let mut seen = locked(&self.0);
        let away = view.members().iter().filter(|member| member.state == MemberState::Away);
        *seen = away
            .map(|member| {
                let known = seen.get(&member.instance_id).filter(|(incarnation, _)| *incarnation == member.incarnation);
                (member.instance_id.clone(), (member.incarnation, known.map_or(now, |(_, since)| *since)))
            })
            .collect();
    }

    /// The members that are away in that view, with places kept for `grace`.
    pub(crate) fn of_view(&self, view: &View, grace: Duration, now: Moment) -> Vec<Absence> {
        let seen = locked(&self.0);
        let away = view.members().iter().filter(|member| member.state == MemberState::Away);
        away.map(|member| {
            let for_long = seen.get(&member.instance_id).map_or(Duration::ZERO, |(_, since)| now.since(*since));
            Absence { instance_id: member.instance_id.clone(), within: grace.saturating_sub(for_long) }
        })
        .collect()
    }
}
