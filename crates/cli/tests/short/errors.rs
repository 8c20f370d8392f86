//! Failures of commands: one line on stderr with what happened and what to do, and the documented exit code.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::process::Process;
use crate::common::{PATIENCE, Place, Ran, eventually, read_all, run, workers};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const SINK: &str = "SHARDWISE__OUTBOX__ORDERS__SINK";
const STORE: &str = "SHARDWISE__OUTBOX__ORDERS__STORE";
const MEMBERS: &str = "SHARDWISE__RESILIENCE__SHARDING__DISCOVERY__LOCAL__PATH";
const EVENT: &str = "{\"aggregatetype\":\"order\",\"aggregateid\":\"1\",\"type\":\"Changed\",\"payload\":1}\n";

/// A directory with settings, a directory `folder`, a text file `text`, and a file `binary` that is not text.
fn place() -> Place {
    let place = Place::with_settings(
        &(workers("1s", "slots = 64")
            + "[default.resilience.sharding.policies.publishers]\ngroup_name = \"publishers\"\nslots = 64\n"
            + "[default.outbox.orders]\npolicy = \"publishers\"\nstore = \"sqlite:outbox.db\"\nsink = \"file:delivered.jsonl\"\n"),
    );
    std::fs::create_dir(place.path("folder")).unwrap();
    place.write("folder/content", "");
    place.write("text", "text\n");
    place.write("binary", b"\x00\xff\x01".repeat(2_000));
    place
}

#[test]
fn what_is_wrong_with_a_file_comes_with_what_to_do() {
    let place = place();
    place.run(&["outbox", "init"]).well();
    let items = ["watch", "--join", "--policy", "workers", "--items"];
    let members = ["ring", "owners", "--members-file"];
    let from = ["demo", "--from"];
    let enqueue = ["outbox", "enqueue", "--from"];
    let (missing, folder) = ("no such file or directory: check the path", "this is a directory: name a file");
    let readers = [&items[..], &members, &from, &enqueue];
    for reader in readers {
        for (file, why) in [("none", missing), ("text/under", "a file where a directory should be: check the path"), ("folder", folder)] {
            let ran = place.run(&[reader, &[file]].concat());
            ran.fails(3, &[&format!("cannot read {file}: "), why]);
        }
    }
    place.run(&[&enqueue[..], &["folder"]].concat()).fails(3, &["nothing was written"]);
    place.run(&[&members[..], &["binary"]].concat()).fails(2, &["binary is not UTF-8 text after byte 1"]);
    place.run(&[&members[..], &["text"]].concat()).fails(2, &["text line 1", "write {\"id\""]);
    place.run(&[&members[..], &["/dev/zero"]].concat()).fails(2, &["/dev/zero has more than 16777216 bytes: is it the right file?"]);
    File::create(place.path("huge")).unwrap().write_at(b"k", 1 << 30).unwrap();
    place.run(&[&items[..], &["huge"]].concat()).fails(2, &["huge has more than 1073741824 bytes"]);
    assert!(!place.path("shardwise.db").exists(), "the group was contacted for nothing");

    let settings = ["settings", "--settings"];
    place.run(&[&settings[..], &["none"]].concat()).fails(2, &["the settings file none does not exist: check the path"]);
    place.run(&[&settings[..], &["folder"]].concat()).fails(2, &["folder is a directory: name a file in it"]);
    place.run(&[&settings[..], &["text/under"]].concat()).fails(2, &["text/under cannot be read", "name another file"]);
    place.run(&[&settings[..], &["binary"]].concat()).fails(2, &["binary line 1", "not UTF-8 text"]);
    place.run(&[&settings[..], &["/dev/zero"]].concat()).fails(2, &["more than", "is it the right file?"]);
}

#[test]
fn a_directory_that_the_demo_cannot_work_in_is_named_before_events_are_read() {
    let place = place();
    for (keep, why) in [("text", "this is a file"), ("text/under", "in a file"), ("folder", "not empty")] {
        // Stdin is empty, which would be reported first.
        place.run(&["demo", "--from", "-", "--keep", keep]).fails(2, &[&format!("--keep {keep}: "), why, "name a new directory"]);
    }
    place.run(&["demo", "--keep", "/proc/none"]).fails(3, &["cannot make the directory --keep /proc/none", "check the path"]);
    let mut command = place.command(&["demo"]);
    command.env("TMPDIR", "none");
    run(command, b"").fails(3, &["cannot make a directory in none (TMPDIR, unless --keep)", "check the path"]);
}

