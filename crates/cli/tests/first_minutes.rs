//! The first steps of a new user: the first settings, short ids, a terminal.

#![expect(clippy::unwrap_used, reason = "tests report by panicking")]

mod common;

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use common::process::Process;
use common::{PATIENCE, Place, ended, eventually, workers};
use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn with_outbox() -> Place {
    Place::with_settings(
        &(workers("2s", "slots = 64")
            + "[default.resilience.sharding.policies.publishers]\ngroup_name = \"publishers\"\n\
               [default.outbox.orders]\npolicy = \"publishers\"\nstore = \"sqlite:orders.db\"\nsink = \"file:delivered.jsonl\"\n"),
    )
}

fn joins(place: &Place, id: &str) -> Process {
    let mut worker = Process::start(place.command(&["watch", "--join", "--id", id]));
    let line = worker.prints("is active", |line| line["state"] == "active");
    assert_eq!((&line["instance_id"], &line["policy"]), (&id.into(), &"workers".into()));
    worker
}

#[test]
fn init_writes_ten_lines_that_hold_and_never_changes_a_file() {
    let place = Place::empty();
    place.run(&["members"]).fails(2, &["there is no settings.toml in /", "write one with `shardwise init`"]);
    // Regression: the command that was printed wrote another file.
    place
        .run(&["members", "--settings", "nope.toml"])
        .fails(2, &["nope.toml does not exist", "`shardwise init --settings nope.toml` writes one"]);
    let reported = place.run(&["init"]).well();
    assert!(reported.starts_with("wrote settings.toml: ") && reported.contains("shardwise members"), "{reported}");
    let written = std::fs::read_to_string(place.path("settings.toml")).unwrap();
    assert_eq!(written.lines().count(), 10, "{written}");
    assert!(place.run(&["settings"]).well().contains("settings.toml line 4"), "each value says where it is from");
    place.run(&["init"]).fails(4, &["settings.toml is there already and was not changed", "--settings FILE"]);
    assert_eq!(std::fs::read_to_string(place.path("settings.toml")).unwrap(), written);
    place.run(&["init", "--settings", "no/such/folder.toml"]).fails(3, &["no/such/folder.toml"]);
}

/// Regression: the next commands did not find a file that `--settings` named.
#[test]
fn what_init_suggests_works_as_it_is_written() {
    assert!(Place::empty().run(&["init"]).well().contains("\nnext:\n"));
    let place = Place::empty();
    let named = ["--settings", "mine.toml"];
    let reported = place.run(&[&["init"][..], &named].concat()).well();
    assert!(reported.contains("\nnext, each with --settings mine.toml:\n"), "{reported}");
    let (watch, _) = reported.lines().find_map(|line| line.strip_prefix("  shardwise ")?.split_once("  ")).unwrap();
    let mut worker = Process::start(place.command(&[&watch.split(' ').collect::<Vec<_>>()[..], &named].concat()));
    worker.prints("is active", |line| line["state"] == "active");
    assert!(place.run(&[&["members"][..], &named].concat()).well().contains("worker-1"));
}

