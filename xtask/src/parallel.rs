//! Several runs at the same time, a few at once.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::failure::TaskFailure;

/// Does every job, `at_once` at a time, in their order of beginning. A job that
/// panics takes its runner with it and is a failure; the other runners do the rest.
pub(crate) fn each<J: Send, T: Send>(
    jobs: VecDeque<J>,
    at_once: usize,
    run: impl Fn(J) -> Result<T, TaskFailure> + Sync,
) -> Vec<Result<T, TaskFailure>> {
    let waiting = Mutex::new(jobs);
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let run_some = || -> Vec<_> { std::iter::from_fn(next).map(&run).collect() };
    std::thread::scope(|scope| {
        let runners: Vec<_> = (0..at_once).map(|_| scope.spawn(run_some)).collect();
        let broken = |_| vec![Err(TaskFailure::new("a runner panicked"))];
        runners.into_iter().flat_map(|runner| runner.join().unwrap_or_else(broken)).collect()
    })
}

/// How many jobs passed; the failures of the others become one.
pub(crate) fn all_passed<T>(outcomes: Vec<Result<T, TaskFailure>>) -> Result<u64, TaskFailure> {
    let count = outcomes.len() as u64;
    let failures: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    if failures.is_empty() {
        return Ok(count);
    }
    let (failed, why) = (failures.len() as u64, failures.iter().map(ToString::to_string).collect::<Vec<_>>());
    Err(TaskFailure::counted(why.join("\n    "), count - failed, failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_done_once_and_a_failure_ends_no_other() {
        let outcomes = each((0..100).collect(), 3, |job: u32| if job == 7 { Err(TaskFailure::new("seven")) } else { Ok(job) });
        let mut done: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok().copied()).collect();
        done.sort_unstable();
        assert_eq!(done, (0..100).filter(|job| *job != 7).collect::<Vec<_>>());
        let failure = all_passed(outcomes).unwrap_err();
        assert_eq!((failure.passed, failure.failed), (99, 1), "{failure}");
    }
}
