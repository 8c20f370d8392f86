//! Tests that need the whole workspace. This file is not part of the package, whose tests cannot use the other crates.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests report by panicking")]

mod common;

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use common::Place;
use shardwise::settings::{Fallback, SettingKey, Shape};
use shardwise_outbox::settings::known_keys;

#[test]
fn the_ring_of_the_tests_is_one_of_the_golden_vectors() {
    let (ring, vectors) = (include_str!("../testdata/circle.txt"), include_str!("../../core/testdata/circles.txt"));
    assert!(vectors.contains(ring), "testdata/circle.txt is not in crates/core/testdata/circles.txt any more: copy one from there");
}

const CLI_HEAD: &str = "# Command line

The help of every command, as the program prints it. `cargo install --locked --path crates/cli` installs `shardwise`;
`shardwise man` and `shardwise completions` print manual pages and completions.

Written by `SHARDWISE_WRITE_PAGES=1 cargo test -p shardwise-cli --all-features --test workspace`.
";

/// Writes that page of the book if requested, and compares it.
fn is_written(path: &str, page: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    if std::env::var_os("SHARDWISE_WRITE_PAGES").is_some() {
        std::fs::write(&file, page).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    let how = "SHARDWISE_WRITE_PAGES=1 cargo test -p shardwise-cli --all-features --test workspace";
    assert!(written == page, "{path} is out of date: run {how}");
}

/// The commands that a help text lists.
fn listed(help: &str) -> Vec<&str> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // The text after a long name begins on a separate line, further indented.
    let named = lines.filter_map(|line| line.strip_prefix("  ").filter(|name| !name.starts_with(' ')));
    named.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect()
}

/// The help of a command and all its subcommands.
fn describe(place: &Place, command: &[&str], page: &mut String) {
    let help = place.run(&[command, &["--help"]].concat()).well();
    let name = command.iter().fold("shardwise".to_owned(), |name, word| name + " " + word);
    // Writing to a String does not fail.
    let _ = writeln!(page, "\n## {name}\n\n```text\n{}\n```", help.trim_end());
    for below in listed(&help) {
        describe(place, &[command, &[below]].concat(), page);
    }
}

#[test]
fn the_page_of_the_command_line_is_its_help() {
    let mut page = CLI_HEAD.to_owned();
    describe(&Place::empty(), &[], &mut page);
    assert!(page.contains("\n## shardwise outbox replay-aggregate\n"), "not every command was found:\n{page}");
    is_written("docs/reference/cli.md", &page);
}

const SETTINGS_HEAD: &str = "# Settings

All keys, with what they allow and their defaults.
[`settings.toml`](https://github.com/shardwise/shardwise/blob/main/settings.toml) of the repository has the same as a
file to begin with.

## Where values come from

Each layer lies over the one before, key by key:

1. the defaults of the code;
2. the sections `[default…]` of the file;
3. the sections of the environment named by `SHARDWISE_ENV`, such as `[production…]`; a name without a section is an
   error;
4. variables: `SHARDWISE__RESILIENCE__SHARDING__POLICIES__<NAME>__<KEY>`, lists separated by commas.

The file is the one named on the command line or in code, else in `SHARDWISE_SETTINGS`, else `settings.toml` in the
working directory. A relative path in it begins at its folder. A relative path in a variable begins at the working
directory: use absolute paths there. `shardwise settings` prints every value in force with its file, section, line or
variable, and with `--why` what it is for. Secrets are masked everywhere.

- Durations are a whole number and a unit: `\"100ms\"`, `\"5s\"`, `\"10m\"`, `\"1h\"`, `\"7d\"`.
- Names of policies and outboxes match `[a-z][a-z0-9]*(_[a-z0-9]+)*`.
- An unknown key under `resilience.sharding` or `outbox` is an error that suggests the nearest known one. Other tables
  belong to your application, except one whose name is at most two letters off and that has contents of ours, such as
  `[default.resilience.shardng.policies.orders]`: it is refused. So is `[default.sharding…]`, without the level
  `resilience`.
- A section with settings of ours whose name is a slip of `default`, or of the environment in force if that has at least
  eight letters, is refused. For an environment, a slip is one missing, additional or swapped letter inside the word.
- A key that ends in `_file` names a file with a secret; its last newline is not part of it.
- A policy may have a table `discovery` with the same keys as the common one; they lie over it, key by key.

## All keys

Written from the tables in the code by
`SHARDWISE_WRITE_PAGES=1 cargo test -p shardwise-cli --all-features --test workspace`.
";

/// The allowed values of a key.
fn allowed(shape: Shape) -> String {
    match shape {
        Shape::Flag => "`true` or `false`".into(),
        Shape::Text | Shape::Secret => "text".into(),
        Shape::Texts => "list of texts".into(),
        Shape::OneOf(known) => known.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", "),
        Shape::Whole(min, max) => format!("{min} to {max}"),
        Shape::Time(min, max) => format!("{} to {}", duration(min), duration(max)),
        Shape::Margin => "0 to 10, or `none`".into(),
        Shape::Percent => "`1%` to `99%`".into(),
        other => panic!("say here what {other:?} allows"),
    }
}

