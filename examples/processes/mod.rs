//! The common part of `chat_rooms`, `commands`, `counter`, `import_rows`, `pool_sessions` and `ticket_desk`: workers that are processes of
//! the same program and are killed.

#![allow(dead_code, reason = "not each example needs all of it")]

use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shardwise::{InstanceId, Settings, ShardingFactory};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A line of a worker, with the worker's name.
pub(crate) type WorkerLine = (String, String);

/// A worker in its own process, which ends with this one.
pub(crate) struct Worker {
    pub(crate) id: String,
    child: Child,
}

impl Worker {
    /// Starts this program with a folder and a name. Its lines go to `said`.
    pub(crate) fn start(folder: &Path, id: &str, said: &mpsc::Sender<WorkerLine>) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.arg(folder).arg(id).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().ok_or("a child without output")?).lines();
        let (name, said) = (id.to_owned(), said.clone());
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                if said.send((name.clone(), line)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Self { id: id.to_owned(), child })
    }

    /// SIGKILL.
    pub(crate) async fn kill(mut self) -> Result {
        Ok(self.child.kill().await?)
    }

    /// SIGTERM, and waits until it has left.
    pub(crate) async fn leave(mut self) -> Result {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok()).ok_or("the worker has ended already")?;
        kill(Pid::from_raw(id), Signal::SIGTERM)?;
        let status = self.child.wait().await?;
        if status.success() { Ok(()) } else { Err(format!("{} left with {status}", self.id).into()) }
    }
}

/// Resolves when this worker is asked to leave.
pub(crate) async fn asked_to_leave() -> Result {
    signal(SignalKind::terminate())?.recv().await;
    Ok(())
}

/// Writes what all workers of a run need.
pub(crate) fn prepare(folder: &Path) -> Result {
    // Without it only GET is brought to members. Make yours with `openssl rand -hex 32`.
    Ok(std::fs::write(folder.join("peers.token"), "only-workers-of-this-run-know-it")?)
}

/// The factory of a worker, or of a caller that is none, whose policy of that name has these rules.
pub(crate) fn factory(folder: &Path, id: &str, policy: &str, rules: &str) -> Result<ShardingFactory> {
    let settings = format!(
        "[default.resilience.sharding]
         policies.{policy} = {{ group_name = \"{policy}\", peer_token_file = '{}', {rules} }}
         discovery = {{ backend = \"local\", ttl = \"1s\", local.path = '{}' }}",
        folder.join("peers.token").display(),
        folder.join("members.db").display()
    );
    let settings = Settings::from_toml_str(&settings)?;
    Ok(ShardingFactory::builder().settings(settings).instance_id(InstanceId::new(id)?).build()?)
}

pub(crate) fn expect(right: bool, otherwise: impl Into<String>) -> Result {
    let otherwise: String = otherwise.into();
    if right { Ok(()) } else { Err(otherwise.into()) }
}
