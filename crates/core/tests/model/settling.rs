//! From a state on without faults: everybody takes its turn, no answer is lost, and no clock misses a tick.

use crate::state::State;
use crate::steps::{Rules, Step};

/// Whether every slot is held by who should have it, within two TTLs.
pub(crate) fn settles<const M: usize, const S: usize>(state: &State<M, S>, rules: Rules) -> bool {
    let mut state = state.clone();
    for _ in 0..=2 * rules.ttl {
        turn(&mut state, rules);
        if (0..S).all(|s| state.held(s % M, s).is_some()) {
            return true;
        }
        state = rules.after(&state, Step::Tick(0));
    }
    false
}

/// Everybody does what is due.
fn turn<const M: usize, const S: usize>(state: &mut State<M, S>, rules: Rules) {
    let numbers = |n: usize| 0..u8::try_from(n).unwrap_or_default();
    let mut take = |step| {
        if rules.allows(state, step) {
            *state = rules.after(state, step);
        }
    };
    take(Step::GhostWrites);
    for m in numbers(M) {
        // What is left of an earlier call first.
        [Step::Answered(m), Step::Renew(m), Step::Answered(m), Step::Write(m)].into_iter().for_each(&mut take);
        for s in numbers(S).filter(|s| usize::from(*s) % M != usize::from(m)) {
            [Step::Drain(m, s), Step::Release(m, s)].into_iter().for_each(&mut take);
        }
    }
    for s in numbers(S) {
        let owner = u8::try_from(usize::from(s) % M).unwrap_or_default();
        // Held in the store and not here: from before a deadline, or in an answer that was lost. It goes back first.
        if state.members[usize::from(owner)].holds[usize::from(s)].is_none_or(|hold| hold.draining) {
            let release = Step::Release(owner, s);
            if rules.allows(state, release) {
                *state = rules.after(state, release);
            }
        }
        let acquire = Step::Acquire(owner, s);
        if rules.allows(state, acquire) {
            *state = rules.after(state, acquire);
        }
    }
}
