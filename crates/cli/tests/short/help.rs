//! Help texts, and the errors for wrong arguments.

use crate::common::Place;

const COMMANDS: [(&[&str], &[&str]); 41] = [
    (&[], &["demo", "init", "outbox", "watch", "ring", "settings", "--version"]),
    (&["demo"], &["--workers", "--events", "20000", "--aggregates", "--rate", "2000", "--ttl", "3s", "--keep", "--from", "SIGKILL"]),
    (&["init"], &["--outbox", "settings.toml"]),
    (&["settings"], &["--why"]),
    (
        &["watch"],
        &["--policy", "--join", "--id", "observing", "--items", "--renewals", "--slots", "owned_until_ns", "view_fingerprint", "SIGTERM"],
    ),
    (
        &["serve"],
        &[
            "--policy",
            "--id",
            "--listen",
            "127.0.0.1:8087",
            "--token-file",
            "--caller-token-file",
            "--tls-cert",
            "--allow-host",
            "--peer-cert",
            "openapi.json",
            "SIGTERM",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
        ],
    ),
    (&["members"], &["--policy", "drained", "undrained", "died", "Exit code 1"]),
    (&["owner"], &["<KEY>", "--policy", "Exit code 1"]),
    (&["explain"], &["<KEY>", "--policy", "Exit code 1"]),
    (&["holders"], &["--slots", "--policy", "version_rule", "Exit code 1"]),
    (&["daemons"], &["<SET>", "[COUNT]", "--policy", "Exit code 1"]),
    (&["rebalances"], &["--follow", "--policy", "moved_share"]),
    (&["drain"], &["<ID>", "--policy", "--wait", "Exit code 1"]),
    (&["undrain"], &["<ID>", "--policy", "Exit code 1"]),
    (
        &["ask"],
        &["<PATH>", "--key", "--name", "--member", "--session", "--any", "--method", "--data", "--within", "Exit code 1", "Exit code 4"],
    ),
    (&["route"], &["<KEY>", "--policy", "Exit code 1"]),
    (&["routes"], &["set", "clear", "list", "shardwise routes set tenant-7"]),
    (&["routes", "set"], &["[KEY]", "--hash", "--width", "--skip", "max_width"]),
    (&["routes", "clear"], &["[KEY]", "--hash", "Exit code 1"]),
    (&["probe"], &["--at", "127.0.0.1:8087", "--path", "/readyz", "/livez", "--within", "Exit code 1"]),
    (&["completions"], &["<SHELL>", "fish"]),
    (&["man"], &["--out"]),
    (&["ring"], &["owners", "plan", "explain"]),
    (&["ring", "plan"], &["--members", "--members-file", "--join", "--leave", "--slots", "1024"]),
    (&["ring", "explain"], &["<KEY>", "--members", "--members-file", "--slots", "1024"]),
    (
        &["ring", "owners"],
        &["--members", "--members-file", "--placement", "--slots", "--virtual-nodes", "--load-margin", "-0", "empty key"],
    ),
    (&["backend"], &["init", "epoch"]),
    (&["backend", "init"], &["--policy", "postgres"]),
    (&["backend", "epoch"], &["--policy", "epoch_floor", "Exit code 4"]),
    (&["outbox"], &["init", "enqueue", "run", "status", "unblock", "list", "replay", "replay-aggregate", "discard", "audit", "restored"]),
    (&["outbox", "init"], &["--name"]),
    (&["outbox", "enqueue"], &["--name", "--from", "aggregatetype", "Exit code 1"]),
    (&["outbox", "run"], &["--name", "--id", "--listen", "--allow-host", "/metrics", "SIGTERM", "OTEL_EXPORTER_OTLP_ENDPOINT"]),
    (&["outbox", "status"], &["--name"]),
    (&["outbox", "unblock"], &["--name", "--key", "Exit code 1"]),
    (&["outbox", "list"], &["--name", "--key", "--limit"]),
    (&["outbox", "replay"], &["--name", "--all", "--reason", "--as", "newest event of its aggregate", "Exit code 1"]),
    (&["outbox", "replay-aggregate"], &["--name", "<KEY>", "--from", "--limit", "--reason", "--as", "Exit code 1"]),
    (&["outbox", "discard"], &["--name", "<ID>", "--reason", "--as", "Exit code 1"]),
    (&["outbox", "audit"], &["--name", "--limit"]),
    (&["outbox", "restored"], &["--name", "--epoch-above", "--sequence-above", "Stop all publishers"]),
];

