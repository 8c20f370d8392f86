//! An entry of a table that nothing uses: a settings key that is not read, or a metric that is not recorded. The table itself names each
//! constant, so the compiler does not find it.

use std::fs;
use std::path::Path;

use crate::imports::{files, shipped};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The code of the files below a folder, without comments, `use` statements and unit tests; without the files of these names.
fn code_below(folder: &str, without: &[&str]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut code = String::new();
    for file in files(&root.join(folder)) {
        let name = file.file_name().unwrap().to_string_lossy();
        if !without.contains(&&*name) && !name.ends_with("tests.rs") {
            code += &uses(&fs::read_to_string(&file).unwrap());
        }
    }
    code
}

/// What a file does with names: an import alone uses none.
fn uses(file: &str) -> String {
    let code: String = shipped(file).lines().map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n").collect();
    let is_import = |statement: &&str| statement.contains("\nuse ") || statement.starts_with("use ");
    code.split(';').filter(|statement| !is_import(statement)).collect::<Vec<_>>().join(";\n")
}

/// Whether the code has that path or name, and not as a part of a longer one.
fn names(code: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(name).any(|(at, _)| {
        let (before, after) = (code[..at].chars().next_back(), code[at + name.len()..].chars().next());
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// The constants of a table of keys.
fn keys(table: &str) -> Vec<&str> {
    let lines = table.lines().filter_map(|line| line.strip_prefix("pub(super) const "));
    lines.filter_map(|line| Some(line.split_once(": SettingKey = ")?.0)).collect()
}

/// The constants of the library's table of metrics.
fn metrics(table: &str) -> Vec<&str> {
    table.lines().filter_map(|line| Some(line.trim_start().split_once(": \"shardwise_")?.0)).collect()
}

#[test]
fn every_settings_key_is_read() {
    // Each table, the folder whose files read its keys, and the file where most are read. `schema.rs` only says which tables have a key.
    let tables = [
        ("src/settings/keys.rs", "src/settings", "src/settings/policy.rs", 30),
        ("crates/outbox/src/settings/keys.rs", "crates/outbox/src/settings", "crates/outbox/src/settings/mod.rs", 20),
    ];
    for (table, folder, reader, least) in tables {
        let (table, code) = (read(table), code_below(folder, &["keys.rs", "schema.rs"]));
        let keys = keys(&table);
        assert!(keys.len() > least, "the keys of {folder} were not found: {keys:?}");
        for key in keys {
            assert!(names(&code, &format!("keys::{key}")), "`{key}` is in keys.rs, but nothing reads it: read it in {reader}");
        }
    }
}

#[test]
fn every_metric_is_recorded() {
    let (table, code) = (read("src/telemetry/metrics/mod.rs"), code_below("src/telemetry/metrics", &["mod.rs"]));
    let metrics = metrics(&table);
    assert!(metrics.len() > 20, "the metrics were not found: {metrics:?}");
    for metric in metrics {
        assert!(
            names(&code, metric),
            "`{metric}` is in the table of metrics, but nothing records it: record it in src/telemetry/metrics/meters.rs, or in requests.rs \
             there"
        );
    }
}

#[test]
fn an_entry_that_is_only_imported_or_mentioned_is_not_used() {
    let file = "//! LOAD\nuse super::{\n    LOAD, TTL,\n};\n\nfn f() {\n    gauge(&TTL); // LOAD\n    LOAD_MARGIN;\n}\n";
    let tested = format!("{file}\n#[cfg(test)]\nmod tests {{\n    LOAD\n}}\n");
    let code = uses(&tested);
    assert!(names(&code, "TTL") && !names(&code, "LOAD"), "{code}");
    assert_eq!(keys("const DAY: u8 = 1;\npub(super) const ID: SettingKey = SettingKey::new(\"id\", Text,\n"), ["ID"]);
    assert_eq!(metrics("    LOAD: \"shardwise_load\", Gauge, \"none\", POLICY,\n        \"Help\";\n"), ["LOAD"]);
}