/// Regression: with a wrong path a worker was alone in a new file, and an observer saw no members; neither named the file.
#[test]
fn a_new_store_and_a_missing_one_are_named() {
    let place = Place::of_workers("2s", "slots = 64");
    let folder = std::fs::canonicalize(place.path(".")).unwrap();
    let looked = place.run(&["members"]);
    let missing = format!("shardwise: there is no file {} yet: ", folder.join("shardwise.db").display());
    assert!(looked.code == Some(1) && looked.err.starts_with(&missing) && looked.err.lines().count() == 1, "{looked:?}");
    let operators: [&[&str]; 4] = [&["confirm-loss"], &["end-absence", "worker-1"], &["drain", "worker-1"], &["undrain", "worker-1"]];
    for command in operators {
        let ran = place.run(command);
        assert!(ran.code != Some(0) && ran.err.matches(&missing).count() == 1, "{command:?}: {ran:?}");
    }
    let mut sidecar = Process::start(place.command(&["serve", "--observe", "workers", "--listen", "127.0.0.1:0"]));
    sidecar.prints("it listens", |line| line["listening"].is_string());
    sidecar.signal(Signal::SIGTERM);
    let ran = sidecar.ends("after SIGTERM");
    assert!(ran.code == Some(0) && ran.err.matches(&missing).count() == 1, "{ran:?}");
    assert!(!folder.join("shardwise.db").exists(), "an observer makes no file");

    let created = format!("created a new store: workers with another path are in another group path={:?}\n", folder.join("shardwise.db"));
    for (id, lines) in [("worker-1", 1), ("worker-2", 0)] {
        let mut worker = joins(&place, id);
        worker.signal(Signal::SIGTERM);
        let ran = worker.ends("after SIGTERM");
        assert_eq!((ran.code, ran.err.matches(&created).count(), ran.err.lines().count()), (Some(0), lines, lines), "{ran:?}");
    }

    let mut elsewhere = place.command(&["members"]);
    elsewhere.env("SHARDWISE__RESILIENCE__SHARDING__DISCOVERY__LOCAL__PATH", "other/shardwise.db");
    let ran = common::run(elsewhere, b"");
    assert!(ran.code == Some(1) && ran.err.contains(&format!("no file {} yet", folder.join("other/shardwise.db").display())), "{ran:?}");
}

/// Regression: the watches of members and of claims both said so.
#[test]
fn a_missing_store_is_logged_once() {
    let place = Place::of_workers("2s", "slots = 64\nownership = \"exclusive\"");
    let mut command = place.command(&["watch", "--join", "--id", "worker-1"]);
    command.env("RUST_LOG", "info");
    let mut worker = Process::start(command);
    worker.prints("is active", |line| line["state"] == "active");
    worker.signal(Signal::SIGTERM);
    let ran = worker.ends("after SIGTERM");
    assert!(ran.err.contains("created a new store: ") && ran.err.matches("there is no such file yet").count() <= 1, "{ran:?}");
}

/// An empty file would be refused as settings, and by the `init` that is tried again.
#[test]
fn init_leaves_no_file_that_it_could_not_write() {
    let place = Place::empty();
    let program = place.command(&[]).get_program().to_owned();
    // No file may grow: what a full disk answers, for this process alone.
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 0; trap '' XFSZ; exec \"$0\" init"]).arg(program).current_dir(place.path("."));
    common::run(command, b"").fails(3, &["cannot write settings.toml"]);
    assert!(!place.path("settings.toml").exists(), "half a file is left");
    place.run(&["init"]).well();
}

#[test]
fn init_with_an_outbox_is_enough_for_the_outbox() {
    let place = Place::empty();
    let reported = place.run(&["init", "--outbox", "--json"]).json();
    assert_eq!(reported, serde_json::json!({"settings": "settings.toml", "policy": "my_custom_workers", "outbox": "orders"}));
    assert_eq!(place.run(&["outbox", "init"]).well(), "the outbox is ready: orders.db\n");
}

/// Regression: the message asked for a name although there was none to give.
#[test]
fn without_any_outbox_the_message_says_what_to_add() {
    for arguments in [&["outbox", "status"][..], &["outbox", "run"]] {
        let ran = Place::of_workers("2s", "").run(arguments);
        ran.fails(2, &["the settings have no outbox: add [default.outbox.NAME]", "shardwise init --outbox"]);
        assert!(!ran.err.contains("--name"), "{ran:?}");
    }
}

#[test]
fn without_any_policy_the_message_names_the_file_and_what_to_add() {
    let place = Place::with_settings("[default.resilience.sharding]\nenabled = true\n");
    place.run(&["members"]).fails(2, &["there is no policy in settings.toml: add [default.resilience.sharding.policies.NAME]"]);
}

