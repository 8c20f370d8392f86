//! A running program: its lines as they appear, signals to it, its end.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{PATIENCE, Ran, ended, read_all};

/// A process; killed when dropped.
pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
    stderr: Option<JoinHandle<Vec<u8>>>,
    /// Every line of its output so far, as JSON.
    pub(crate) printed: Vec<Value>,
}

impl Process {
    pub(crate) fn start(command: Command) -> Self {
        Self::start_with(command, Stdio::null())
    }

    pub(crate) fn start_with(mut command: Command, stdin: Stdio) -> Self {
        let mut child = command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let stderr = Some(read_all(child.stderr.take().unwrap()));
        Self { child, lines, stderr, printed: Vec::new() }
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        match signal {
            Signal::SIGSTOP => shardwise_testkit::pause(self.child.id()).unwrap(),
            _ => kill(Pid::from_raw(self.pid()), signal).unwrap(),
        }
    }

    /// The next line for which `wanted` holds; earlier lines are skipped.
    pub(crate) fn prints(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.prints_within(PATIENCE, what, wanted)
    }

    pub(crate) fn prints_within(&mut self, within: Duration, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + within;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.note(&line);
                    if let Some(line) = self.printed.last().filter(|line| wanted(line)) {
                        return line.clone();
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("waited {within:?} in vain: {what}; last line: {:?}", self.printed.last()),
                Err(RecvTimeoutError::Disconnected) => {
                    let stderr = self.stderr.take().map(|stderr| stderr.join().unwrap()).unwrap_or_default();
                    panic!("ended before this: {what}; last line: {:?}; {}", self.printed.last(), String::from_utf8_lossy(&stderr));
                }
            }
        }
    }

    /// The last line so far, if `wanted` holds for it, else the next line for which it does.
    pub(crate) fn shows(&mut self, within: Duration, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        match self.printed.last().filter(|line| wanted(line)) {
            Some(line) => line.clone(),
            None => self.prints_within(within, what, wanted),
        }
    }

    /// Reads the available lines without waiting.
    pub(crate) fn catch_up(&mut self) {
        while let Ok(line) = self.lines.try_recv() {
            self.note(&line);
        }
    }

    fn note(&mut self, line: &str) {
        self.printed.push(serde_json::from_str(line).unwrap_or_else(|error| panic!("no JSON ({error}): {line}")));
    }

    /// Waits for its end; `printed` then has every line it printed.
    pub(crate) fn ends(&mut self, what: &str) -> Ran {
        let status = ended(&mut self.child, PATIENCE, what);
        let err = self.stderr.take().map(|stderr| stderr.join().unwrap()).unwrap_or_default();
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            self.note(&line);
        }
        Ran { code: status.code(), out: Vec::new(), err: String::from_utf8_lossy(&err).into_owned() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
