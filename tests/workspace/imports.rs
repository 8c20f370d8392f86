//! Reads which modules of its own crate a source file imports from.

use std::fs;
use std::path::{Path, PathBuf};

/// The Rust files below `folder`.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|e| e == "rs"))
        .collect()
}

/// The module path of a file, relative to `src`: `["work", "named"]` for `work/named.rs`.
pub(crate) fn module(file: &Path) -> Vec<String> {
    let mut parts: Vec<_> = file.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    parts.retain(|part| part != "mod");
    parts
}

/// What the code of a file `depth` modules deep takes from the crate's root, by its first name there: behind `crate::`, or behind as many
/// `super::` as lead to the root.
pub(crate) fn from_root(code: &str, depth: usize) -> Vec<String> {
    let code: String = code.lines().map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n").collect();
    let climb = "super::".repeat(depth);
    let mut names = Vec::new();
    for start in ["crate::", &climb] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || "_$:".contains(c)) {
                continue;
            }
            names.extend(first_names(&code[at + start.len()..]));
        }
    }
    names
}

/// The first name of a path, or of each path in braces.
fn first_names(path: &str) -> Vec<String> {
    let name = |text: &str| text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let Some(group) = path.strip_prefix('{') else { return vec![name(path)] };
    let (mut names, mut open, mut starts) = (Vec::new(), 0_usize, true);
    for (at, c) in group.char_indices() {
        if std::mem::take(&mut starts) {
            names.push(name(&group[at..]));
        }
        match c {
            '{' => open += 1,
            '}' if open == 0 => break,
            '}' => open -= 1,
            ',' if open == 0 => starts = true,
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// The code without the unit tests at its end, which are a level deeper.
pub(crate) fn shipped(text: &str) -> &str {
    text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default()
}
