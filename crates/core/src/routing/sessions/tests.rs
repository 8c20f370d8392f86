use super::*;
use crate::Incarnation;
use proptest::prelude::*;

const NO_LIMITS: SessionLimits = SessionLimits { idle: Duration::from_hours(1), life: Duration::from_hours(24), per_key: u32::MAX };

fn at(millis: u64) -> Moment {
    Moment::from_nanos(millis * 1_000_000)
}

fn id(number: u8) -> SessionId {
    SessionId::new(Incarnation::new(1), [number; 16])
}

fn limits(idle: u64, life: u64) -> SessionLimits {
    SessionLimits { idle: Duration::from_millis(idle), life: Duration::from_millis(life), ..NO_LIMITS }
}

fn is_released(table: &SessionTable) -> bool {
    table.is_empty() && table.queue.is_empty() && table.per_key.is_empty()
}

#[test]
fn an_idle_session_ends_and_a_used_one_lives_on() {
    let mut table = SessionTable::new(10);
    table.open(at(0), id(1), 7, limits(100, 1_000)).unwrap();
    table.open(at(0), id(2), 7, limits(100, 1_000)).unwrap();
    assert_eq!(table.next_due(), Some(at(100)));
    assert!(table.touch(at(99), &id(1)));
    assert_eq!(table.expire(at(99)), []);
    assert_eq!(table.expire(at(100)), [(id(2), SessionEnd::Idle)]);
    assert_eq!((table.next_due(), table.len(), table.of_key(7)), (Some(at(199)), 1, 1));
    assert!(!table.touch(at(199), &id(1)), "one that is due cannot be used any more");
    assert_eq!(table.expire(at(250)), [(id(1), SessionEnd::Idle)]);
    assert!(is_released(&table));
}

#[test]
fn the_longest_life_ends_a_session_in_use() {
    let mut table = SessionTable::new(10);
    table.open(at(0), id(1), 7, limits(100, 250)).unwrap();
    for millis in [90, 180, 249] {
        assert!(table.touch(at(millis), &id(1)));
        assert_eq!(table.expire(at(millis)), []);
    }
    assert!(!table.touch(at(250), &id(1)) && !table.is_open(at(250), &id(1)));
    assert_eq!(table.expire(at(250)), [(id(1), SessionEnd::Expired)]);
}

#[test]
fn a_session_is_not_idle_during_a_request() {
    let mut table = SessionTable::new(10);
    table.open(at(0), id(1), 7, limits(100, 10_000)).unwrap();
    assert!(table.begin(at(50), &id(1)) && table.begin(at(60), &id(1)));
    assert_eq!(table.expire(at(5_000)), []);
    table.finish(at(5_000), &id(1));
    assert!(table.is_open(at(5_200), &id(1)), "another request is in progress");
    table.finish(at(5_300), &id(1));
    assert_eq!(table.expire(at(5_399)), []);
    assert_eq!(table.expire(at(5_400)), [(id(1), SessionEnd::Idle)]);
    table.finish(at(5_500), &id(1));
    assert!(is_released(&table));
}

#[test]
fn limits_for_a_key_and_in_all_are_kept() {
    let mut table = SessionTable::new(3);
    let two = SessionLimits { per_key: 2, ..NO_LIMITS };
    assert_eq!((table.open(at(0), id(1), 7, two), table.open(at(0), id(2), 7, two)), (Ok(()), Ok(())));
    assert_eq!(table.open(at(0), id(3), 7, two), Err(SessionRefusal::PerKey { most: 2 }));
    assert_eq!(table.open(at(0), id(1), 8, two), Err(SessionRefusal::Taken));
    assert_eq!(table.open(at(0), id(3), 8, two), Ok(()));
    assert_eq!(table.open(at(0), id(4), 9, two), Err(SessionRefusal::InAll { most: 3 }));
    assert!(table.end(&id(1)) && !table.end(&id(1)));
    assert_eq!((table.open(at(0), id(4), 7, two), table.len()), (Ok(()), 3));
    assert_eq!(table.end_where(|key| key == 7), [id(2), id(4)]);
    assert_eq!(table.end_where(|_| true), [id(3)]);
    assert!(is_released(&table));
}