#[test]
fn a_result_that_cannot_be_written_is_a_failure() {
    let place = place();
    place.run(&["outbox", "init"]).well();
    place.write("events.jsonl", EVENT);
    let to = |stdout: Stdio, arguments: &[&str]| {
        let out = place.command(arguments).stdin(File::open(place.path("text")).unwrap()).stdout(stdout).stderr(Stdio::piped()).output();
        let out = out.unwrap();
        Ran { code: out.status.code(), out: Vec::new(), err: String::from_utf8(out.stderr).unwrap() }
    };
    let commands: [&[&str]; 8] = [
        &["--help"],
        &["settings"],
        &["settings", "--json"],
        &["ring", "owners", "--members", "a"],
        &["watch", "--join", "--policy", "workers"],
        &["outbox", "init"],
        &["outbox", "status"],
        &["outbox", "enqueue", "--from", "events.jsonl"],
    ];
    for command in commands {
        let full = to(File::options().write(true).open("/dev/full").unwrap().into(), command);
        full.fails(3, &["cannot write to stdout: the disk is full: free some space"]);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let closed = to(writer.into(), command);
        if command[0] == "outbox" && command[1] == "enqueue" {
            closed.fails(3, &["the reader has closed the pipe", "1 event enqueued all the same"]);
        } else {
            // Regression: `… | head` ended with an error on the terminal.
            assert!(closed.code == Some(3) && closed.err.is_empty(), "{command:?}: {closed:?}");
        }
    }
    let again = to(File::options().write(true).open("/dev/full").unwrap().into(), commands[7]);
    again.fails(3, &["1 event enqueued all the same"]);
}

/// Regression: the publisher began, and nothing was printed before the sink was taken to be down.
#[test]
fn a_file_sink_that_cannot_be_written_is_reported_at_the_start() {
    let place = place();
    place.run(&["outbox", "init"]).well();
    let with = |sink: &str| {
        let mut command = place.command(&["outbox", "run", "--json"]);
        command.env(SINK, sink);
        command
    };
    run(with("file:/proc/none.jsonl"), b"").fails(4, &["/proc/none.jsonl: it cannot be created in that directory"]);
    run(with("file:folder"), b"").fails(4, &["folder: this is a directory: name a file"]);
    let mut publisher = Process::start(with("file:none/delivered.jsonl"));
    publisher.prints("it publishes", |line| line["state"] == "active");
    publisher.signal(Signal::SIGTERM);
    let ran = publisher.ends("after SIGTERM");
    assert!(ran.code == Some(0) && ran.err.contains("its directory does not exist: create it; trying again while publishing"), "{ran:?}");
}

#[test]
fn names_from_outside_cannot_break_the_line() {
    let place = place();
    place.run(&["watch", "--policy", "a\nb\u{1b}[2J"]).fails(2, &["there is no policy", "known: publishers, workers"]);
    place.run(&["outbox", "status", "--name", "a\nb"]).fails(2, &["there is no outbox", "known: orders"]);
    place.run(&["demo", "--from", "a\nb\u{1b}[2J"]).fails(3, &[r"a b\u{1b}[2J", "check the path"]);
    place.run(&["wa\ntch"]).fails(2, &["--help"]);
    place.run(&["ring", "owners", "--members", "a\n=x"]).fails(2, &["--members-file"]);
}

#[test]
fn a_key_without_an_end_is_refused_before_it_fills_the_memory() {
    let key = vec![b'k'; (1 << 24) + 1];
    let owners = |options: &[&str], keys: &[u8]| Place::empty().run_with(&[&["ring", "owners", "--members", "a"], options].concat(), keys);
    owners(&[], &key).fails(2, &["a key has more than 16777216 bytes", "or with -0 with NUL"]);
    owners(&["-0"], &key).fails(2, &["a key has more than 16777216 bytes", "because of -0"]);
    let most = owners(&["-0"], &[&key[1..], b"\0"].concat());
    assert_eq!((most.code, most.out.len()), (Some(0), key.len() - 1 + "\ta\0".len()), "the longest key is one");
}

