use super::*;

const TTL: Duration = Duration::from_secs(5);

fn at(millis: u64) -> Moment {
    Moment::ZERO.plus(Duration::from_millis(millis))
}

fn id(number: u128) -> LeaseId {
    LeaseId::new(number)
}

fn epoch(number: u64) -> Epoch {
    Epoch::new(number).unwrap()
}

/// A state with a lease 1 since the beginning.
fn leased() -> LeaseState {
    let mut state = LeaseState::new(16);
    state.open(at(0), id(1), TTL).unwrap();
    state
}

fn granted(state: &mut LeaseState, slot: u32, number: u64) -> (u64, CancellationToken) {
    state.grant(at(0), Resource::Slot(slot), epoch(number), None, &CancellationToken::new()).unwrap()
}

/// The changes after that version: slot and phase.
fn changes(state: &LeaseState, version: u64) -> Vec<(u32, GrantPhase)> {
    let changes = state.changes_after(version).unwrap();
    let slot = |grant: &WorkerGrant| if let Resource::Slot(slot) = grant.resource { slot } else { unreachable!("slots only") };
    changes.map(|change| (slot(&change.grant), change.grant.phase)).collect()
}

#[test]
fn an_id_reads_what_it_shows_and_nothing_else() {
    for number in [0, 1, u128::MAX] {
        assert!(LeaseId::parse(&id(number).to_string()).is_some_and(|read| read == id(number)));
    }
    for wrong in ["", "1", "+000000000000000000000000000000f", "A0000000000000000000000000000000", "000000000000000000000000000000000"] {
        assert!(LeaseId::parse(wrong).is_none(), "{wrong}");
    }
}

#[test]
fn one_lease_at_a_time_and_it_ends_by_time_or_by_request() {
    let mut state = leased();
    let taken = LeaseRefusal::Taken { age: Duration::from_secs(1), left: Duration::from_secs(4) };
    assert_eq!(state.open(at(1_000), id(2), TTL), Err(taken));
    assert_eq!(state.renew(at(4_999), id(1), None), Ok(TTL));
    assert_eq!(state.renew(at(5_000), id(2), None), Err(LeaseRefusal::Ended(UNKNOWN)));
    assert_eq!(state.check(at(9_998), id(1)), Ok(TTL));
    assert_eq!(state.renew(at(9_999), id(1), None), Err(LeaseRefusal::Ended(EXPIRED)), "a renewal that comes late renews nothing");
    assert_eq!(state.open(at(9_999), id(2), TTL), Ok(()));
    assert_eq!(state.check(at(9_999), id(1)), Err(LeaseRefusal::Ended(EXPIRED)));
    assert_eq!(state.end_cause().as_deref(), Some("it was not renewed for 5s"), "the log distinguishes a worker that died");
    state.end(CLOSED);
    assert_eq!((state.check(at(9_999), id(2)), state.live()), (Err(LeaseRefusal::Ended(CLOSED)), None));
    assert_eq!(state.end_cause().as_deref(), Some(CLOSED));
}

#[test]
fn a_lease_that_ends_releases_everything_at_once() {
    let mut state = leased();
    let (first, second) = (granted(&mut state, 3, 7), granted(&mut state, 4, 8));
    state.advance(at(1), first.0, GrantPhase::Finish);
    assert!(!first.1.is_cancelled() && !second.1.is_cancelled());
    state.expire(at(5_000));
    assert!(first.1.is_cancelled() && second.1.is_cancelled());
    assert_eq!((state.grants().count(), state.slots().len(), state.live()), (0, 0, None));
    assert!(
        state.grant(at(5_001), Resource::Slot(3), epoch(9), None, &CancellationToken::new()).is_none(),
        "nothing is granted without a lease"
    );
}

#[test]
fn a_slot_is_let_go_only_after_it_was_asked_for_and_the_worker_has_finished() {
    let mut state = leased();
    let (number, released) = granted(&mut state, 3, 7);
    assert_eq!((state.finished(&[number]), released.is_cancelled()), (0, false), "it was not asked for");
    state.advance(at(1), number, GrantPhase::Finish);
    assert!(state.open_slot(3).is_none() && !state.slots().contains(3) && state.has_slot(3, epoch(7)));
    assert_eq!((state.finished(&[number, number, 99]), released.is_cancelled()), (1, true));
    assert!(!state.has_slot(3, epoch(7)), "it is granted again if the handover was called off");
    let (again, held) = granted(&mut state, 3, 7);
    assert_eq!((state.finished(&[number]), held.is_cancelled()), (0, false), "a late repetition names another grant");
    assert!(state.open_slot(3).is_some_and(|grant| grant.number == again));
}