#[test]
fn every_command_has_help_that_names_its_options() {
    let place = Place::empty();
    for (command, named) in COMMANDS {
        let help = place.run(&[command, &["--help"]].concat()).well();
        for name in named.iter().chain(&["--output", "--json", "--settings", "Usage: shardwise"]) {
            assert!(help.contains(name), "{command:?} --help does not name {name}:\n{help}");
        }
        assert!(!help.contains("exit-with-parent"), "what is for the program itself is not shown");
        let longest = help.lines().max_by_key(|line| line.chars().count()).unwrap_or_default();
        assert!(longest.chars().count() <= 100, "{command:?} --help has a line that does not fit: {longest}");
        // Only the list of commands may be longer than an old terminal.
        assert!(help.lines().count() <= if command.is_empty() { 50 } else { 40 }, "{command:?} --help does not fit on a screen:\n{help}");
        assert_eq!(place.run(&[command, &["-h"]].concat()).well(), help, "the short help is all there is");
    }
    assert_eq!(place.run(&["--version"]).well(), concat!("shardwise ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn the_exit_codes_are_documented() {
    let help = Place::empty().run(&["--help"]).well();
    let (_, codes) = help.split_once("Exit codes:\n").unwrap_or_default();
    for code in ["  0  ", "  1  ", "  2  ", "  3  ", "  4  ", "  5  ", "  130  "] {
        assert!(codes.contains(code), "{code:?} is not among them:\n{help}");
    }
}

#[test]
fn the_manual_is_written_into_a_new_folder() {
    let place = Place::empty();
    place.run(&["man", "--out", "new/man1"]).well();
    assert!(place.path("new/man1/shardwise.1").exists());
}

#[test]
fn the_example_in_the_demos_help_can_be_copied_into_a_shell() {
    let help = Place::empty().run(&["demo", "--help"]).well();
    let (_, example) = help.split_once("git log ").unwrap_or_default();
    let joined = example.replace("\\\n", "").replace("|\n", "|");
    let command = joined.lines().next().unwrap_or_default();
    assert!(command.contains("--format='{\"aggregatetype\":") && command.ends_with("shardwise demo --from -"), "{help}");
}

#[test]
fn without_a_command_the_help_comes_and_the_exit_code_is_2() {
    for command in [&[][..], &["backend"], &["ring"], &["outbox"]] {
        let ran = Place::empty().run(command);
        assert!(ran.code == Some(2) && ran.out.is_empty() && ran.err.contains("Usage: shardwise"), "{command:?}: {ran:?}");
    }
}

#[test]
fn wrong_arguments_get_one_line_and_exit_code_2() {
    let cases: [(&[&str], &[&str]); 15] = [
        (&["wacth"], &["wacth", "'watch'", "--help"]),
        (&["drain"], &["<ID>"]),
        (&["watch", "--policy", "workers", "--renewal"], &["'--renewal'", "'--renewals'"]),
        (&["settings", "--output", "xml"], &["xml", "human, json"]),
        (&["outbox", "satus"], &["satus", "'status'"]),
        (&["outbox", "enqueue", "surplus"], &["surplus"]),
        (&["serve", "--listen", "localhost:8090"], &["'--listen <ADDRESS>'", "write a port, such as 9600"]),
        // A port alone is an address; only the file with the settings is missing.
        (&["serve", "--listen", "8090"], &["settings.toml"]),
        (&["probe", "--at", "127.0.0.1"], &["'--at <ADDRESS>'", "write ADDRESS:PORT, such as 127.0.0.1:8087"]),
        (&["demo", "--events", "none"], &["none", "--events"]),
        (&["demo", "--workers", "0"], &["0", "1..=64"]),
        (&["demo", "--ttl", "3"], &["\"3\"", "\"5s\""]),
        (&["demo", "--from", "events", "--events", "3"], &["--events", "--from"]),
        (&["demo", "--settings", "mine.toml"], &["--settings has no use here", "its options"]),
        (&["ring", "owners", "--members", "a", "--settings", "mine.toml"], &["--settings has no use here", "by their options"]),
    ];
    for (arguments, parts) in cases {
        Place::empty().run(arguments).fails(2, parts);
    }
}
