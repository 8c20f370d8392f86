//! The health of the worker that a member speaks for: what its checks say, what the record says of it, and which members are drained for
//! it.

use crate::{InstanceId, MemberState, View, WorkerHealth};

/// Consecutive failed checks after which the worker counts as failing, and successful ones after which it counts as working.
pub const CHECKS_IN_A_ROW: u32 = 3;
/// One check earlier the record says so: when a member decides whether it may drain, it knows who else fails.
const MARKED_AFTER: u32 = CHECKS_IN_A_ROW - 1;

/// Counts the checks of one worker. It counts as absent until the first check that succeeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerChecks {
    state: CheckState,
    /// How many checks in a row say the opposite of `state`.
    against: u32,
    /// When the latest row of failures was long enough for the record.
    since: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckState {
    Absent,
    Works,
    Fails,
}

impl Default for WorkerChecks {
    fn default() -> Self {
        Self { state: CheckState::Absent, against: 0, since: 0 }
    }
}

impl WorkerChecks {
    /// What the record is to say.
    pub fn health(&self) -> Option<WorkerHealth> {
        match self.state {
            CheckState::Absent => Some(WorkerHealth::Absent),
            CheckState::Works if self.against < MARKED_AFTER => None,
            CheckState::Works | CheckState::Fails => Some(WorkerHealth::Failing(self.since)),
        }
    }

    /// The worker was seen, and does not work any more.
    pub fn fails(&self) -> bool {
        self.state == CheckState::Fails
    }

    /// A check was answered or not. `wall` is the time in milliseconds since the Unix epoch.
    pub fn checked(&mut self, succeeded: bool, wall: u64) {
        if succeeded == (self.state == CheckState::Works) {
            self.against = 0;
            return;
        }
        self.against += 1;
        if self.state == CheckState::Works && self.against == MARKED_AFTER {
            self.since = wall;
        }
        let needed = if self.state == CheckState::Absent { 1 } else { CHECKS_IN_A_ROW };
        // A worker that was never seen cannot fail.
        if self.against >= needed && (succeeded || self.state == CheckState::Works) {
            (self.state, self.against) = (if succeeded { CheckState::Works } else { CheckState::Fails }, 0);
        }
    }
}

