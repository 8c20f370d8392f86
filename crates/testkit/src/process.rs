//! A server's process: started, killed, paused, and gone with us in every case.

use std::fs::OpenOptions;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, User};
use tempfile::TempDir;

use crate::error::{Error, Result};
use crate::kill_with_parent::setpriv;
use crate::usage::Usage;

/// How long anything on this machine may take, however busy it is.
pub(crate) const PATIENCE: Duration = Duration::from_mins(3);
/// How long a server may take to become ready, which some begin by using a core for seconds.
const READY_WITHIN: Duration = Duration::from_mins(10);
/// How often a condition is looked at.
pub(crate) const POLL_EVERY: Duration = Duration::from_millis(20);
/// How long one that must tidy up may take for it, and how often that is looked at.
const TIDY_WITHIN: Duration = Duration::from_secs(10);
const TIDY_POLL_EVERY: Duration = Duration::from_millis(2);
/// Lines of a server's log that are shown when something went wrong.
const TAIL_LINES: usize = 40;

/// SIGSTOP for a child of this process. Waits until every thread has stopped: on a busy machine one that was just running goes on for a
/// while, and answers.
pub fn pause(child: u32) -> Result<()> {
    let (id, begun) = (Pid::from_raw(child.cast_signed()), Instant::now());
    kill(id, Signal::SIGSTOP).map_err(|error| Error::new(format!("SIGSTOP to process {child}: {error}")))?;
    // Only looks: the exit status stays available to a later wait for the process.
    let options = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
    loop {
        match waitid(Id::Pid(id), options) {
            Ok(WaitStatus::StillAlive) if begun.elapsed() < PATIENCE => std::thread::sleep(TIDY_POLL_EVERY),
            Ok(WaitStatus::StillAlive) => return Err(Error::new(format!("process {child} has not stopped"))),
            Ok(_) => return Ok(()),
            Err(error) => return Err(Error::new(format!("process {child} cannot be waited for: {error}"))),
        }
    }
}

/// What a process is started with.
#[derive(Debug)]
pub(crate) struct Launch {
    /// For texts: the server's name.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// All of it, except for `PATH`.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// For its log and what it stores; deleted with it.
    pub(crate) folder: TempDir,
    /// Where clients connect, and how their addresses begin; empty and unspecified for a program that has none.
    pub(crate) clients: (&'static str, SocketAddr),
    /// What ends it, when we want it to and when we die. With another signal than SIGKILL it tidies up, and is killed if it does not.
    pub(crate) farewell: Signal,
    /// The user that runs it instead of us, for which we must be root.
    pub(crate) user: Option<User>,
}

impl Launch {
    pub(crate) fn new(name: impl Into<String>, program: PathBuf, arguments: Vec<String>, folder: TempDir) -> Self {
        let (environment, clients) = (Vec::new(), ("", (Ipv4Addr::UNSPECIFIED, 0).into()));
        Self { name: name.into(), program, arguments, environment, folder, clients, farewell: Signal::SIGKILL, user: None }
    }

    pub(crate) fn start(self) -> Result<Process> {
        let process = Process { log: self.folder.path().join("log"), launch: self, child: Mutex::new(None) };
        process.start().map(|()| process)
    }
}

/// A server's process and its folder. Its log goes on over restarts; when a test fails, the log's end is shown.
#[derive(Debug)]
pub struct Process {
    launch: Launch,
    log: PathBuf,
    child: Mutex<Option<Child>>,
}

impl Process {
    /// Where clients connect, such as `http://127.0.0.1:PORT`, or `https` if it was started with TLS.
    pub fn address(&self) -> String {
        format!("{}://{}", self.launch.clients.0, self.launch.clients.1)
    }

    /// The same, for a proxy.
    pub fn socket_addr(&self) -> SocketAddr {
        self.launch.clients.1
    }

