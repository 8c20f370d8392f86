//! Continues from a state without faults: members take turns, no answer is lost, and no clock misses a tick.

use crate::state::State;
use crate::steps::{Rules, Step};

/// Whether every slot is held by its owner within two TTLs, for every assignment of owners: states that differ only in numbering count as
/// one, and owners go by numbers.
pub(crate) fn settles<const M: usize, const S: usize>(state: &State<M, S>, rules: Rules) -> bool {
    let assignments = M.pow(u32::try_from(S).unwrap_or_default());
    (0..assignments).all(|number| settles_on(state.clone(), std::array::from_fn(|s| owner(number, s, M)), rules))
}

/// The owner of a slot in an assignment, given as a number whose digits are the owners.
fn owner(number: usize, s: usize, members: usize) -> u8 {
    let digit = (0..s).fold(number, |rest, _| rest / members) % members;
    u8::try_from(digit).unwrap_or_default()
}

fn settles_on<const M: usize, const S: usize>(mut state: State<M, S>, owners: [u8; S], rules: Rules) -> bool {
    for _ in 0..=2 * rules.ttl {
        turn(&mut state, owners, rules);
        if (0..S).all(|s| state.held(usize::from(owners[s]), s).is_some()) {
            return true;
        }
        state = rules.after(&state, Step::Tick(0));
    }
    false
}

/// Each member does what is due.
fn turn<const M: usize, const S: usize>(state: &mut State<M, S>, owners: [u8; S], rules: Rules) {
    let numbers = |n: usize| 0..u8::try_from(n).unwrap_or_default();
    let mut take = |step| {
        if rules.allows(state, step) {
            *state = rules.after(state, step);
        }
    };
    take(Step::StaleWrite);
    take(Step::LateRelease);
    for m in numbers(M) {
        // First the rest of an earlier call.
        [Step::Answered(m), Step::Renew(m), Step::Answered(m), Step::Write(m)].into_iter().for_each(&mut take);
        for s in numbers(S).filter(|s| owners[usize::from(*s)] != m) {
            [Step::Drain(m, s), Step::Release(m, s)].into_iter().for_each(&mut take);
        }
    }
    for s in numbers(S) {
        let owner = owners[usize::from(s)];
        // Held in the store and not here: from before a deadline, or in a lost answer. It is released first.
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

#[test]
fn each_slot_is_tried_with_each_member() {
    let all: Vec<[u8; 2]> = (0..9).map(|number| std::array::from_fn(|s| owner(number, s, 3))).collect();
    let expected: Vec<[u8; 2]> = (0..3).flat_map(|second| (0..3).map(move |first| [first, second])).collect();
    assert_eq!(all, expected);
}
