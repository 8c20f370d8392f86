//! The environment of the demo: a directory with settings, store and sink, and the publisher processes that use it.

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
/// The time limit of a publisher's graceful stop.
const STOP_LIMIT: Duration = Duration::from_secs(20);

pub(super) struct DemoStage {
    dir: PathBuf,
    /// Deletes the directory at the end, unless it is kept.
    temporary: Option<TempDir>,
    workers: BTreeMap<String, Child>,
    started: usize,
}

impl DemoStage {
    /// Fails unless `keep` can become the demo's directory: it must be new or empty. Changes nothing.
    pub(super) fn check_keep(keep: &Path) -> Result<()> {
        let why = match std::fs::read_dir(keep).map(Iterator::count) {
            Ok(0) => return Ok(()),
            Ok(_) => "the directory is not empty",
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotADirectory => "this is a file, or in a file",
            Err(error) => return Err(CliFailure::io(format_args!("read --keep {}", keep.display()), &error)),
        };
        Err(CliFailure::usage(format!("--keep {}: {why}; name a new directory", keep.display())))
    }

    /// Creates the demo's directory: `keep`, or a temporary one.
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

    /// The publishers' settings, checked as the publishers will check them.
    pub(super) fn settings(&self) -> Result<LoadedSettings> {
        Ok(LoadedSettings::load(&LoadOptions::default().with_file(self.settings_file()))?)
    }

    fn settings_file(&self) -> PathBuf {
        self.dir.join("settings.toml")
    }

    pub(super) fn delivered_file(&self) -> PathBuf {
        self.dir.join("delivered.jsonl")
    }

    /// Starts another publisher process and returns its name.
    pub(super) fn start_worker(&mut self) -> Result<String> {
        self.started += 1;
        let name = format!("worker-{}", self.started);
        let log = self.dir.join(format!("{name}.log"));
        let log = File::create(&log).map_err(|error| CliFailure::io(format_args!("write {}", log.display()), &error))?;
        let program = std::env::current_exe().map_err(|error| CliFailure::io("find this program", &error))?;
        let mut command = Command::new(program);
        command.args(["outbox", "run", "--name", NAME, "--settings"]).arg(self.settings_file());
        command.arg("--exit-with-parent").arg(std::process::id().to_string());
        // Variables that the user has set for other workers must not affect these.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SHARDWISE_")) {
            command.env_remove(name);
        }
        command.env("SHARDWISE__RESILIENCE__SHARDING__INSTANCE__ID", &name);
        // Ctrl-C is for the demo, which stops its workers itself.
        command.process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).kill_on_drop(true);
        let child = command.spawn().map_err(|error| CliFailure::io(format_args!("start {name}"), &error))?;
        self.workers.insert(name.clone(), child);
        Ok(name)
    }

    /// The names of the running workers.
    pub(super) fn workers(&self) -> impl Iterator<Item = &str> {
        self.workers.keys().map(String::as_str)
    }

    /// Sends SIGKILL and waits for the end.
    pub(super) async fn kill(&mut self, worker: &str) -> Result<()> {
        if let Some(mut child) = self.workers.remove(worker) {
            child.kill().await.map_err(|error| CliFailure::io(format_args!("kill {worker}"), &error))?;
        }
        Ok(())
    }

    /// Sends SIGKILL to all remaining workers and waits for their end, before their directory is deleted.
    pub(super) async fn kill_all(&mut self) {
        for mut child in std::mem::take(&mut self.workers).into_values() {
            // The worker may already have ended.
            let _ = child.kill().await;
        }
    }

    /// Fails if a worker has ended that should be running.
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

    /// Stops every worker gracefully and waits for their end.
    pub(super) async fn stop_all(&mut self) -> Result<()> {
        for child in self.workers.values() {
            if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
                // A worker that has just ended needs no signal.
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

    /// Keeps the directory for inspection, and returns its path.
    pub(super) fn keep(&mut self) -> &Path {
        if let Some(temporary) = self.temporary.take() {
            let _ = temporary.keep();
        }
        &self.dir
    }
}