#[test]
fn a_lost_slot_is_held_until_the_worker_says_that_its_work_has_stopped() {
    let mut state = leased();
    let (number, released) = granted(&mut state, 3, 7);
    let before = state.version();
    state.advance(at(1), number, GrantPhase::Lost);
    state.advance(at(2), number, GrantPhase::Finish);
    state.advance(at(2), number, GrantPhase::Lost);
    assert_eq!(changes(&state, before), [(3, GrantPhase::Lost)], "said once, and nothing comes after it");
    assert_eq!((state.grants().count(), released.is_cancelled()), (0, false));
    assert_eq!(state.lost().collect::<Vec<_>>(), [number], "so that a worker that asks once in a while learns which to confirm");
    assert_eq!((state.finished(&[number]), released.is_cancelled(), state.lost().count()), (1, true, 0));
    let (lost, released) = granted(&mut state, 3, 8);
    state.advance(at(3), lost, GrantPhase::Lost);
    let (again, _) = granted(&mut state, 3, 9);
    assert!(state.open_slot(3).is_some_and(|grant| grant.number == again) && state.slots().contains(3));
    assert!(released.is_cancelled(), "a new grant of the slot takes its place");
}

#[test]
fn no_epoch_is_granted_to_two_leases() {
    let mut state = leased();
    granted(&mut state, 3, 7);
    state.end(CLOSED);
    state.open(at(1), id(2), TTL).unwrap();
    assert!(state.was_others(&Resource::Slot(3), epoch(7)) && state.was_others(&Resource::Slot(3), epoch(6)));
    assert!(state.grant(at(1), Resource::Slot(3), epoch(7), None, &CancellationToken::new()).is_none());
    assert!(!state.was_others(&Resource::Slot(3), epoch(8)) && !state.was_others(&Resource::Slot(4), epoch(1)));
    granted(&mut state, 3, 8);
    assert!(!state.was_others(&Resource::Slot(3), epoch(8)), "its own grant");
}

#[test]
fn the_work_under_a_name_ends_when_the_worker_says_so() {
    let mut state = leased();
    let name = shardwise::ClaimName::new("timer/report").unwrap();
    let period = Period { due_ms: 60_000, number: 1 };
    let (number, released) = state.grant(at(0), Resource::Name(name), epoch(7), Some(period), &CancellationToken::new()).unwrap();
    assert!(state.grants().any(|grant| grant.period == Some(period)));
    assert_eq!((state.finished(&[number]), released.is_cancelled()), (1, true));
}

#[test]
fn a_reader_gets_each_change_after_its_version() {
    let mut state = leased();
    let before = state.version();
    let (number, _) = granted(&mut state, 3, 7);
    let between = state.version();
    granted(&mut state, 4, 8);
    state.advance(at(1), number, GrantPhase::Finish);
    let all = [(3, GrantPhase::Granted), (4, GrantPhase::Granted), (3, GrantPhase::Finish)];
    assert_eq!((changes(&state, before), changes(&state, between)), (all.to_vec(), all[1..].to_vec()));
    assert_eq!(changes(&state, state.version()), []);
    for _ in 0..CHANGES_MAX {
        granted(&mut state, 5, 9);
    }
    assert!(state.changes_after(before).is_none(), "too far behind");
    assert!(state.changes_after(state.version() - 1).is_some());
}

#[test]
fn a_worker_that_does_not_read_its_grants_is_renewed_for_one_ttl_more() {
    let mut state = leased();
    assert_eq!(state.renew(at(4_000), id(1), None), Ok(TTL), "there was nothing to read");
    state.grant(at(4_000), Resource::Slot(3), epoch(7), None, &CancellationToken::new()).unwrap();
    assert_eq!(state.renew(at(8_000), id(1), Some(u64::MAX)), Ok(TTL), "no version of the future counts");
    state.grant(at(8_500), Resource::Slot(4), epoch(8), None, &CancellationToken::new()).unwrap();
    assert_eq!(state.renew(at(12_000), id(1), Some(0)), Ok(TTL));
    assert_eq!(state.renew(at(13_501), id(1), None), Err(LeaseRefusal::Ended(UNREAD)));
    assert_eq!(state.grants().count(), 2, "the worker may work until the end that it knows");
    assert_eq!(state.check(at(17_000), id(1)), Err(LeaseRefusal::Ended(EXPIRED)));
}

#[test]
fn what_the_member_has_lost_is_seen_as_lost_by_the_next_reader() {
    let mut state = leased();
    let lost = CancellationToken::new();
    state.grant(at(0), Resource::Slot(3), epoch(7), None, &lost).unwrap();
    granted(&mut state, 4, 7);
    let before = state.version();
    state.sweep(at(1));
    assert_eq!(changes(&state, before), []);
    lost.cancel();
    state.sweep(at(2));
    assert_eq!((changes(&state, before), state.grants().count()), (vec![(3, GrantPhase::Lost)], 1));
}
