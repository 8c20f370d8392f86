//! Scenarios as lists: a time, the input, then the expected evictions.

use shardwise_core::GroupName;

use super::*;

const TTL: Duration = Duration::from_secs(3);
const NONE: &[(&str, Option<u64>)] = &[];

type Step<'a> = (u64, SilenceInput, &'a [(&'a str, Option<u64>)]);

fn at(ms: u64) -> Moment {
    Moment::from_nanos(ms * 1_000_000)
}

fn id(name: &str) -> InstanceId {
    InstanceId::new(name).unwrap()
}

fn record(name: &str, incarnation: u64) -> RecordId {
    RecordId { group: GroupName::new("g").unwrap(), instance_id: id(name), incarnation: Incarnation::new(incarnation) }
}

fn seen_record(name: &str, beat: u64) -> SeenRecord {
    SeenRecord { record: record(name, 1), ttl: TTL, beat: Some(beat) }
}

fn seen(name: &str, beat: u64) -> SilenceInput {
    SilenceInput::Seen(seen_record(name, beat))
}

fn listed(records: &[(&str, u64)]) -> SilenceInput {
    SilenceInput::Listed(records.iter().map(|(name, beat)| seen_record(name, *beat)).collect())
}

fn written(ms: u64) -> SilenceInput {
    SilenceInput::Written { started: at(ms) }
}

fn mine(name: &str) -> SilenceInput {
    SilenceInput::Mine(BTreeSet::from([id(name)]))
}

fn waits(name: &str) -> SilenceInput {
    SilenceInput::Waits(vec![(record(name, 1), TTL)])
}

fn step(silence: &mut Silence, (ms, input, expected): &Step<'_>) {
    let evictions = silence.step(at(*ms), input.clone());
    let evictions: Vec<_> = evictions.iter().map(|eviction| (eviction.record.instance_id.as_str(), eviction.seen)).collect();
    assert_eq!(evictions, *expected, "at {ms} ms: {input:?}");
}

fn run(steps: &[Step<'_>]) -> Silence {
    let mut silence = Silence::default();
    for one in steps {
        step(&mut silence, one);
    }
    silence
}

#[test]
fn a_beat_that_stays_for_a_ttl_is_evicted_under_that_beat() {
    let mut silence = run(&[
        (0, mine("me"), NONE),
        (5, listed(&[("b", 7), ("c", 1)]), NONE),
        (10, written(0), NONE),
        (1_010, written(1_000), NONE),
        (2_000, seen("c", 2), NONE),
        (2_010, written(2_000), NONE),
    ]);
    assert_eq!(silence.next_write(), Some(at(3_010)), "the first answered write began the timers");
    let rest: &[Step<'_>] = &[
        // Answered late enough, but begun too early: the store may have stopped in between.
        (3_050, written(3_009), NONE),
        (3_060, written(3_010), &[("b", Some(7))]),
        // As long as the record is there.
        (4_020, written(4_010), &[("b", Some(7))]),
        (4_030, SilenceInput::Gone(record("b", 1)), NONE),
        (4_040, written(4_030), NONE),
        (5_010, written(5_000), &[("c", Some(2))]),
    ];
    for one in rest {
        step(&mut silence, one);
    }
}

#[test]
fn a_changed_beat_begins_anew_even_if_it_is_lower() {
    run(&[
        (0, listed(&[("b", 7)]), NONE),
        (10, written(0), NONE),
        (1_510, written(1_500), NONE),
        (3_000, seen("b", 6), NONE),
        (3_020, written(3_010), NONE),
        (4_510, written(4_500), NONE),
        (6_010, written(5_999), NONE),
        (6_030, written(6_000), &[("b", Some(6))]),
    ]);
}

#[test]
fn another_incarnation_and_another_ttl_begin_anew() {
    let again = SeenRecord { record: record("b", 2), ttl: TTL, beat: Some(7) };
    let longer = SeenRecord { ttl: TTL * 2, ..again.clone() };
    let mut silence = run(&[
        (0, listed(&[("b", 7)]), NONE),
        (10, written(0), NONE),
        (1_510, written(1_500), NONE),
        (2_000, SilenceInput::Seen(again), NONE),
        (3_020, written(3_015), NONE),
        // The former life was another record.
        (3_030, SilenceInput::Gone(record("b", 1)), NONE),
        (3_040, SilenceInput::Seen(longer), NONE),
        (5_010, written(5_000), NONE),
        (7_010, written(7_000), NONE),
        (9_030, written(9_020), NONE),
    ]);
    let evictions = silence.step(at(9_060), written(9_040));
    assert_eq!(evictions, [Eviction { record: record("b", 2), seen: Some(7) }]);
}

#[test]
fn reading_alone_accuses_no_member() {
    let silence = run(&[
        (0, listed(&[("b", 7)]), NONE),
        (4_000, listed(&[("b", 7)]), NONE),
        (8_000, seen("b", 7), NONE),
        (8_010, written(8_000), NONE),
    ]);
    assert_eq!(silence.next_write(), Some(at(8_000 + 1_500)));
}

/// Store and members are all well at 9,000 ms, but the others have not renewed yet.
#[test]
fn after_an_interruption_all_timers_begin_with_the_first_answered_write() {
    let mut silence = run(&[
        (0, listed(&[("b", 7), ("c", 1)]), NONE),
        (10, written(0), NONE),
        (1_010, written(1_000), NONE),
        (2_000, SilenceInput::Interrupted, NONE),
    ]);
    assert_eq!(silence.next_write(), None);
    let rest: &[Step<'_>] = &[
        (9_000, listed(&[("b", 7), ("c", 1)]), NONE),
        (9_010, written(9_000), NONE),
        (9_500, seen("b", 8), NONE),
        (10_500, written(10_490), NONE),
        (12_020, written(12_010), &[("c", Some(1))]),
    ];
    for one in rest {
        step(&mut silence, one);
    }
}

/// The process was stopped for longer than the outage, and so no write of it failed.
#[test]
fn a_gap_between_own_writes_is_an_interruption() {
    run(&[
        (0, listed(&[("b", 7)]), NONE),
        (10, written(0), NONE),
        (2_000, written(1_990), NONE),
        (9_000, written(8_990), NONE),
        (10_500, written(10_490), NONE),
        (11_990, written(11_980), NONE),
        (12_010, written(12_000), &[("b", Some(7))]),
    ]);
}

/// A write that hung while the store was out proves that the store took writes at its end, but not in between.
#[test]
fn an_answer_that_took_too_long_is_a_gap_as_well() {
    run(&[
        (0, listed(&[("b", 7)]), NONE),
        (10, written(0), NONE),
        (1_510, written(1_500), NONE),
        (3_600, written(2_500), NONE),
        (3_700, written(3_650), NONE),
        (5_100, written(5_090), NONE),
        (6_590, written(6_580), NONE),
        (6_620, written(6_600), &[("b", Some(7))]),
    ]);
}

#[test]
fn a_member_that_leaves_or_is_missing_from_a_list_is_forgotten() {
    let silence = run(&[
        (0, listed(&[("b", 7), ("c", 1)]), NONE),
        (10, written(0), NONE),
        (500, SilenceInput::Gone(record("b", 1)), NONE),
        (1_500, listed(&[]), NONE),
        (1_510, written(1_500), NONE),
        (3_100, written(3_050), NONE),
    ]);
    assert_eq!((silence.next_write(), silence.guarded().count()), (None, 0));
}

#[test]
fn an_absent_holder_is_evicted_after_a_ttl_of_absence() {
    run(&[
        (0, listed(&[("c", 1)]), NONE),
        (10, written(0), NONE),
        (500, waits("b"), NONE),
        (1_510, written(1_500), NONE),
        (2_000, seen("c", 2), NONE),
        (3_010, written(3_000), NONE),
        (3_520, written(3_500), &[("b", None)]),
    ]);
    // Its record comes back before the TTL is over.
    let silence = run(&[
        (10, written(0), NONE),
        (500, waits("b"), NONE),
        (1_510, written(1_500), NONE),
        (3_000, seen("b", 9), NONE),
        (3_020, written(3_010), NONE),
        (3_520, written(3_510), NONE),
        (3_600, SilenceInput::Gone(record("b", 1)), NONE),
        (5_000, written(4_990), NONE),
    ]);
    assert_eq!(silence.next_write(), Some(at(4_990 + 1_500)), "the absence began at 3,600");
    let silence = run(&[(0, waits("b"), NONE), (0, SilenceInput::Waits(Vec::new()), NONE), (10, written(0), NONE)]);
    assert_eq!(silence.next_write(), None);
}

#[test]
fn a_record_without_a_beat_is_evicted_as_absent() {
    let no_beat = SeenRecord { beat: None, ..seen_record("b", 0) };
    run(&[
        (0, SilenceInput::Seen(no_beat.clone()), NONE),
        (10, written(0), NONE),
        (1_510, written(1_500), NONE),
        (3_020, written(3_010), &[("b", None)]),
    ]);
    // A change of the record alone is no renewal, and does not hide the beat.
    run(&[
        (0, seen("b", 7), NONE),
        (10, written(0), NONE),
        (1_500, SilenceInput::Seen(no_beat), NONE),
        (1_510, written(1_500), NONE),
        (3_020, written(3_010), &[("b", Some(7))]),
    ]);
}

#[test]
fn a_shorter_ttl_than_ones_own_asks_for_probes() {
    let brief = SeenRecord { ttl: Duration::from_secs(1), ..seen_record("b", 7) };
    let silence = run(&[(0, SilenceInput::Seen(brief), NONE), (0, written(0), NONE)]);
    assert_eq!(silence.next_write(), Some(at(500)));
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("member {number}")).collect()
}

fn group_of(names: &[String]) -> SilenceInput {
    SilenceInput::Listed(names.iter().map(|name| seen_record(name, 1)).collect())
}

#[test]
fn each_member_is_guarded_by_eight_others() {
    let names = names(60);
    let mut guards: BTreeMap<InstanceId, usize> = BTreeMap::new();
    let mut most = 0;
    for name in &names {
        let silence = run(&[(0, mine(name), NONE), (0, group_of(&names), NONE)]);
        assert!(silence.guarded().all(|guarded| *guarded != id(name)), "no member is its own guard");
        most = most.max(silence.guarded().count());
        for guarded in silence.guarded() {
            *guards.entry(guarded.clone()).or_default() += 1;
        }
    }
    assert_eq!((guards.len(), guards.values().min(), guards.values().max()), (60, Some(&GUARDS), Some(&GUARDS)));
    assert!(most < 3 * GUARDS, "one member guards {most}");
}

#[test]
fn all_guard_a_small_group_and_an_observer_guards_any() {
    let nine = run(&[(0, mine("member 0"), NONE), (0, group_of(&names(GUARDS + 1)), NONE)]);
    assert_eq!(nine.guarded().count(), GUARDS + 1);
    let observer = run(&[(0, group_of(&names(60)), NONE)]);
    assert_eq!(observer.guarded().count(), 60);
}

#[test]
fn a_holder_is_guarded_by_those_that_wait_for_its_claim_from_then_on() {
    let names = names(60);
    let mut silence = run(&[(0, mine("member 0"), NONE), (0, group_of(&names), NONE), (10, written(0), NONE)]);
    let guarded: BTreeSet<InstanceId> = silence.guarded().cloned().collect();
    let holder = names.iter().find(|name| *name != "member 0" && !guarded.contains(&id(name))).unwrap();
    for ms in [1_000, 2_000] {
        silence.step(at(ms + 10), written(ms));
    }
    silence.step(at(2_500), waits(holder));
    assert_eq!(silence.guarded().count(), guarded.len() + 1);
    let evicted = |evictions: Vec<Eviction>| evictions.iter().any(|eviction| eviction.record.instance_id == id(holder));
    assert!(!evicted(silence.step(at(3_100), written(3_050))), "its beat was not followed before");
    assert!(!evicted(silence.step(at(4_510), written(4_500))));
    assert!(evicted(silence.step(at(5_510), written(5_500))));
}
