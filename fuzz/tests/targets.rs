//! Every target with its samples as they are, and with samples changed at random.
//! What fails is shrunk, and the seed is printed by proptest.

#![expect(clippy::panic, reason = "a test reports by panicking")]

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use shardwise_fuzz::{FuzzTarget, TARGETS};

/// Inputs for each target; `SHARDWISE_FUZZ_CASES` for more.
const CASES: u32 = 500;

/// One change of an input; places are in thousandths of its length.
#[derive(Debug, Clone)]
enum Edit {
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    Replace(usize, u8),
    Repeat(usize, usize),
    End(usize),
}

impl Edit {
    fn apply(&self, input: &mut Vec<u8>) {
        let place = |thousandths: usize, length: usize| thousandths * length / 1_000;
        let length = input.len();
        match self {
            Self::Insert(at, bytes) => drop(input.splice(place(*at, length)..place(*at, length), bytes.iter().copied())),
            Self::Remove(at, count) => drop(input.drain(place(*at, length)..length.min(place(*at, length) + count))),
            Self::Replace(at, byte) => {
                if let Some(old) = input.get_mut(place(*at, length)) {
                    *old = *byte;
                }
            }
            Self::Repeat(at, count) => {
                let again = input[place(*at, length)..length.min(place(*at, length) + count)].to_vec();
                input.splice(place(*at, length)..place(*at, length), again);
            }
            Self::End(at) => input.truncate(place(*at, length)),
        }
    }
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let place = || 0..=1_000_usize;
    let bytes = prop_oneof![
        proptest::collection::vec(any::<u8>(), 1..6),
        "[ -~]{1,8}".prop_map(String::into_bytes),
        "[\\PC\n]{1,4}".prop_map(String::into_bytes),
        prop::sample::select(vec!["\"", "[", "]", "{", "}", "=", ".", "__", "-1", "65537", "1e999", "\u{0}", "none", "next"])
            .prop_map(|token| token.as_bytes().to_vec()),
    ];
    let edit = prop_oneof![
        (place(), bytes).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        (place(), 1..9_usize).prop_map(|(at, count)| Edit::Remove(at, count)),
        (place(), any::<u8>()).prop_map(|(at, byte)| Edit::Replace(at, byte)),
        (place(), 1..40_usize).prop_map(|(at, count)| Edit::Repeat(at, count)),
        place().prop_map(Edit::End),
    ];
    proptest::collection::vec(edit, 0..8)
}

fn cases() -> u32 {
    std::env::var("SHARDWISE_FUZZ_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(CASES)
}

fn try_out(target: &FuzzTarget) {
    for sample in target.samples {
        (target.run)(sample);
    }
    let mut runner = TestRunner::new(Config { cases: cases(), failure_persistence: None, ..Config::default() });
    let changed = (prop::sample::select(target.samples), edits()).prop_map(|(sample, edits)| {
        let mut input = sample.to_vec();
        for edit in &edits {
            edit.apply(&mut input);
        }
        input
    });
    let input = prop_oneof![4 => changed, 1 => proptest::collection::vec(any::<u8>(), 0..60)];
    let outcome = runner.run(&input, |input| {
        (target.run)(&input);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{}: {error}", target.name);
    }
}

macro_rules! targets {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            TARGETS.iter().filter(|target| target.name == stringify!($name)).for_each(try_out);
        })*

        #[test]
        fn none_is_forgotten() {
            assert_eq!(TARGETS.iter().map(|target| target.name).collect::<Vec<_>>(), [$(stringify!($name)),*]);
        }
    };
}

/// What stands between two backticks is a target, and every target stands there.
#[test]
fn the_table_of_parsers_names_all_targets() {
    let text = include_str!("../parsers.md");
    let cells = text.lines().filter(|line| line.starts_with("| `")).filter_map(|line| line.trim_end_matches('|').rsplit('|').next());
    let named: std::collections::BTreeSet<_> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert_eq!(named, TARGETS.iter().map(|target| target.name).collect());
}

targets!(
    changes,
    consul_addresses,
    consul_keys,
    consul_records,
    consul_services,
    databases,
    durations,
    etcd_addresses,
    etcd_keys,
    etcd_records,
    events,
    fingerprints,
    key_placements,
    keys,
    load_margins,
    local_claims,
    local_mounts,
    local_paths,
    members,
    names,
    nats_answers,
    nats_messages,
    nats_subjects,
    new_events,
    parameters,
    placement,
    postgres_beats,
    postgres_literals,
    postgres_names,
    records,
    settings,
    valkey_addresses,
    valkey_answers,
    valkey_news,
    valkey_records,
    variables
);