    pub(crate) fn folder(&self) -> &Path {
        self.launch.folder.path()
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the server; one that runs already is left alone.
    fn start(&self) -> Result<()> {
        let mut child = self.child();
        if child.is_some() {
            return Ok(());
        }
        let log = OpenOptions::new().create(true).append(true).open(&self.log).map_err(Error::io(self.log.display()))?;
        let errors = log.try_clone().map_err(Error::io(self.log.display()))?;
        // The kernel kills the server when we die, however we die; and Ctrl-C at the terminal is for us alone.
        let Launch { program, arguments, environment, farewell, user, .. } = &self.launch;
        let mut command = dying_with_parent(*farewell, user.as_ref(), program);
        command.args(arguments).envs(environment.iter().map(|(name, value)| (name, value)));
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        *child = Some(launch(command).map_err(Error::io("setpriv, of the package util-linux"))?);
        Ok(())
    }

    /// Kills it, mostly by SIGKILL: connections break, and what was stored is there after a restart. One that is not running is left alone.
    pub fn kill(&self) -> Result<()> {
        if self.launch.farewell != Signal::SIGKILL && self.child().is_some() {
            self.signal(self.launch.farewell)?;
            let asked = Instant::now();
            while self.ended().is_none() && asked.elapsed() < TIDY_WITHIN {
                std::thread::sleep(TIDY_POLL_EVERY);
            }
        }
        let Some(mut child) = self.child().take() else { return Ok(()) };
        child.kill().and_then(|()| child.wait()).map_err(Error::io(&self.launch.name))?;
        Ok(())
    }

    /// Kills it if it runs, and starts it on the same ports, with what it had stored or as if new; does not wait for it.
    pub(crate) fn relaunch(&self, keep_data: bool) -> Result<()> {
        self.kill()?;
        if !keep_data {
            let data = self.folder().join("data");
            std::fs::remove_dir_all(&data).map_err(Error::io(data.display()))?;
        }
        self.start()
    }

    /// Sends a signal such as SIGSTOP.
    fn signal(&self, signal: Signal) -> Result<()> {
        kill(Pid::from_raw(self.id()?.cast_signed()), signal)
            .map_err(|error| Error::new(format!("{} to {}: {error}", signal, self.launch.name)))
    }

    /// SIGCONT, after [`Process::pause`].
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// SIGSTOP: connections stay, answers do not come: see [`pause`].
    pub fn pause(&self) -> Result<()> {
        pause(self.id()?).map_err(|error| Error::new(format!("{}: {error}", self.launch.name)))
    }

    /// Sends a signal to every process that this one has started itself.
    pub(crate) fn signal_children(&self, signal: Signal) -> Result<()> {
        for child in self.children()? {
            // One that ends meanwhile needs no signal.
            let _ = kill(Pid::from_raw(child.cast_signed()), signal);
        }
        Ok(())
    }

    /// The processes that this one has started itself.
    fn children(&self) -> Result<Vec<u32>> {
        let id = self.id()?;
        let entries = std::fs::read_dir("/proc").map_err(Error::io("/proc"))?;
        let child = |entry: std::fs::DirEntry| {
            let child = entry.file_name().to_str()?.parse().ok()?;
            // One that ends meanwhile has nothing to read.
            let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            (parent_in(&stat) == Some(id)).then_some(child)
        };
        Ok(entries.flatten().filter_map(child).collect())
    }

    /// [`Process::usage`], and that of the processes that there are now which it has started itself. What they share counts several times.
    pub(crate) fn usage_of_all(&self) -> Result<Usage> {
        // One that ends meanwhile has used nothing.
        let children = self.children()?.into_iter().filter_map(|child| Usage::of_process(child).ok());
        let add = |sum: Usage, more: Usage| Usage { processor: sum.processor + more.processor, memory: sum.memory + more.memory };
        Ok(children.fold(self.usage()?, add))
    }

    fn id(&self) -> Result<u32> {
        self.child().as_ref().map(Child::id).ok_or_else(|| Error::new(format!("{} is not running", self.launch.name)))
    }

    /// Its resource use since its start.
    pub fn usage(&self) -> Result<Usage> {
        Usage::of_process(self.id()?)
    }

    /// How it ended by itself; `None` while it runs, or after [`Process::kill`].
    fn ended(&self) -> Option<String> {
        self.child().as_mut().and_then(|child| child.try_wait().ok().flatten()).map(|status| status.to_string())
    }

    /// Waits until `probe` gives something; what it gives otherwise says what was seen, for the text of the error.
    pub(crate) async fn until<T>(&self, what: &str, mut probe: impl AsyncFnMut() -> std::result::Result<T, String>) -> Result<T> {
        let begun = Instant::now();
        loop {
            let seen = match probe().await {
                Ok(value) => return Ok(value),
                Err(seen) => seen,
            };
            if let Some(status) = self.ended() {
                return Err(Error::new(format!("{} ended by itself ({status}) before {what}{}", self.launch.name, self.tail())));
            }
            if begun.elapsed() > READY_WITHIN {
                let waited = READY_WITHIN.as_secs();
                return Err(Error::new(format!(
                    "{}: waited {waited} s in vain until {what}; last: {seen}{}",
                    self.launch.name,
                    self.tail()
                )));
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
    }

    /// Whether its log says that another program listens on its port; some write it with a capital.
    pub(crate) fn lacks_port(&self) -> bool {
        std::fs::read_to_string(&self.log).is_ok_and(|log| log.contains("ddress already in use"))
    }

    /// The end of the log, to be put behind a text.
    fn tail(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(TAIL_LINES)..];
        format!("\nthe end of the log of {}:\n    | {}", self.launch.name, tail.join("\n    | "))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.tail());
        }
        let _ = self.kill();
    }
}

/// The parent, in the text of `/proc/PID/stat`: behind the name, which is in brackets and may have any character, stand the state and it.
fn parent_in(stat: &str) -> Option<u32> {
    let (_, behind) = stat.rsplit_once(") ")?;
    behind.split(' ').nth(1)?.parse().ok()
}

/// A command that gets this signal from the kernel when we die, without our environment, from which servers read settings.
pub(crate) fn dying_with_parent(farewell: Signal, user: Option<&User>, program: &Path) -> Command {
    let mut command = setpriv(farewell);
    if let Some(user) = user {
        command.args(["--reuid", &user.uid.to_string(), "--regid", &user.gid.to_string(), "--clear-groups"]);
    }
    command.arg("--").arg(program).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

type SpawnOrder = (Command, mpsc::Sender<std::io::Result<Child>>);

/// Starts a command from a thread that never ends: the signal at the parent's death comes when the *thread* dies that started it, and
/// a test's thread may die before its server.
fn launch(command: Command) -> std::io::Result<Child> {
    static LAUNCHER: OnceLock<mpsc::Sender<SpawnOrder>> = OnceLock::new();
    let launcher = LAUNCHER.get_or_init(|| {
        let (sender, orders) = mpsc::channel::<SpawnOrder>();
        std::thread::spawn(move || {
            for (mut command, answer) in orders {
                let _ = answer.send(command.spawn());
            }
        });
        sender
    });
    let (answer, child) = mpsc::channel();
    let gone = || std::io::Error::other("the thread that starts servers is gone");
    launcher.send((command, answer)).map_err(|_| gone())?;
    child.recv().map_err(|_| gone())?
}
