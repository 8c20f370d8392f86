//! Why a member has not answered, as a problem and for metrics and spans.

use shardwise::requests::{Attempt, Undelivered};
use shardwise::{InstanceId, Member, MemberState, View};
use tokio::time::Instant;

use crate::problem::{BAD_GATEWAY, NO_WORKER, Problem, TOO_LATE, TOO_MANY, UNREACHABLE};
use crate::worker_requests;

/// The outcome of a request to a member that was not reached.
pub(crate) const UNREACHED: &str = "unreachable";
/// The most members that an error names.
const NAMED: usize = 20;

/// Why a member has not answered.
pub(crate) struct Unanswered {
    pub(crate) why: Undelivered,
    is_late: bool,
}

impl Unanswered {
    /// The attempt has just ended so.
    pub(crate) fn of(why: Undelivered, attempt: &Attempt) -> Self {
        Self { is_late: why.may_have_been_handled() && Instant::now() >= attempt.until, why }
    }

    /// Whether its deadline had passed before there was an answer.
    pub(crate) const fn is_late(&self) -> bool {
        self.is_late
    }

    /// The outcome, for metrics and spans.
    pub(crate) fn outcome(&self) -> &'static str {
        match &self.why {
            Undelivered::Unsent(why) if why.starts_with(worker_requests::NO_WORKER) => "no_worker",
            Undelivered::Unsent(_) | Undelivered::NotMine(_) => UNREACHED,
            Undelivered::Busy(_) => "busy",
            Undelivered::Unproven(_) | Undelivered::Barred(_) => "barred",
            Undelivered::Unknown(_) if self.is_late => "late",
            Undelivered::Unknown(_) => "broken",
        }
    }

    /// Returns the answer for the caller, and counts it.
    pub(crate) fn problem(&self, view: &View, member: &Member) -> Problem {
        let id = &member.instance_id;
        let unreachable = |why: &str| UNREACHABLE.because(format!("{id} does not answer: {why}; {}", living(view, Some(id))));
        let problem = match &self.why {
            Undelivered::Unsent(why) => match why.strip_prefix(worker_requests::NO_WORKER) {
                Some(why) => NO_WORKER.because(format!("the worker of {id} gives no valid answer: {why}")),
                None => unreachable(why),
            },
            Undelivered::NotMine(_) => unreachable("another process is there now, it has joined again, or its worker does not take that"),
            Undelivered::Busy(_) => TOO_MANY.because(format!("{id} already answers as many requests as it may; try again")),
            Undelivered::Unproven(why) | Undelivered::Barred(why) => UNREACHABLE.because(format!("{id} was not asked: {why}")),
            _ if self.is_late => TOO_LATE.because(format!("{id} takes too long, and it is unknown if it has done something")),
            Undelivered::Unknown(why) => {
                BAD_GATEWAY.because(format!("{id} gives no answer, and it is unknown if it has done something: {why}"))
            }
        };
        count(self.outcome(), problem)
    }
}

/// Counts a request by its outcome.
pub(crate) fn count<T>(outcome: &'static str, value: T) -> T {
    metrics::counter!(crate::metrics::FORWARDS.name, "outcome" => outcome).increment(1);
    value
}

pub(crate) fn is_there(member: &Member) -> bool {
    member.state != MemberState::Away
}

/// The names of the live members, at most the first few, for an error.
pub(crate) fn living(view: &View, dead: Option<&InstanceId>) -> String {
    let living: Vec<&Member> = view.members().iter().filter(|member| is_there(member) && dead != Some(&member.instance_id)).collect();
    let names: Vec<_> = living.iter().take(NAMED).map(|member| member.instance_id.as_str()).collect();
    let more = living.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("the living are: {}{more}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_outcome_says_what_is_known() {
        let attempt = Attempt::until(Instant::now() + Duration::from_secs(1));
        let outcome = |why| Unanswered::of(why, &attempt).outcome();
        let unsent = |why: &str| Undelivered::Unsent(why.into());
        let no_worker = format!("{}refused", worker_requests::NO_WORKER);
        for (why, wanted) in [
            (unsent("refused"), "unreachable"),
            (unsent(&no_worker), "no_worker"),
            (Undelivered::NotMine(None), "unreachable"),
            (Undelivered::Busy(None), "busy"),
            (Undelivered::Unproven("another token".into()), "barred"),
            (Undelivered::Barred("no token".into()), "barred"),
            (Undelivered::Unknown("cut off".into()), "broken"),
        ] {
            assert_eq!(outcome(why), wanted);
        }
        let member = Member::named(InstanceId::new("a").unwrap());
        let reported = |why| format!("{:?}", Unanswered::of(why, &attempt).problem(&View::default(), &member));
        for nothing_done in [unsent("refused"), Undelivered::Unproven("another token".into()), Undelivered::Barred("no token".into())] {
            assert!(reported(nothing_done).contains("unreachable-instance"), "clients are certain by the kind alone");
        }
        assert!(reported(Undelivered::Unknown("cut off".into())).contains("bad-gateway"));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(outcome(Undelivered::Unknown("cut off".into())), "late");
        assert_eq!(outcome(unsent("refused")), "unreachable", "it has certainly done nothing");
    }
}
