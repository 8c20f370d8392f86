//! What is written on the command line of `shardwise ring` and in its files of members.

use std::collections::BTreeSet;

use shardwise_core::{KeyPlacement, PlacementKind, PlacementParams};

#[path = "../../crates/cli/src/commands/ring/text.rs"]
mod text;

pub(crate) const MEMBERS: &[&[u8]] =
    &[b"a,b=2,c", b"a,a", b"=1", b"a==2", b"a=101", b",", b"{\"id\": \"worker,1\", \"weight\": 2}\n\n{\"id\": \"b\"}", b"{\"id\": 1}"];
pub(crate) const CHANGES: &[&[u8]] = &[
    b"slots=65536,load_margin=0.1",
    b"placement=uhashring",
    b"placement=quota,slots=64",
    b"placement=hashring,virtual_nodes=40",
    b"placement=modulo,slots=64",
    b"slots=0",
    b"slots=64,slots=64",
    b"load_margin=none",
];

/// Lists and files of members: each accepted member can be placed, and is there once.
pub(crate) fn members(input: &[u8]) {
    let Ok(given) = std::str::from_utf8(input) else { return };
    for read in [text::members_of_list(given), text::members_of_lines(given).map_err(|(line, why)| format!("line {line}: {why}"))] {
        match read.and_then(text::in_order) {
            Ok(members) => {
                let ids: BTreeSet<_> = members.iter().map(|(id, _)| id).collect();
                assert_eq!(ids.len(), members.len(), "{given:?}");
                assert!(members.is_sorted() && members.iter().all(|(_, weight)| (1..=100).contains(&weight.get())), "{given:?}");
            }
            Err(why) => assert!(!why.is_empty()),
        }
    }
}

/// What `--to` says: what is accepted is a placement that the settings would take, and nothing of it means nothing.
pub(crate) fn changes(input: &[u8]) {
    let Ok(given) = std::str::from_utf8(input) else { return };
    for kind in [PlacementKind::Ring, PlacementKind::Quota, PlacementKind::Key(KeyPlacement::Uhashring)] {
        let now = PlacementParams { kind, ..PlacementParams::default() };
        match text::placement_after(now, given) {
            Ok(next) => {
                assert_eq!(next.validated().ok(), Some(next), "{given:?}");
                let names = given.split(',').filter_map(|part| Some(part.split_once('=')?.0));
                assert_eq!(text::refuse_unused(next.kind, names), Ok(()), "{given:?}");
            }
            Err(why) => assert!(!why.is_empty()),
        }
    }
}
