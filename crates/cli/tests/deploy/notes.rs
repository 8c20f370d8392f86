//! The notes in `deploy/README.md` for ECS and Nomad.

use std::process::Command;

use crate::common::{Place, run};
use crate::{is_pinned, settings, takes, text};

const POLICY: &str = "[default.resilience.sharding.policies.p]\ngroup_name = \"g\"\n";

/// The first code block in that language after these words.
fn code(words: &str, language: &str) -> String {
    let notes = text("README.md");
    let (_, rest) = notes.split_once(words).unwrap_or_else(|| panic!("nothing is said of {words}"));
    let begin = format!("```{language}\n");
    let code = rest.split_once(begin.as_str()).and_then(|(_, rest)| rest.split_once("```"));
    code.unwrap_or_else(|| panic!("{words}: there is no {language}")).0.to_owned()
}

/// Checks that our loader knows each variable there, and accepts a value as the platform would pass it.
fn variables_are_known(code: &str, count: usize) {
    let words = code.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let names: Vec<_> = words.filter(|word| word.starts_with("SHARDWISE__")).collect();
    assert_eq!(names.len(), count, "{names:?}");
    let value = |name: &str| match name.rsplit("__").next() {
        Some("ADDRESS") => "10.1.2.3",
        Some("PORT") => "8080",
        _ => "a-task",
    };
    let variables: Vec<_> = names.iter().map(|&name| (name, value(name))).collect();
    let get = settings(POLICY, &variables);
    for (name, value) in variables {
        let key = name.trim_start_matches("SHARDWISE__").replace("__", ".").to_lowercase();
        assert_eq!(get(&key), value, "{name}");
    }
}

#[test]
fn the_entry_point_for_ecs_is_a_script_with_settings_of_ours() {
    let script = code("**ECS**", "sh");
    let place = Place::empty();
    let checked = |name: &str, script: &str| {
        place.write(name, script);
        let mut shell = Command::new("sh");
        shell.arg("-n").arg(place.path(name));
        run(shell, b"")
    };
    let ran = checked("entry.sh", &script);
    assert!(ran.code == Some(0) && ran.err.is_empty(), "{ran:?}");
    assert_ne!(checked("broken.sh", &script.replacen(')', "", 1)).code, Some(0), "a mistake is seen");
    assert!(script.trim_end().ends_with("exec shardwise \"$@\""), "signals have to reach the program: {script}");
    variables_are_known(&script, 3);
}

#[test]
fn the_job_for_nomad_starts_the_program_with_settings_of_ours() {
    let job = code("**Nomad**", "hcl");
    let set = |name: &str| {
        let found = job.lines().filter_map(|line| line.split_once('=')).find(|(left, _)| left.trim() == name);
        found.unwrap_or_else(|| panic!("there is no {name}")).1.trim().to_owned()
    };
    // A list of strings is written as in JSON.
    let arguments: Vec<String> = serde_json::from_str(&set("args")).unwrap();
    takes(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    is_pinned(set("image").trim_matches('"'));
    variables_are_known(&job, 4);
}