#[test]
fn limits_of_nothing_end_at_once_and_do_not_spin() {
    let mut table = SessionTable::new(1);
    table.open(at(0), id(1), 7, limits(0, 100)).unwrap();
    assert!(table.begin(at(0), &id(1)));
    assert_eq!(table.expire(at(50)), []);
    assert_eq!(table.next_due(), Some(at(51)), "the next check is later");
    assert_eq!(table.expire(at(100)), [(id(1), SessionEnd::Expired)]);
}

#[test]
fn thirty_thousand_sessions_leave_nothing() {
    let mut table = SessionTable::new(30_000);
    let number = |number: u32| {
        let mut random = [0; 16];
        random[..4].copy_from_slice(&number.to_be_bytes());
        SessionId::new(Incarnation::new(1), random)
    };
    for n in 0..30_000 {
        table.open(at(u64::from(n)), number(n), u64::from(n % 100), limits(60_000, 90_000)).unwrap();
        table.touch(at(u64::from(n) + 1), &number(n));
    }
    assert_eq!((table.len(), table.of_key(0)), (30_000, 300));
    let ended: usize = (0..20).map(|step| table.expire(at(step * 10_000)).len()).sum();
    assert_eq!(ended, 30_000);
    assert!(is_released(&table));
}

/// What a session is, in the plainest terms.
#[derive(Debug, Clone, Copy)]
struct Model {
    limits: SessionLimits,
    opened: u64,
    touched: u64,
    requests: u32,
}

impl Model {
    fn is_due(&self, now: u64) -> bool {
        let passed = |since: u64, limit: Duration| Duration::from_millis(now - since) >= limit;
        passed(self.opened, self.limits.life) || (self.requests == 0 && passed(self.touched, self.limits.idle))
    }
}

proptest! {
    /// Called whenever it says so, it ends each session at the very millisecond; and a call at any other time ends no other one.
    #[test]
    fn sessions_end_when_they_are_due(steps in prop::collection::vec((0u8..5, 0u8..6, 0u64..40), 1..120)) {
        let (mut table, mut model, mut now) = (SessionTable::new(4), BTreeMap::<u8, Model>::new(), 0);
        for (number, what, pause) in steps {
            for _ in 0..pause {
                now += 1;
                if table.next_due().is_none_or(|due| due > at(now)) {
                    prop_assert!(model.values().all(|session| !session.is_due(now)), "one is due at {} and no check is", now);
                    continue;
                }
                let ended: Vec<_> = table.expire(at(now)).into_iter().map(|(id, _)| id).collect();
                let due: Vec<_> = model.iter().filter(|(_, session)| session.is_due(now)).map(|(number, _)| id(*number)).collect();
                prop_assert_eq!(ended, due);
                model.retain(|_, session| !session.is_due(now));
            }
            let known = model.contains_key(&number);
            match what {
                0 | 1 => {
                    let limits = SessionLimits { per_key: 3, ..limits(20 + u64::from(what) * 30, 90) };
                    let (in_all, of_key) = (model.len(), model.keys().filter(|other| **other % 2 == number % 2).count());
                    let opened = table.open(at(now), id(number), u64::from(number % 2), limits).is_ok();
                    prop_assert_eq!(opened, in_all < 4 && of_key < 3 && !known);
                    if opened {
                        model.insert(number, Model { limits, opened: now, touched: now, requests: 0 });
                    }
                }
                2 => prop_assert_eq!(table.touch(at(now), &id(number)), known),
                3 => prop_assert_eq!(table.begin(at(now), &id(number)), known),
                4 if model.get(&number).is_some_and(|session| session.requests > 0) => table.finish(at(now), &id(number)),
                _ => prop_assert_eq!(table.end(&id(number)), known),
            }
            if let Some(session) = model.get_mut(&number) {
                match what {
                    2 => session.touched = now,
                    3 => session.requests += 1,
                    4 if session.requests > 0 => (session.requests, session.touched) = (session.requests - 1, now),
                    4 | 5 => {
                        model.remove(&number);
                    }
                    _ => {}
                }
            }
            prop_assert_eq!((table.len(), table.queue.len()), (model.len(), model.len()));
        }
        table.end_where(|_| true);
        prop_assert!(is_released(&table));
    }
}