/// The duration as written in a file, in the largest unit that gives a whole number.
fn duration(duration: Duration) -> String {
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];
    let millis = duration.as_millis();
    let (size, unit) = units.into_iter().find(|(size, _)| millis > 0 && millis.is_multiple_of(*size)).unwrap_or((1_000, "s"));
    format!("{}{unit}", millis / size)
}

fn default_of(key: &SettingKey) -> String {
    match key.fallback {
        Fallback::Text(text) => format!("`{text}`"),
        Fallback::Required(_) => "required".into(),
        _ => String::new(),
    }
}

#[test]
fn the_page_of_settings_is_the_table_of_keys() {
    let (mut page, mut above) = (SETTINGS_HEAD.to_owned(), String::new());
    for (name, key) in known_keys().iter().filter(|(name, _)| !name.contains("policies.*.discovery.")) {
        // `metadata.*` is a table of names that the user chooses.
        let (table, last) = name.strip_suffix(".*").unwrap_or(name).rsplit_once('.').unwrap();
        if table != above {
            table.clone_into(&mut above);
            let table = table.replace('*', "NAME");
            writeln!(page, "\n### `[default.{table}]`\n\n| key | allowed | default | meaning |\n|---|---|---|---|").unwrap();
        }
        let last = if name.ends_with(".*") { format!("{last}.NAME") } else { last.to_owned() };
        writeln!(page, "| `{last}` | {} | {} | {} |", allowed(key.shape), default_of(key), key.why).unwrap();
    }
    assert!(page.contains("| `sink_secret_file` |") && page.contains("| `group_name` |"), "not every key was found:\n{page}");
    is_written("docs/reference/settings.md", &page);
}

/// The package is not in the registries of Python and Node yet, and may be another project's there.
#[test]
fn no_page_installs_a_client_by_its_name() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for page in ["README.md", "docs/howto/other-languages.md", "clients/python/README.md", "clients/typescript/README.md"] {
        let text = std::fs::read_to_string(root.join(page)).unwrap();
        for by_name in ["pip install shardwise", "npm install shardwise"] {
            assert!(!text.contains(by_name), "{page}: {by_name}");
        }
        let is_client = page.starts_with("clients");
        assert!(!is_client || text.contains("../shardwise/clients/"), "{page} does not say how to install the client");
    }
}

/// The blocks of settings on that page.
fn blocks(page: &str) -> Vec<&str> {
    let blocks = page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.filter(|block| block.contains("[default")).collect()
}

#[test]
fn settings_on_pages_of_the_book_are_accepted() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let mut tried = 0;
    for page in ["start", "howto"].iter().flat_map(|folder| std::fs::read_dir(docs.join(folder)).unwrap()) {
        let path = page.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let blocks = blocks(&text);
        for block in &blocks {
            // A block may continue the page's first one.
            let ran = [(*block).to_owned(), format!("{}\n{block}", blocks[0])].map(|settings| {
                let place = Place::with_settings(&settings);
                for secret in ["consul.token", "outbox.password", "nats.password", "peers.token", "postgres.password", "valkey.password"] {
                    place.write(secret, "secret-of-the-test\n");
                    std::fs::set_permissions(place.path(secret), std::fs::Permissions::from_mode(0o600)).unwrap();
                }
                place.run(&["settings"])
            });
            assert!(ran.iter().any(|ran| ran.code == Some(0)), "{}:\n{block}\n{ran:?}", path.display());
            tried += 1;
        }
    }
    assert!(tried >= 6, "only {tried} blocks were found");
}