#[test]
fn the_only_policy_of_workers_need_not_be_named() {
    let place = with_outbox();
    let _worker = joins(&place, "worker-1");
    assert!(place.run(&["members"]).well().contains("worker-1"));
    assert_eq!(place.run(&["owner", "tenant-7"]).well(), "worker-1\n");
    place.run(&["watch", "--id", "worker-2"]).fails(2, &["--id has no use here"]);

    let of = |policy: &str| {
        let mut command = place.command(&["members"]);
        command.env("SHARDWISE_POLICY", policy);
        common::run(command, b"")
    };
    assert_eq!(of("publishers").code, Some(1), "nobody publishes");
    assert_eq!(of("").code, Some(0), "an empty variable is none");
    of("publisher").fails(2, &["\"publisher\"", "known: publishers, workers", "the name is the value of SHARDWISE_POLICY"]);
    // Regression: only some commands suggested a policy.
    for command in ["members", "holders", "rebalances"] {
        place.run(&[command, "--policy", "publisher"]).fails(2, &["(did you mean publishers?)"]);
    }

    let several = workers("2s", "") + "[default.resilience.sharding.policies.others]\ngroup_name = \"others\"\n";
    let several = Place::with_settings(&several);
    several.run(&["members"]).fails(2, &["which policy?", "--policy NAME", "SHARDWISE_POLICY", "others, workers"]);
}

#[test]
fn drain_finds_a_member_by_a_short_id() {
    let place = Place::of_workers("2s", "slots = 64");
    let _workers = ["eu/worker-1", "web-a", "web-b"].map(|id| joins(&place, id));
    let asked = "eu/worker-1 is asked to drain: it reads that within a TTL and finishes its work; see shardwise members --policy workers\n";
    assert_eq!(place.run(&["drain", "worker-1"]).well(), asked);
    assert_eq!(place.run(&["undrain", "worker-1", "--json"]).json()["instance_id"], "eu/worker-1");
    place.run(&["drain", "web"]).fails(4, &["which member? web may be any of web-a, web-b"]);
    place.run(&["drain", "worker"]).fails(4, &["worker", "web-a"]);
}

#[test]
fn a_group_without_members_is_named_where_one_is_to_be_drained() {
    let place = Place::of_workers("2s", "");
    let ran = place.run(&["drain", "worker-1"]);
    let lines: Vec<&str> = ran.err.lines().collect();
    assert!(ran.code == Some(4) && lines.len() == 2 && lines[0].contains("there is no file "), "{ran:?}");
    assert!(lines[1].contains("policy workers has no members, so none is called worker-1") && lines[1].contains("--policy"), "{ran:?}");
    assert!(place.run(&["members"]).text().ends_with("\npolicy workers: 0 members at revision 0, view 2d06800538d394c2\n"));
}

/// A command on a new terminal, and its output there.
struct OnTerminal {
    child: Child,
    screen: File,
    written: String,
}

impl OnTerminal {
    fn start(mut command: Command) -> Self {
        let terminal = openpty(None, None).unwrap();
        let output = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
        command.env("TERM", "xterm").env_remove("NO_COLOR").stdin(Stdio::null());
        Self::spawn(command.stdout(output(&terminal.slave)).stderr(output(&terminal.slave)), terminal.master.into())
    }

    fn spawn(command: &mut Command, screen: File) -> Self {
        let child = command.spawn().unwrap();
        // Drop the command's handles of the terminal, so that the end of the output is seen.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self { child, screen, written: String::new() }
    }

    /// Reads until the text appears; it must appear before the end of the output.
    fn until(&mut self, text: &str) {
        let mut bytes = [0; 4096];
        while !self.written.contains(text) {
            let read = self.screen.read(&mut bytes).unwrap_or(0);
            assert!(read > 0, "ended without {text:?}: {:?}", self.written);
            self.written += &String::from_utf8_lossy(&bytes[..read]);
        }
    }

    /// The whole output, after the command has succeeded.
    fn ends(mut self) -> String {
        let mut bytes = [0; 4096];
        // On Linux the end of a terminal's output is an error.
        while let Ok(read @ 1..) = self.screen.read(&mut bytes) {
            self.written += &String::from_utf8_lossy(&bytes[..read]);
        }
        assert!(ended(&mut self.child, PATIENCE, "on a terminal").success(), "{:?}", self.written);
        std::mem::take(&mut self.written)
    }

