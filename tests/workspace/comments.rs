//! Comments are as wide as the code, which rustfmt does not check.

use std::fs;
use std::path::Path;

use crate::imports::files;

/// `max_width` of `rustfmt.toml`.
const WIDTH: usize = 140;
const FOLDERS: [&str; 8] = ["src", "crates", "backends", "tests", "benches", "examples", "fuzz", "xtask"];

/// The numbers of the comment lines that are too wide. Lines of code are rustfmt's: it leaves alone only literals that it cannot break.
fn too_wide(code: &str) -> Vec<usize> {
    let lines = code.lines().zip(1..);
    lines.filter(|(line, _)| line.trim_start().starts_with("//") && line.chars().count() > WIDTH).map(|(_, number)| number).collect()
}

#[test]
fn no_comment_is_wider_than_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut wide, mut read) = (Vec::new(), 0);
    for file in FOLDERS.iter().flat_map(|folder| files(&root.join(folder))) {
        read += 1;
        let inside = file.strip_prefix(root).unwrap().display();
        wide.extend(too_wide(&fs::read_to_string(&file).unwrap()).into_iter().map(|line| format!("  {inside}:{line}")));
    }
    assert!(read > 1_000, "the sources were not read: {read} files");
    assert!(wide.is_empty(), "wrap these comments at {WIDTH} columns:\n{}", wide.join("\n"));
}

#[test]
fn a_wide_comment_is_found_by_its_characters() {
    let wide = "x".repeat(WIDTH - 3);
    assert_eq!(too_wide(&format!("fn f() {{}}\n    /// {wide}\n//! {wide}\n// {wide}\nlet s = \"// {wide}\";")), [2, 3]);
    assert_eq!(too_wide(&format!("// {}", "…".repeat(WIDTH - 3))), Vec::<usize>::new(), "columns, not bytes");
}
