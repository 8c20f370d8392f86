//! The health of the worker that a member speaks for: what its checks and leases say, and what the record says of it.

use serde::{Deserialize, Serialize};

/// So many checks that fail in a row mean that the worker does not work; so many that succeed, that it works again.
pub const CHECKS_IN_A_ROW: u32 = 3;

/// What a record says of a worker that is watched. Without it the worker is not watched, or works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerHealth {
    /// Its checks fail, since that time in milliseconds since the Unix epoch by its machine's clock. The member is taken for drained as long
    /// as at least half of the group stays active without it; those that fail longest come first, so clocks decide only the order.
    Failing(u64),
    /// It has not been seen yet, or its lease has ended. The member's record is draining.
    Absent,
}

impl WorkerHealth {
    /// The name in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Failing(_) => "failing",
            Self::Absent => "absent",
        }
    }
}

/// Counts the checks of one worker. It counts as absent until the first check that succeeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerChecks {
    health: Option<WorkerHealth>,
    /// How many checks in a row say the opposite of `health`.
    against: u32,
}

impl Default for WorkerChecks {
    fn default() -> Self {
        Self { health: Some(WorkerHealth::Absent), against: 0 }
    }
}

impl WorkerChecks {
    /// What the record is to say; `None` while the worker works.
    pub const fn health(&self) -> Option<WorkerHealth> {
        self.health
    }

    /// A check was answered or not. `wall` is the time in milliseconds since the Unix epoch. Returns whether [`WorkerChecks::health`] has
    /// changed.
    pub fn checked(&mut self, succeeded: bool, wall: u64) -> bool {
        if succeeded == self.health.is_none() {
            self.against = 0;
            return false;
        }
        self.against += 1;
        let needed = if self.health == Some(WorkerHealth::Absent) { 1 } else { CHECKS_IN_A_ROW };
        if self.against < needed {
            return false;
        }
        *self = Self { health: (!succeeded).then_some(WorkerHealth::Failing(wall)), against: 0 };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(checks: &mut WorkerChecks, answers: &str) -> Vec<Option<WorkerHealth>> {
        let at = |place: usize| u64::try_from(place).unwrap();
        let seen = answers.chars().enumerate();
        seen.filter_map(|(place, answer)| checks.checked(answer == '+', at(place)).then(|| checks.health())).collect()
    }

    #[test]
    fn the_first_success_ends_the_absence_and_only_three_in_a_row_count_after_it() {
        let mut checks = WorkerChecks::default();
        assert_eq!(checks.health(), Some(WorkerHealth::Absent));
        assert_eq!(after(&mut checks, "----"), [], "a worker that was never seen stays absent");
        assert_eq!(after(&mut checks, "+"), [None]);
        assert_eq!(after(&mut checks, "+--+--+"), [], "two are not three");
        assert_eq!(after(&mut checks, "----"), [Some(WorkerHealth::Failing(2))], "since the third");
        assert_eq!(after(&mut checks, "++-++-"), []);
        assert_eq!(after(&mut checks, "+++-"), [None]);
    }
}