impl View {
    /// Whether the health of that member's worker may drain it: those whose records have failed longest may, as long as at least half of
    /// the group stays active, and `min_members`, because a dependency that all share must not drain the fleet. The group is the active
    /// members and those that are draining because their worker does not work. One that is drained for it stays so while others work, also
    /// if the group becomes smaller: its worker would do nothing with a share. Only records count, so all members that have seen the same
    /// ones agree.
    pub fn may_drain_for_health(&self, instance_id: &InstanceId, min_members: u32) -> bool {
        let (mut group, mut absent, mut working, mut failing) = (0_usize, 0_usize, 0_usize, Vec::new());
        for member in self.members().iter().filter(|member| self.belongs(member) && !member.state.rests()) {
            match member.worker {
                Some(WorkerHealth::Failing(since)) => failing.push((member.state != MemberState::Draining, since, &member.instance_id)),
                Some(WorkerHealth::Absent) => absent += 1,
                None if member.state == MemberState::Active => working += 1,
                None => continue,
            }
            group += 1;
        }
        failing.sort_unstable();
        let is_drained = failing.iter().any(|(is_active, _, failing)| !is_active && *failing == instance_id);
        if is_drained && working > 0 && self.active() >= min_members as usize {
            return true;
        }
        let most = (group - absent).saturating_sub(group.div_ceil(2).max(min_members as usize));
        failing.iter().take(most).any(|(_, _, failing)| *failing == instance_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Member;

    /// What the record says after each check, where that changes, and whether the worker fails then.
    fn after(checks: &mut WorkerChecks, answers: &str) -> Vec<(Option<WorkerHealth>, bool)> {
        let mut seen = Vec::new();
        for (answer, wall) in answers.chars().zip(0..) {
            let before = (checks.health(), checks.fails());
            checks.checked(answer == '+', wall);
            let now = (checks.health(), checks.fails());
            seen.extend((now != before).then_some(now));
        }
        seen
    }

    #[test]
    fn the_first_success_ends_the_absence_and_only_three_in_a_row_count_after_it() {
        let failing = |since| Some(WorkerHealth::Failing(since));
        let mut checks = WorkerChecks::default();
        assert_eq!((checks.health(), checks.fails()), (Some(WorkerHealth::Absent), false));
        assert_eq!(after(&mut checks, "----"), [], "a worker that was never seen stays absent");
        assert_eq!(after(&mut checks, "+"), [(None, false)]);
        assert_eq!(after(&mut checks, "+-+-+"), []);
        assert_eq!(after(&mut checks, "--+"), [(failing(1), false), (None, false)], "two are said, and are not three");
        assert_eq!(after(&mut checks, "----"), [(failing(1), false), (failing(1), true)]);
        assert_eq!(after(&mut checks, "++-++-"), []);
        assert_eq!(after(&mut checks, "+++-"), [(None, false)]);
    }

    #[test]
    fn failing_workers_drain_members_while_half_of_the_group_stays_active() {
        let with = |id: &str, worker, state| Member { state, worker, ..Member::named(InstanceId::new(id).unwrap()) };
        let works = |id| with(id, None, MemberState::Active);
        let failing = |id, since| with(id, Some(WorkerHealth::Failing(since)), MemberState::Active);
        let drained = |id, since| with(id, Some(WorkerHealth::Failing(since)), MemberState::Draining);
        let absent = |id| with(id, Some(WorkerHealth::Absent), MemberState::Draining);
        let may_above = |min_members, members: Vec<Member>| {
            let view = View::new(1, members);
            let ids = view.members().iter().filter(|member| view.may_drain_for_health(&member.instance_id, min_members));
            ids.map(|member| member.instance_id.to_string()).collect::<String>()
        };
        let may = |members| may_above(1, members);
        assert_eq!(may(vec![failing("a", 1)]), "", "alone");
        assert_eq!(may(vec![failing("a", 1), works("b")]), "a");
        assert_eq!(may(vec![failing("a", 2), failing("b", 1)]), "b", "the one that fails longest");
        assert_eq!(may(vec![drained("a", 2), failing("b", 1)]), "a", "a drained member comes first");
        assert_eq!(may(vec![failing("a", 3), drained("b", 2), failing("c", 1)]), "b");
        assert_eq!(may(vec![drained("a", 3), drained("b", 2), drained("c", 1)]), "c", "all drained at once: two come back");
        assert_eq!(may(vec![failing("a", 1), failing("b", 1), works("c"), works("d")]), "ab");
        assert_eq!(may(vec![failing("a", 1), works("b"), absent("c"), absent("d")]), "", "half of the group wait for workers");
        assert_eq!(may(vec![drained("a", 1), works("b"), absent("c")]), "a", "it stays drained while the group becomes smaller");
        assert_eq!(may(vec![drained("a", 1), drained("b", 2), works("d")]), "ab");
        let four = || vec![failing("a", 1), failing("b", 2), works("c"), works("d")];
        assert_eq!((may_above(3, four()), may_above(4, four())), ("a".into(), String::new()), "below min_members no member owns anything");
        assert_eq!(may_above(2, vec![drained("a", 1), works("b")]), "", "it has to come back for the others");
        let away = with("y", Some(WorkerHealth::Failing(0)), MemberState::Away);
        assert_eq!(may(vec![failing("a", 1), works("b"), away]), "a", "a member that is away is no part of the group");
        let leaving = with("z", None, MemberState::Draining);
        assert_eq!(may(vec![failing("a", 1), works("b"), leaving]), "a", "a leaver is no part of the group");
    }
}
