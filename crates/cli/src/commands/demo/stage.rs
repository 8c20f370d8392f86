//! The stage of the demo: a directory with settings, store and sink, and the publisher processes on it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shardwise::core::format_duration;
use shardwise::settings::LoadOptions;
use shardwise_outbox::settings::LoadedSettings;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::exit::{CliFailure, Code, Result};

/// The name of the demo's policy and of its outbox.
pub(super) const NAME: &str = "demo";
/// How long a publisher that was asked to stop may take.
const STOP_LIMIT: Duration = Duration::from_secs(20);

pub(super) struct DemoStage {
    dir: PathBuf,
    /// Deletes the directory at the end unless it is to be kept.
    temporary: Option<TempDir>,
    workers: BTreeMap<String, Child>,
    started: usize,
}

impl DemoStage {
    /// A failure unless `keep` can become the demo's directory: it must be new or empty. Changes nothing.
    pub(super) fn check_keep(keep: &Path) -> Result<()> {
        let why = match std::fs::read_dir(keep).map(Iterator::count) {
            Ok(0) => return Ok(()),
            Ok(_) => "the directory is not empty",
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotADirectory => "this is a file, or in a file",
            Err(error) => return Err(CliFailure::io(format_args!("read --keep {}", keep.display()), &error)),
        };
        Err(CliFailure::new(Code::Usage, format!("--keep {}: {why}; name a new directory", keep.display())))
    }

    /// A directory of the demo's own: `keep`, or a temporary one.
    pub(super) fn set(keep: Option<&Path>, ttl: Duration) -> Result<Self> {
        let (dir, temporary) = if let Some(dir) = keep {
            let made = std::fs::create_dir_all(dir).and_then(|()| dir.canonicalize());
            (made.map_err(|error| CliFailure::io(format_args!("make the directory --keep {}", dir.display()), &error))?, None)
        } else {
            let temporary = TempDir::with_prefix("shardwise-demo-").map_err(|error| {
                CliFailure::io(format_args!("make a directory in {} (TMPDIR, unless --keep)", std::env::temp_dir().display()), &error)
            })?;
            (temporary.path().to_owned(), Some(temporary))
        };
        let stage = Self { dir, temporary, workers: BTreeMap::new(), started: 0 };
        let text = format!(
            "[default.resilience.sharding.discovery]\nbackend = \"local\"\nttl = \"{}\"\n\n\
             [default.resilience.sharding.policies.{NAME}]\ngroup_name = \"{NAME}\"\n\n\
             [default.outbox.{NAME}]\npolicy = \"{NAME}\"\nstore = \"sqlite:outbox.db\"\nsink = \"file:delivered.jsonl\"\n",
            format_duration(ttl)
        );
        std::fs::write(stage.settings_file(), text)
            .map_err(|error| CliFailure::io(format_args!("write {}", stage.settings_file().display()), &error))?;
        Ok(stage)
    }

    /// The settings that the publishers read, checked as they will check them.
    pub(super) fn settings(&self) -> Result<LoadedSettings> {
        Ok(LoadedSettings::load(&LoadOptions::default().with_file(self.settings_file()))?)
    }

    fn settings_file(&self) -> PathBuf {
        self.dir.join("settings.toml")
    }

    pub(super) fn delivered_file(&self) -> PathBuf {
        self.dir.join("delivered.jsonl")
    }

    /// Starts one more publisher process and answers its name.
    pub(super) fn start_worker(&mut self) -> Result<String> {
        self.started += 1;
        let name = format!("worker-{}", self.started);
        let log = self.log_file(&name);
        let log = File::create(&log).map_err(|error| CliFailure::io(format_args!("write {}", log.display()), &error))?;
        let program = std::env::current_exe().map_err(|error| CliFailure::io("find this program", &error))?;
        let mut command = Command::new(program);
        command.args(["outbox", "run", "--name", NAME, "--settings"]).arg(self.settings_file());
        command.arg("--exit-with-parent").arg(std::process::id().to_string());
        // Nothing that the user has set for other workers may reach these.
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SHARDWISE_")).for_each(|(name, _)| {
            command.env_remove(name);
        });
        command.env("SHARDWISE__RESILIENCE__SHARDING__INSTANCE__ID", &name);
        // Ctrl-C is for the demo, which ends its workers itself.
        command.process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).kill_on_drop(true);
        let child = command.spawn().map_err(|error| CliFailure::io(format_args!("start {name}"), &error))?;
        self.workers.insert(name.clone(), child);
        Ok(name)
    }

    fn log_file(&self, worker: &str) -> PathBuf {
        self.dir.join(format!("{worker}.log"))
    }

    /// The names of the running workers.
    pub(super) fn workers(&self) -> impl Iterator<Item = &str> {
        self.workers.keys().map(String::as_str)
    }

    /// SIGKILL, and it is gone.
    pub(super) async fn kill(&mut self, worker: &str) -> Result<()> {
        if let Some(mut child) = self.workers.remove(worker) {
            child.kill().await.map_err(|error| CliFailure::io(format_args!("kill {worker}"), &error))?;
        }
        Ok(())
    }

    /// SIGKILL to all that are left, and they are gone before their directory goes.
    pub(super) async fn kill_all(&mut self) {
        for mut child in std::mem::take(&mut self.workers).into_values() {
            // One that has ended by itself is as good.
            let _ = child.kill().await;
        }
    }

    /// A failure if a worker has ended that should be running.
    pub(super) fn check(&mut self) -> Result<()> {
        for (name, child) in &mut self.workers {
            let ended = child.try_wait().map_err(|error| CliFailure::io(format_args!("look after {name}"), &error))?;
            if let Some(status) = ended {
                let log = std::fs::read_to_string(self.dir.join(format!("{name}.log"))).unwrap_or_default();
                let last = log.lines().last().unwrap_or("it said nothing").to_owned();
                return Err(CliFailure::new(Code::Unavailable, format!("{name} ended with {status}: {last}")));
            }
        }
        Ok(())
    }

    /// Asks every worker to stop and waits until they have.
    pub(super) async fn stop_all(&mut self) -> Result<()> {
        for child in self.workers.values() {
            if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
                // One that has just ended needs no signal.
                let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
            }
        }
        for (name, mut child) in std::mem::take(&mut self.workers) {
            match tokio::time::timeout(STOP_LIMIT, child.wait()).await {
                Ok(Ok(status)) if status.success() => {}
                Ok(Ok(status)) => return Err(CliFailure::new(Code::Unavailable, format!("{name} stopped with {status}"))),
                Ok(Err(error)) => return Err(CliFailure::io(format_args!("stop {name}"), &error)),
                Err(_) => return Err(CliFailure::new(Code::Unavailable, format!("{name} did not stop within {STOP_LIMIT:?}"))),
            }
        }
        Ok(())
    }

    /// Keeps the directory for a look at it, and answers where it is.
    pub(super) fn keep(&mut self) -> &Path {
        if let Some(temporary) = self.temporary.take() {
            let _ = temporary.keep();
        }
        &self.dir
    }
}
