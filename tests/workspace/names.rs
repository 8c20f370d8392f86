//! One name, one type: no type of the workspace has the name of another one, so that a name in a review, a log or a search means one thing.
//!
//! What counts are the types that the crates, the examples, the fuzz targets and the tasks of `xtask` declare; tests and benchmarks may
//! give their helpers any name.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Names that several crates may declare, and why.
const SHARED: [(&str, &str); 5] = [
    ("Result", "each crate's alias of the standard type, with the error of that crate"),
    ("Error", "each crate's one public error"),
    ("ErrorKind", "the kinds of that error"),
    ("Failure", "the backends' private error enum: the same role in sibling crates"),
    ("Client", "the backends' connection to their store: the same role in sibling crates"),
];

/// Parts of a path that mark code which is not built into what users get.
const NOT_CHECKED: [&str; 4] = ["target", "tests", "benches", "clients"];

/// Where a type is declared.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Declaration {
    crate_: String,
    file: String,
    line: usize,
}

/// Whether a file is built only without a feature, in the place of the file that has the same types: `no_tls.rs`.
fn is_stand_in(name: &str) -> bool {
    name.starts_with("no_")
}

/// The Rust files below `folder`, without those of tests and stand-ins, in order.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap().to_string_lossy();
        if path.is_dir() && !name.starts_with('.') && !NOT_CHECKED.contains(&&*name) {
            sources(&path, found);
        } else if path.is_file() && name.ends_with(".rs") && !name.ends_with("tests.rs") && !is_stand_in(&name) && name != "build.rs" {
            found.push(path);
        }
    }
}

/// The name that a line declares: `struct`, `enum`, `union` and `trait` anywhere,
/// `type` at the beginning of a line, since an indented one is an associated type.
fn declared(line: &str) -> Option<&str> {
    let text = line.trim_start();
    let is_indented = text.len() < line.len();
    let text = match text.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')').map_or(rest, |(_, after)| after),
        Some(rest) => rest,
        None => text,
    };
    let (keyword, rest) = text.trim_start().split_once(' ')?;
    let is_type = match keyword {
        "struct" | "enum" | "union" | "trait" => true,
        "type" => !is_indented,
        _ => false,
    };
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    let name = &rest[..end];
    (is_type && name.starts_with(|c: char| c.is_ascii_uppercase())).then_some(name)
}

/// The crate that a file belongs to: what stands before `src`. Each example is a crate.
fn crate_of(file: &str) -> String {
    if file.starts_with("examples/") {
        return file.trim_end_matches(".rs").trim_end_matches("/mod").to_owned();
    }
    file.split_once("src/").map_or("", |(before, _)| before).trim_end_matches('/').to_owned()
}

/// Where each name is declared.
fn declarations(files: impl IntoIterator<Item = (String, String)>) -> BTreeMap<String, Vec<Declaration>> {
    let mut all: BTreeMap<String, Vec<Declaration>> = BTreeMap::new();
    for (file, text) in files {
        // Unit tests stand at the end of a file, and their helpers may have any name.
        let code = text.split("\nmod tests {").next().unwrap_or_default();
        for (index, line) in code.lines().enumerate() {
            if let Some(name) = declared(line) {
                let declaration = Declaration { crate_: crate_of(&file), file: file.clone(), line: index + 1 };
                all.entry(name.to_owned()).or_default().push(declaration);
            }
        }
    }
    all
}

/// What to say of names that are declared twice; empty if none is. An exception allows one declaration in each crate.
fn complaint(all: &BTreeMap<String, Vec<Declaration>>) -> String {
    let mut text = String::new();
    for (name, places) in all {
        let is_shared = SHARED.iter().any(|(shared, _)| shared == name);
        let twice_in_a_crate = places.iter().enumerate().any(|(i, place)| places[..i].iter().any(|other| other.crate_ == place.crate_));
        if places.len() > 1 && (!is_shared || twice_in_a_crate) {
            let _ = writeln!(text, "{} types are named `{name}`:", places.len());
            for Declaration { file, line, .. } in places {
                let _ = writeln!(text, "  {file}:{line}");
            }
        }
    }
    if !text.is_empty() {
        text.push_str("Give each a name that says what it is, such as `MembersReport` instead of `Report`. ");
        text.push_str("If it is one role in sibling crates, add the name to SHARED with the reason.\n");
    }
    text
}

fn workspace() -> BTreeMap<String, Vec<Declaration>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["src", "crates", "backends", "xtask", "examples", "fuzz/src"] {
        sources(&root.join(folder), &mut files);
    }
    let read = |path: &PathBuf| {
        let file = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{file}: {error}"));
        (file, text)
    };
    declarations(files.iter().map(read))
}

#[test]
fn no_two_types_share_a_name() {
    let all = workspace();
    assert!(all.len() > 500, "the sources were not read: {} types", all.len());
    let complaint = complaint(&all);
    assert!(complaint.is_empty(), "{complaint}");
}

#[test]
fn every_exception_is_still_needed() {
    let all = workspace();
    for (name, _) in SHARED {
        assert!(all.get(name).is_some_and(|places| places.len() > 1), "{name} is declared once: take it out of SHARED");
    }
}

#[test]
fn a_name_that_is_declared_twice_is_found_with_both_places() {
    let found =
        |files: &[(&str, &str)]| complaint(&declarations(files.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned()))));
    let twice = found(&[("src/a.rs", "struct Line;\n"), ("crates/core/src/b.rs", "\n    pub(super) enum Line {}\n")]);
    assert!(twice.contains("`Line`") && twice.contains("src/a.rs:1") && twice.contains("crates/core/src/b.rs:2"), "{twice}");
    assert!(!found(&[("src/a.rs", "type Line = u8;"), ("src/b.rs", "pub trait Line {}")]).is_empty());
    assert!(
        !found(&[("src/a.rs", "pub enum Error {}"), ("src/b.rs", "pub struct Error;")]).is_empty(),
        "an exception is one for each crate"
    );
    assert_eq!(found(&[("src/a.rs", "pub enum Error {}"), ("crates/core/src/b.rs", "pub struct Error;")]), "");
    assert_eq!(found(&[("src/a.rs", "    type Item = u8;"), ("src/b.rs", "    type Item = u8;")]), "", "associated types");
    assert_eq!(found(&[("src/a.rs", "struct Line;"), ("src/b.rs", "#[cfg(test)]\nmod tests {\n    struct Line;\n}")]), "", "a unit test");
}