/// Errors are reported in a fixed order, and nothing later in that order was touched.
#[test]
fn outbox_run_names_settings_before_the_store_before_the_group() {
    let place = place();
    place.write("members.db", "this is no database, and long enough to be looked at closely\n".repeat(100));
    let with = |sink: &str, store: &str, ttl: &str| {
        let mut command = place.command(&["outbox", "run"]);
        command.env(SINK, sink).env(STORE, store).env(MEMBERS, "members.db");
        command.env("SHARDWISE__RESILIENCE__SHARDING__DISCOVERY__TTL", ttl);
        run(command, b"")
    };
    with("stdout", "sqlite:none.db", "5").fails(2, &["ttl", "\"5\""]);
    with("pigeon", "sqlite:none.db", "5s").fails(2, &["sink", "pigeon", "stdout"]);
    let mut command = place.command(&["outbox", "run"]);
    command.env(STORE, "sqlite:none.db").env("SHARDWISE__RESILIENCE__SHARDING__DISCOVERY__BACKEND", "pigeon");
    run(command, b"").fails(2, &["backend", "pigeon", "local"]);
    with("stdout", "sqlite:none.db", "5s").fails(3, &["none.db", "shardwise outbox init"]);
    place.run(&["outbox", "init"]).well();
    with("stdout", "sqlite:outbox.db", "5s").fails(4, &["members.db", "not an SQLite database"]);
    assert!(!place.path("none.db").exists() && !place.path("outbox.db-wal").exists(), "it left something behind");
    assert!(!place.path("delivered.jsonl").exists() && !place.path("shardwise.db").exists(), "it made something for nothing");
}

#[test]
fn enqueue_that_is_interrupted_says_how_far_it_came() {
    let place = place();
    place.run(&["outbox", "init"]).well();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let before = place.run(&["outbox", "status", "--json"]).json()["pending"].as_u64().unwrap();
        let mut enqueue = Process::start_with(place.command(&["outbox", "enqueue"]), reader.into());
        writer.write_all(EVENT.repeat(3).as_bytes()).unwrap();
        eventually("three events are in the outbox", PATIENCE, || {
            (place.run(&["outbox", "status", "--json"]).json()["pending"] == before + 3).then_some(())
        });
        enqueue.signal(signal);
        enqueue.ends("after the signal").fails(1, &["interrupted", "3 events of lines 1 to 3 written, go on behind them"]);
    }
}

/// Regression: it waited for the whole time of joining, which here is that of a former incarnation that may be alive.
#[test]
fn a_publisher_that_is_still_joining_stops_when_asked() {
    let place = place();
    place.run(&["outbox", "init"]).well();
    let start = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        command.env("SHARDWISE__RESILIENCE__SHARDING__INSTANCE__ID", "one").env("SHARDWISE__RESILIENCE__SHARDING__DISCOVERY__TTL", "40s");
        Process::start(command)
    };
    let mut former = start(&["watch", "--join", "--policy", "workers"]);
    former.prints("is active", |line| line["state"] == "active");
    former.signal(Signal::SIGKILL);
    former.ends("after SIGKILL");
    let mut publisher = start(&["outbox", "run"]);
    eventually("the store is open", PATIENCE, || place.path("outbox.db-wal").exists().then_some(()));
    let asked = Instant::now();
    publisher.signal(Signal::SIGTERM);
    let ran = publisher.ends("after SIGTERM");
    assert!(ran.code == Some(0) && ran.err.contains("stopped: 0 delivered") && asked.elapsed() < Duration::from_secs(15), "{ran:?}");
}

#[test]
fn a_second_signal_ends_a_publisher_that_cannot_finish() {
    let place = place();
    place.run(&["outbox", "init"]).well();
    // More than fits into a pipe.
    let event = EVENT.replace("Changed", &"C".repeat(200));
    place.run_with(&["outbox", "enqueue"], event.repeat(500).as_bytes()).well();
    let mut command = place.command(&["outbox", "run"]);
    command.env(SINK, "stdout").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut stdout, stderr) = (child.stdout.take().unwrap(), read_all(child.stderr.take().unwrap()));
    // It has begun to write, and the rest is not read.
    stdout.read_exact(&mut [0]).unwrap();
    let publisher = Pid::from_raw(i32::try_from(child.id()).unwrap());
    // Signals in quick succession may count as one.
    let ended = eventually("it ends", Duration::from_secs(20), || {
        kill(publisher, Signal::SIGTERM).unwrap();
        child.try_wait().unwrap()
    });
    let printed = String::from_utf8(stderr.join().unwrap()).unwrap();
    assert!(
        ended.code() == Some(130) && printed.ends_with("stopped at once; others take over when the lease expires\n"),
        "{ended}: {printed}"
    );
}
