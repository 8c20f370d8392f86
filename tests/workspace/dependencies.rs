//! `docs/internals/dependencies.md` has one line for each direct dependency of any of our crates, and no other.

use std::collections::BTreeSet;
use std::path::Path;

use cargo_metadata::MetadataCommand;

/// The names of the external crates that our crates depend on directly.
fn used() -> BTreeSet<String> {
    let metadata = MetadataCommand::new().no_deps().exec().unwrap();
    let packages = metadata.workspace_packages();
    let ours: BTreeSet<_> = packages.iter().map(|package| package.name.to_string()).collect();
    let direct = packages.iter().flat_map(|package| &package.dependencies).map(|dependency| dependency.name.clone());
    direct.filter(|name| !ours.contains(name)).collect()
}

/// The names at the beginnings of the document's table rows, with the reasons behind them.
fn listed() -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/internals/dependencies.md");
    let text = std::fs::read_to_string(path).unwrap();
    let row = |line: &str| {
        let (name, why) = line.strip_prefix("| `")?.split_once("` |")?;
        Some((name.to_owned(), why.trim_matches([' ', '|']).to_owned()))
    };
    text.lines().filter_map(row).collect()
}

#[test]
fn every_direct_dependency_has_its_line_and_no_line_is_left_over() {
    let names: Vec<_> = listed().into_iter().map(|(name, _)| name).collect();
    let once: BTreeSet<_> = names.iter().cloned().collect();
    assert_eq!(once.len(), names.len(), "a name stands twice");
    let used = used();
    let unlisted: Vec<_> = used.difference(&once).collect();
    let unused: Vec<_> = once.difference(&used).collect();
    assert!(unlisted.is_empty(), "say in docs/internals/dependencies.md why these are needed: {unlisted:?}");
    assert!(unused.is_empty(), "docs/internals/dependencies.md lists what no crate depends on: {unused:?}");
}

#[test]
fn every_line_says_why() {
    let silent: Vec<_> = listed().into_iter().filter(|(_, why)| why.len() < 10).map(|(name, _)| name).collect();
    assert!(silent.is_empty(), "say in docs/internals/dependencies.md, behind the name, what these are needed for: {}", silent.join(", "));
}
