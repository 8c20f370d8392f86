//! The settings of the backend `local`, as an example of those that a backend brings with it.

use super::*;

fn path(settings: &Settings) -> &Path {
    settings.policy("workers").unwrap().discovery.options.path("path").unwrap()
}

#[test]
fn its_path_comes_from_the_policy_the_common_table_a_variable_or_the_default() {
    let common = "[default.resilience.sharding.discovery]\nlocal.path = \"all.db\"\n";
    assert_eq!(path(&read(WORKERS)), Path::new("shardwise.db"));
    assert_eq!(path(&read(&format!("{common}{WORKERS}"))), Path::new("all.db"));
    assert_eq!(path(&read(&format!("{common}{WORKERS}discovery.local.path = \"own.db\""))), Path::new("own.db"));
    let variables = [("SHARDWISE__RESILIENCE__SHARDING__DISCOVERY__LOCAL__PATH", "here.db")];
    let options = LoadOptions::default().with_variables(variables);
    assert_eq!(path(&Settings::load(&options.clone().with_text(format!("{common}{WORKERS}"))).unwrap()), Path::new("here.db"));
}

#[test]
fn it_is_taken_from_the_directory_of_the_file_and_in_a_variable_from_the_working_directory() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    std::fs::write(&file, WORKERS).unwrap();
    let options = LoadOptions::default().with_file(&file);
    assert_eq!(path(&Settings::load(&options).unwrap()), folder.path().join("shardwise.db"));
    let variable = [("SHARDWISE__RESILIENCE__SHARDING__DISCOVERY__LOCAL__PATH", "w.db")];
    assert_eq!(path(&Settings::load(&options.with_variables(variable)).unwrap()), Path::new("w.db"));
}

#[test]
fn mistakes() {
    assert_eq!(refused_policy_line("path = \"x\""), "path is not a setting: did you mean discovery.local.path?");
    assert_eq!(refused_policy_line("discovery.local.pat = \"x\""), "discovery.local.pat is not a setting: did you mean path?");
    assert_eq!(refused_policy_line("discovery.local.path = \"\""), "discovery.local.path is \"\": write the path of a file");
    let table = message(with(WORKERS, &["~DISCOVERY__LOCAL=1"]));
    assert!(table.ends_with("discovery.local is a table of settings: add __ and the name of one of them"), "{table}");
}
