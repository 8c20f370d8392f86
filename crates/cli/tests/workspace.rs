//! What holds only inside the workspace. This file is not part of the package, whose tests have to do without their neighbours.

mod common;

use std::fmt::Write as _;
use std::path::Path;

use common::Place;

#[test]
fn the_circle_of_the_tests_is_one_of_the_golden_vectors() {
    let (circle, vectors) = (include_str!("../testdata/circle.txt"), include_str!("../../core/testdata/circles.txt"));
    assert!(vectors.contains(circle), "testdata/circle.txt is not in crates/core/testdata/circles.txt any more: copy one from there");
}

const HEAD: &str = "# Command line

The help of every command, as the program prints it. `cargo install --path crates/cli` installs `shardwise`;
`shardwise man` and `shardwise completions` print manual pages and completions.

Written by `SHARDWISE_WRITE_PAGES=1 cargo test -p shardwise-cli --all-features --test workspace`.
";

/// The commands that a help lists.
fn listed(help: &str) -> Vec<&str> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // What is behind a long name begins a line of its own, further in.
    let named = lines.filter_map(|line| line.strip_prefix("  ").filter(|name| !name.starts_with(' ')));
    named.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect()
}

/// The help of a command and of all below it.
fn describe(place: &Place, command: &[&str], page: &mut String) {
    let help = place.run(&[command, &["--help"]].concat()).well();
    let name = command.iter().fold("shardwise".to_owned(), |name, word| name + " " + word);
    writeln!(page, "\n## {name}\n\n```text\n{}\n```", help.trim_end()).unwrap();
    for below in listed(&help) {
        describe(place, &[command, &[below]].concat(), page);
    }
}

#[test]
fn the_page_of_the_command_line_is_its_help() {
    let mut page = HEAD.to_owned();
    describe(&Place::empty(), &[], &mut page);
    assert!(page.contains("\n## shardwise outbox replay-aggregate\n"), "not every command was found:\n{page}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
    if std::env::var_os("SHARDWISE_WRITE_PAGES").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let how = "SHARDWISE_WRITE_PAGES=1 cargo test -p shardwise-cli --all-features --test workspace";
    assert!(written == page, "docs/reference/cli.md is out of date: run {how}");
}
