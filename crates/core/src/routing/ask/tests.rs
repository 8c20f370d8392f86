use super::*;
use crate::routing::{MemberSet, PowerOfTwo, RouteTable};
use crate::{Member, View};
use proptest::prelude::*;
use std::fmt::Write;
use std::sync::Arc;

const SECOND: Duration = Duration::from_secs(1);

fn at(millis: u64) -> Moment {
    Moment::from_nanos(millis * 1_000_000)
}

fn id(name: &str) -> InstanceId {
    InstanceId::new(name).unwrap()
}

/// Members with these names, each with another incarnation.
fn table(names: &[&str]) -> RouteTable {
    let member = |(name, number): (&&str, u64)| Member { incarnation: Incarnation::new(number), ..Member::named(id(name)) };
    RouteTable::eventual(Arc::new(View::new(1, names.iter().zip(1..).map(member).collect())), None, None, None)
}

/// The steps of one request, as text: `@10 b<990` is an attempt at `b` at 10 ms with 990 ms left.
struct Script {
    ask: Ask,
    now: u64,
    random: u64,
    steps: String,
}

impl Script {
    fn new(within: Duration, repeatable: bool) -> Self {
        Self { ask: Ask::new(at(0), within, repeatable).unwrap(), now: 0, random: 0, steps: String::new() }
    }

    fn next(&mut self, table: &RouteTable, set: Result<&[u32], NoRoute>) -> AskStep {
        let from = set.map(|set| Choice { table, set, pick: &PowerOfTwo, key: None, random: self.random });
        let step = self.ask.next(at(self.now), from);
        let _ = match &step {
            AskStep::Send { index, within } => {
                let name = &table.member(*index).unwrap().instance_id;
                write!(self.steps, "@{} {name}<{} ", self.now, within.as_millis())
            }
            AskStep::Wait { until } => write!(self.steps, "@{} wait {} ", self.now, until.as_nanos() / 1_000_000),
            AskStep::GiveUp(error) => write!(self.steps, "@{} {error}", self.now),
        };
        step
    }

    /// Runs it with these outcomes, each after 1 ms; pauses pass. Returns the steps; it ends when no outcome is left.
    fn run(mut self, table: &RouteTable, set: Result<&[u32], NoRoute>, outcomes: impl IntoIterator<Item = Undelivered>) -> String {
        let mut outcomes = outcomes.into_iter();
        loop {
            match self.next(table, set) {
                AskStep::Send { .. } => {
                    let Some(outcome) = outcomes.next() else { return self.steps.trim_end().to_owned() };
                    self.now += 1;
                    self.ask.on_undelivered(at(self.now), outcome);
                }
                AskStep::Wait { until } => self.now = until.as_nanos().div_ceil(1_000_000),
                AskStep::GiveUp(_) => return self.steps,
            }
        }
    }
}

fn unsent() -> Undelivered {
    Undelivered::Unsent("refused".into())
}

fn unknown() -> Undelivered {
    Undelivered::Unknown("the connection broke".into())
}

fn hint(name: &str) -> Undelivered {
    Undelivered::NotMine(Some(id(name)))
}

#[test]
fn what_was_certainly_not_handled_goes_on_until_the_deadline() {
    let table = table(&["a"]);
    for outcome in [unsent(), Undelivered::NotMine(None)] {
        let steps = Script::new(SECOND, false).run(&table, Ok(&[0]), std::iter::repeat_n(outcome, 4));
        assert_eq!(steps, "@0 a<1000 @1 wait 11 @11 a<989 @12 wait 32 @32 a<968 @33 wait 73 @73 a<927 @74 wait 154 @154 a<846");
    }
    let steps = Script::new(Duration::from_millis(40), false).run(&table, Ok(&[0]), std::iter::repeat(unsent()));
    assert_eq!(
        steps,
        "@0 a<40 @1 wait 11 @11 a<29 @12 wait 32 @32 a<8 @33 wait 40 @40 no member took the request within 40ms: refused; it was not handled"
    );
}

#[test]
fn the_other_members_of_a_set_follow_at_once() {
    let table = table(&["a", "b", "c", "d", "e", "f"]);
    let steps = Script::new(SECOND, false).run(&table, Ok(&[2, 4]), [unsent(), unsent(), Undelivered::Busy(None)]);
    assert_eq!(steps, "@0 c<1000 @1 e<999 @2 wait 12 @12 c<988 @13 e<987");
    let steps = Script::new(SECOND, false).run(&table, Ok(&[0, 1, 2, 3, 4, 5]), std::iter::repeat_n(unsent(), 4));
    assert_eq!(steps, "@0 a<1000 @1 b<999 @2 c<998 @3 d<997 @4 wait 14 @14 a<986", "at most four in a row");
}

