//! Shared by the tests: a directory with settings, the program in it, and waits with a time limit.

#![allow(dead_code, reason = "each test file uses its own part")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests report by panicking")]

pub(crate) mod chance;
pub(crate) mod lease;
pub(crate) mod lines;
pub(crate) mod process;
pub(crate) mod scenes;

use std::fmt;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Long enough even for a busy machine; a test that waits this long fails.
pub(crate) const PATIENCE: Duration = Duration::from_mins(3);
const POLL_EVERY: Duration = Duration::from_millis(5);

/// Waits until `condition` returns a value.
pub(crate) fn eventually<T>(what: &str, within: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(started.elapsed() < within, "waited {within:?} in vain: {what}");
        std::thread::sleep(POLL_EVERY);
    }
}

pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl fmt::Debug for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit code {:?}\nstdout: {}\nstderr: {}", self.code, String::from_utf8_lossy(&self.out), self.err)
    }
}

impl Ran {
    /// The output of a command that succeeded with nothing on stderr, but that it waits, as it may on a busy machine.
    pub(crate) fn well(self) -> String {
        assert!(self.code == Some(0) && self.err.lines().all(is_note_of_waiting), "{self:?}");
        self.text()
    }

    /// Its output as JSON, whatever the exit code.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.out).unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.out.clone()).unwrap()
    }

    /// The lines on stderr, except that a first worker has created the store.
    pub(crate) fn complaints(&self) -> Vec<&str> {
        self.err.lines().filter(|line| !line.contains("created a new store: ") && !is_note_of_waiting(line)).collect()
    }

    /// Checks that the command failed with that exit code and one line that contains all these parts.
    pub(crate) fn fails(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        // A command may first have printed that it waits.
        let lines = self.err.lines().filter(|line| !is_note_of_waiting(line)).count();
        assert!(self.err.starts_with("shardwise: ") && self.err.ends_with('\n') && lines == 1, "not one line: {self:?}");
        for part in parts {
            assert!(self.err.contains(part), "{part:?} is not in: {}", self.err);
        }
        assert!(self.out.is_empty(), "a failure printed a result too: {self:?}");
    }
}

fn is_note_of_waiting(line: &str) -> bool {
    line.starts_with("shardwise: still waiting for ")
}

pub(crate) struct Place {
    dir: TempDir,
}

impl Place {
    pub(crate) fn empty() -> Self {
        Self { dir: TempDir::new().unwrap() }
    }

    pub(crate) fn with_settings(text: &str) -> Self {
        let place = Self::empty();
        place.write("settings.toml", text);
        place
    }

    /// A group `workers` with that TTL, and additional policy lines.
    pub(crate) fn of_workers(ttl: &str, policy: &str) -> Self {
        Self::with_settings(&workers(ttl, policy))
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Leaves the directory behind, for the analysis of a failure.
    pub(crate) fn keep(&mut self) {
        self.dir.disable_cleanup(true);
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).unwrap();
    }

    /// The program in this directory, without the environment of the tests.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardwise"));
        let is_heard = |name: &str| ["SHARDWISE", "OTEL_"].iter().any(|start| name.starts_with(start));
        std::env::vars_os().filter(|(name, _)| is_heard(&name.to_string_lossy())).for_each(|(name, _)| {
            command.env_remove(name);
        });
        command.args(arguments).current_dir(self.dir.path()).env_remove("RUST_LOG").env("COLUMNS", "100").env("TMPDIR", self.dir.path());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with(arguments, b"")
    }

    pub(crate) fn run_with(&self, arguments: &[&str], stdin: &[u8]) -> Ran {
        run(self.command(arguments), stdin)
    }
}

pub(crate) fn workers(ttl: &str, policy: &str) -> String {
    format!(
        "[default.resilience.sharding.discovery]\nttl = \"{ttl}\"\n\
         [default.resilience.sharding.policies.workers]\ngroup_name = \"workers\"\n{policy}\n"
    )
}

/// Runs a command to its end, with a time limit.
pub(crate) fn run(command: Command, stdin: &[u8]) -> Ran {
    run_within(PATIENCE, command, stdin)
}

/// The same with another time limit.
pub(crate) fn run_within(within: Duration, mut command: Command, stdin: &[u8]) -> Ran {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut input, bytes) = (child.stdin.take().unwrap(), stdin.to_vec());
    // The command may end without reading everything.
    let writer = std::thread::spawn(move || drop(input.write_all(&bytes)));
    let (out, err) = (read_all(child.stdout.take().unwrap()), read_all(child.stderr.take().unwrap()));
    let status = ended(&mut child, within, &format!("{command:?}"));
    writer.join().unwrap();
    Ran { code: status.code(), out: out.join().unwrap(), err: String::from_utf8_lossy(&err.join().unwrap()).into_owned() }
}

/// Waits for the end of a process, and kills it at the time limit.
pub(crate) fn ended(child: &mut Child, within: Duration, what: &str) -> ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if started.elapsed() > within {
            child.kill().unwrap();
            panic!("not ended within {within:?}: {what}");
        }
        std::thread::sleep(POLL_EVERY);
    }
}

pub(crate) fn read_all(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // Output read before a failure is enough for a message.
        let _ = from.read_to_end(&mut bytes);
        bytes
    })
}
