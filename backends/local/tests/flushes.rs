//! What is on the disk before it is answered: a process makes its calls and another
//! one counts how often it asks the kernel to flush a file.

#![expect(clippy::unwrap_used, reason = "tests")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use common::{PATIENCE, backend, granted, group, registration, slots, store};
use nix::errno::Errno;
use nix::libc::{SYS_fdatasync, SYS_fsync};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use shardwise_core::ClaimName;
use shardwise_discovery::{Claims, Discovery, Notes};

/// The file of the process that is counted; unset in the tests themselves.
const PATH: &str = "SHARDWISE_TEST_FLUSHES_PATH";
/// What it does, and how often.
const WORK: &str = "SHARDWISE_TEST_FLUSHES_WORK";
const TIMES: u64 = 40;
/// By the way, at the end of a process, a few more or less.
const BY_THE_WAY: u64 = 10;

/// Not a test: what the process runs.
#[tokio::test]
async fn worker_process() {
    let (Some(path), Ok(work)) = (std::env::var_os(PATH), std::env::var(WORK)) else { return };
    let (work, times) = work.split_once(' ').unwrap();
    let backend = backend(path.as_ref());
    let a = registration("a", 1, PATIENCE * 10);
    backend.register(&a).await.unwrap();
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let times = times.parse().unwrap();
    for n in 0..times {
        match work {
            "renew" => drop(backend.renew(&a.record_id(), a.ttl).await.unwrap()),
            "update" => backend.update(&a).await.unwrap(),
            "acquire" => assert_eq!(granted(&backend, &a.record_id(), &slots(n..n + 1)).await.len(), 1),
            "floor" => assert_eq!(backend.claim_store(&group(), u64::from(n) + 1).await.unwrap().floor, u64::from(n) + 1),
            "note" => drop(backend.write_note(&group(), &ClaimName::new(format!("{n}")).unwrap(), 0, "text").await.unwrap()),
            other => panic!("{other}"),
        }
    }
    store(&backend).await;
}

/// Follows every thread of a process to its end.
struct Tracer {
    process: Child,
    flushes: u64,
}

impl Tracer {
    /// All threads that there are, and through them all that there will be.
    fn of(process: Child) -> Result<Self, Errno> {
        let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_EXITKILL;
        for task in fs::read_dir(format!("/proc/{}/task", process.id())).unwrap() {
            let task = Pid::from_raw(task.unwrap().file_name().to_str().unwrap().parse().unwrap());
            ptrace::seize(task, options)?;
            ptrace::interrupt(task)?;
        }
        Ok(Self { process, flushes: 0 })
    }

    /// Counts to the end of the process, which must be a success.
    fn counted(mut self) -> u64 {
        let process = Pid::from_raw(self.process.id().cast_signed());
        loop {
            let status = waitpid(None, Some(WaitPidFlag::__WALL)).unwrap();
            if let WaitStatus::Exited(pid, code) = status
                && pid == process
            {
                assert_eq!(code, 0, "the process fails");
                return self.flushes;
            }
            self.goes_on(status);
        }
    }

    fn goes_on(&mut self, status: WaitStatus) {
        let (task, signal) = match status {
            WaitStatus::PtraceSyscall(task) => {
                self.count(task);
                (task, None)
            }
            WaitStatus::PtraceEvent(task, ..) | WaitStatus::Stopped(task, Signal::SIGTRAP) => (task, None),
            WaitStatus::Stopped(task, signal) => (task, Some(signal)),
            _ => return,
        };
        // One that has ended meanwhile is no error.
        let _ = ptrace::syscall(task, signal);
    }

    /// A system call has this answer until it has one.
    fn count(&mut self, task: Pid) {
        let Ok(registers) = ptrace::getregs(task) else { return };
        let begins = registers.rax.cast_signed() == -i64::from(Errno::ENOSYS as i32);
        if begins && [SYS_fsync, SYS_fdatasync].contains(&registers.orig_rax.cast_signed()) {
            self.flushes += 1;
        }
    }
}

/// How often a process that does this work so often flushes. `None` where the system does not permit counting.
fn flushes(work: &str, times: u64) -> Option<u64> {
    let scratch = common::Scratch::new();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "worker_process", "--nocapture"]).env(PATH, scratch.path()).env(WORK, format!("{work} {times}"));
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut go, said) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
    let mut lines = said.lines();
    assert!(lines.any(|line| line.unwrap().ends_with("ready")), "the process does not begin");
    match Tracer::of(process) {
        Ok(tracer) => {
            go.write_all(b"go\n").unwrap();
            // Its last words must find room.
            let rest = std::thread::spawn(move || lines.count());
            let flushes = tracer.counted();
            rest.join().unwrap();
            Some(flushes)
        }
        Err(error) => {
            let note =
                format!("the system does not allow tracing a process of one's own ({error}); set kernel.yama.ptrace_scope to 1 or 0");
            assert!(std::env::var_os("CI").is_none(), "{note}");
            // Not by a macro, whose output the tests' harness keeps to itself.
            std::io::stderr().write_all(format!("NOT TESTED: {note}\n").as_bytes()).unwrap();
            None
        }
    }
}

/// One test, because it waits for every process that there is.
#[test]
fn what_a_promise_rests_on_is_flushed_before_it_is_answered_and_a_heartbeat_is_not() {
    if std::env::var_os(PATH).is_some() {
        return;
    }
    for (work, flushed) in [("renew", false), ("update", false), ("acquire", true), ("floor", true), ("note", true)] {
        let Some(some) = flushes(work, TIMES) else { return };
        let more = flushes(work, 2 * TIMES).unwrap().saturating_sub(some);
        println!("{work}, {TIMES} times more: {more} flushes more");
        assert_eq!(more + BY_THE_WAY >= TIMES, flushed, "{work}, {TIMES} times more, flushed {more} times more");
    }
}