#[test]
fn a_busy_member_is_asked_again_when_it_says_so() {
    let table = table(&["a"]);
    let busy = |millis| Undelivered::Busy(Some(Duration::from_millis(millis)));
    let steps = Script::new(SECOND * 2, false).run(&table, Ok(&[0]), [busy(100), busy(1), busy(60_000)]);
    assert_eq!(steps, "@0 a<2000 @1 wait 101 @101 a<1899 @102 wait 122 @122 a<1878 @123 wait 623 @623 a<1377", "500 ms at most");
    let script = Script { random: 128 << 56, ..Script::new(SECOND * 2, false) };
    let steps = script.run(&table, Ok(&[0]), [busy(100), busy(60_000)]);
    assert_eq!(steps, "@0 a<2000 @1 wait 126 @126 a<1874 @127 wait 752 @752 a<1248", "and up to half as long again, at random");
    let steps = Script::new(Duration::from_millis(50), false).run(&table, Ok(&[0]), std::iter::repeat(busy(1_000)));
    assert_eq!(steps, "@0 a<50 @1 wait 50 @50 no member took the request within 50ms: too many are in progress; it was not handled");
}

#[test]
fn what_is_refused_or_may_have_been_handled_ends_an_unrepeatable_request() {
    let table = table(&["a", "b"]);
    let steps = Script::new(SECOND, false).run(&table, Ok(&[0, 1]), [unsent(), unknown()]);
    assert_eq!(steps, "@0 a<1000 @1 b<999 @2 it is unknown if the request was handled: the connection broke");
    for repeatable in [false, true] {
        let barred = Undelivered::Barred("10.0.0.1 is in none of peer_networks".into());
        let steps = Script::new(SECOND, repeatable).run(&table, Ok(&[0, 1]), [barred]);
        assert_eq!(steps, "@0 a<1000 @1 the request was refused and not handled: 10.0.0.1 is in none of peer_networks");
    }
}

#[test]
fn a_repeatable_request_goes_on_after_an_unknown_outcome_and_remembers_it() {
    let table = table(&["a"]);
    let steps = Script::new(Duration::from_millis(20), true).run(&table, Ok(&[0]), [unknown(), unsent(), unsent()]);
    assert_eq!(steps, "@0 a<20 @1 wait 11 @11 a<9 @12 wait 20 @20 it is unknown if the request was handled: the connection broke");
    let steps = Script::new(SECOND, true).run(&table, Ok(&[0]), [unknown(), Undelivered::Barred("no".into())]);
    assert!(steps.ends_with("it is unknown if the request was handled: the connection broke"), "{steps}");
}

#[test]
fn a_hint_is_followed_only_to_a_member_and_only_a_few_times() {
    let table = table(&["a", "b", "c", "d", "e", "f"]);
    let steps = Script::new(SECOND, false).run(&table, Ok(&[0]), [hint("c"), hint("unknown")]);
    assert_eq!(steps, "@0 a<1000 @1 c<999 @2 wait 12 @12 a<988");
    let steps = Script::new(SECOND, false).run(&table, Ok(&[0]), [hint("b"), hint("a")]);
    assert_eq!(steps, "@0 a<1000 @1 b<999 @2 wait 12 @12 a<988", "two that name each other");
    let steps = Script::new(SECOND, false).run(&table, Ok(&[0]), [hint("b"), hint("c"), hint("d"), hint("e")]);
    assert_eq!(steps, "@0 a<1000 @1 b<999 @2 c<998 @3 d<997 @4 wait 14 @14 a<986");
}

#[test]
fn a_pause_ends_early_only_if_the_set_changes() {
    let table = table(&["a", "b"]);
    let mut script = Script::new(SECOND, false);
    script.next(&table, Ok(&[0]));
    script.ask.on_undelivered(at(1), Undelivered::NotMine(None));
    for now in [1, 2, 3] {
        script.now = now;
        assert_eq!(script.next(&table, Ok(&[0])), AskStep::Wait { until: at(11) }, "an update of something else");
    }
    script.now = 4;
    script.next(&table, Ok(&[1]));
    assert!(script.steps.ends_with("@4 b<996 "), "{}", script.steps);
}