    fn interrupt(&self) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), Signal::SIGINT).unwrap();
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        // The process may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_terminal_shows_colours_unless_it_is_asked_not_to() {
    let place = Place::of_workers("2s", "slots = 64");
    let _worker = joins(&place, "worker-1");
    let shown = OnTerminal::start(place.command(&["members"])).ends();
    assert!(shown.contains("\u{1b}[1mmember\u{1b}[0m") && shown.contains("\u{1b}[32mactive\u{1b}[0m"), "{shown:?}");
    for (name, value) in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let mut command = place.command(&["members"]);
        // Through `env`, because the terminal's own variables are set last.
        command = through_env(&command, name, value);
        let shown = OnTerminal::start(command).ends();
        assert!(shown.contains("active") && !shown.contains('\u{1b}'), "{name}: {shown:?}");
    }
    assert!(!place.run(&["members"]).well().contains('\u{1b}'), "a pipe is no terminal");
}

/// The same command, with that variable set by `env`.
fn through_env(command: &Command, name: &str, value: &str) -> Command {
    let mut through = Command::new("env");
    through.arg(format!("{name}={value}")).arg(command.get_program()).args(command.get_args());
    through.current_dir(command.get_current_dir().unwrap());
    through
}

#[test]
fn watch_draws_one_line_on_a_terminal_and_json_where_that_is_asked_for() {
    let place = Place::of_workers("2s", "slots = 64");
    let mut watch = OnTerminal::start(place.command(&["watch", "--join", "--id", "worker-1"]));
    watch.until("worker-1 in workers: active, 64 of 64 slots, 1 member: worker-1");
    let second = joins(&place, "worker-2");
    watch.until("+worker-2");
    watch.until("2 members: worker-1, worker-2");
    drop(second);
    watch.until("-worker-2 (vanished)");
    watch.interrupt();
    let drawn = watch.ends();
    assert!(drawn.contains("\r\u{1b}[2K") && !drawn.contains('{'), "{drawn:?}");

    let mut json = OnTerminal::start(place.command(&["watch", "--json"]));
    json.until("\"state\":\"observing\"");
    json.interrupt();
    assert!(!json.ends().contains("\u{1b}[2K"));
}

/// Regression: drained members were shown like active ones.
#[test]
fn watch_and_rebalances_name_the_states_of_members_that_are_not_active() {
    let place = Place::of_workers("2s", "slots = 64");
    let _worker = joins(&place, "worker-1");
    let mut watch = OnTerminal::start(place.command(&["watch"]));
    watch.until("workers: observing, 1 member: worker-1");
    assert_eq!(place.run(&["drain", "worker-1"]).code, Some(0));
    watch.until("workers: observing, 1 member (0 active): worker-1 drained");
    watch.interrupt();
    assert!(!watch.ends().contains('{'));

    let mut rebalances = OnTerminal::start(place.command(&["rebalances"]));
    rebalances.until("1 member (0 active) +worker-1 (drained)");
    place.run(&["undrain", "worker-1"]).well();
    rebalances.until("1 member worker-1: drained -> active");
    rebalances.interrupt();
    rebalances.ends();
}

#[test]
fn a_publisher_draws_its_counts_on_a_terminal_and_prints_them_elsewhere() {
    let place = with_outbox();
    place.run(&["outbox", "init"]).well();
    let event = br#"{"aggregatetype":"order","aggregateid":"1","type":"Placed","payload":{}}"#;
    place.run_with(&["outbox", "enqueue"], event).well();
    let mut drawn = OnTerminal::start(place.command(&["outbox", "run", "--id", "publisher-1"]));
    drawn.until("1 event delivered");
    drawn.interrupt();
    let drawn = drawn.ends();
    assert!(drawn.contains("publisher-1: active") && drawn.contains("stopped: 1 delivered"), "{drawn:?}");

    let mut printed = Process::start(place.command(&["outbox", "run"]));
    let line = printed.prints("its counts", |line| line["held_slots"].is_u64());
    assert_eq!(line["delivered"], 0);
    printed.signal(Signal::SIGTERM);
    printed.ends("after SIGTERM");

    // With /metrics the log has no lines of counts.
    let mut listens = Process::start(place.command(&["outbox", "run", "--listen", "0"]));
    eventually("it has slots", PATIENCE, || (place.run(&["outbox", "status", "--json"]).json()["free_slots"] == 0).then_some(()));
    listens.signal(Signal::SIGTERM);
    listens.ends("after SIGTERM");
    assert!(listens.printed.is_empty(), "{:?}", listens.printed);
}