#[test]
fn without_a_member_it_waits_for_one_or_ends() {
    let table = table(&["a"]);
    let mut script = Script::new(SECOND, false);
    script.next(&table, Err(NoRoute::Unserved));
    script.now = 5;
    script.next(&table, Err(NoRoute::Unserved));
    script.now = 6;
    script.next(&table, Ok(&[0]));
    assert_eq!(script.steps.trim_end(), "@0 wait 10 @5 wait 10 @6 a<994");
    let steps = Script::new(Duration::from_millis(15), false).run(&table, Err(NoRoute::Unserved), []);
    assert_eq!(steps, "@0 wait 10 @10 wait 15 @15 no member took the request within 15ms: no member serves it now; it was not handled");
    let steps = Script::new(SECOND, false).run(&table, Err(NoRoute::SessionEnded), []);
    assert_eq!(steps, "@0 the session has ended: the member that opened it is gone");
    let steps = Script::new(Duration::from_millis(15), false).run(&table, Ok(MemberSet::EMPTY.as_slice()), []);
    assert!(steps.ends_with("no member was asked; it was not handled"), "{steps}");
}

#[test]
fn a_time_limit_out_of_range_is_refused() {
    for within in [Duration::ZERO, WITHIN_MIN.saturating_sub(Duration::from_nanos(1)), WITHIN_MAX + Duration::from_nanos(1), Duration::MAX]
    {
        assert_eq!(Ask::new(at(0), within, true).map(|ask| ask.deadline()), Err(WithinError { given: within }));
    }
    assert!([WITHIN_MIN, WITHIN_DEFAULT, WITHIN_MAX].iter().all(|within| Ask::new(at(0), *within, true).is_ok()));
    assert_eq!(WithinError { given: Duration::ZERO }.to_string(), "the time limit is 0ns; from 1ms to 5m are allowed");
}

fn outcome(what: u8) -> Undelivered {
    match what {
        0 => unsent(),
        1 => Undelivered::NotMine(None),
        2..=5 => hint(["a", "b", "c", "unknown"][usize::from(what - 2)]),
        6 => Undelivered::Busy(Some(Duration::from_millis(30))),
        _ => unknown(),
    }
}

proptest! {
    /// Whatever happens: attempts are bounded, none follows the deadline, and none follows an unknown outcome unless it is repeatable.
    #[test]
    fn no_request_asks_without_end(
        outcomes in prop::collection::vec((0u8..8, 0u64..30), 200),
        sets in prop::collection::vec(prop::collection::btree_set(0u32..3, 0..4), 1..4),
        repeatable in any::<bool>(),
        within in 1u64..2_000,
        random in any::<u64>(),
    ) {
        let table = table(&["a", "b", "c"]);
        let sets: Vec<Vec<u32>> = sets.into_iter().map(|set| set.into_iter().collect()).collect();
        let mut ask = Ask::new(at(0), Duration::from_millis(within), repeatable).unwrap();
        let (mut now, mut in_a_row, mut is_unknown) = (0, 0, false);
        for (step, (what, takes)) in outcomes.into_iter().enumerate() {
            let set = &sets[step % sets.len()];
            match ask.next(at(now), Ok(Choice { table: &table, set, pick: &PowerOfTwo, key: None, random })) {
                AskStep::Send { index, within: left } => {
                    in_a_row += 1;
                    prop_assert!(table.member(index).is_some());
                    prop_assert!(repeatable || !is_unknown, "sent again though the outcome is unknown");
                    prop_assert!(left >= WITHIN_MIN && at(now).plus(left) == at(within));
                    prop_assert!(in_a_row <= TRIES_IN_A_ROW);
                    now += takes;
                    let outcome = outcome(what);
                    is_unknown |= matches!(outcome, Undelivered::Unknown(_));
                    ask.on_undelivered(at(now), outcome);
                }
                AskStep::Wait { until } => {
                    prop_assert!(until <= at(within) && until > at(now));
                    in_a_row = 0;
                    // Woken early in a third of the cases.
                    now = if takes % 3 == 0 { now + 1 } else { until.as_nanos().div_ceil(1_000_000) };
                }
                AskStep::GiveUp(error) => {
                    prop_assert!(now >= within || is_unknown);
                    prop_assert_eq!(error.may_have_been_handled(), is_unknown);
                    return Ok(());
                }
            }
        }
    }
}
