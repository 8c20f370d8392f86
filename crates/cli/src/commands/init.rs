//! `shardwise init`: writes a first settings file.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::Path;

use clap::Args;
use serde_json::json;

use super::settings_path;
use crate::common::Common;
use crate::exit::{CliFailure, Code, Result};

/// Ten lines with which workers on one machine find each other.
const WORKERS: &str = r#"# `shardwise settings --why` shows the values in force; all keys: https://github.com/shardwise/shardwise/blob/main/docs/reference/settings.md
[default.resilience.sharding.discovery]
backend = "local" # one machine; for several: "postgres", "nats", "valkey", "etcd", "consul"
ttl = "10s"       # a worker that is silent for this long has lost its share

[default.resilience.sharding.discovery.local]
path = "shardwise.db" # all workers of this machine open this file

[default.resilience.sharding.policies.my_custom_workers]
group_name = "custom-worker-service"
"#;

/// The additional lines for an outbox.
const OUTBOX: &str = r#"
[default.resilience.sharding.policies.outbox_publishers]
group_name = "outbox-publishers"

[default.outbox.orders]
policy = "outbox_publishers"
store = "sqlite:orders.db"
sink = "file:delivered.jsonl"
"#;

#[derive(Debug, Args)]
#[command(after_help = "\
Writes ten lines into settings.toml, or into the file that --settings or $SHARDWISE_SETTINGS names. A file that is there is never changed.

  shardwise init
  shardwise init --outbox")]
pub(crate) struct Init {
    /// Add an outbox in SQLite that is delivered into a file
    #[arg(long)]
    outbox: bool,
}

impl Init {
    pub(crate) fn run(&self, common: &Common) -> Result<Code> {
        let path = settings_path(common);
        write_new(&path, &(WORKERS.to_owned() + if self.outbox { OUTBOX } else { "" }))?;
        let json = json!({"settings": path, "policy": "my_custom_workers", "outbox": self.outbox.then_some("orders")});
        common.print(&json, || self.next_steps(&path, common.settings.is_some()))?;
        Ok(Code::Ok)
    }

    /// `is_named`: by `--settings`, without which the next commands would not find the file.
    fn next_steps(&self, path: &Path, is_named: bool) -> String {
        let mut steps = vec![
            ("shardwise watch --join --id worker-1", "join as a worker; a second terminal takes --id worker-2"),
            ("shardwise members", "list the workers, from another terminal"),
        ];
        if self.outbox {
            steps.extend([("shardwise outbox init", "make the outbox's tables"), ("shardwise outbox run", "publish")]);
        }
        let steps: Vec<_> = steps.iter().map(|(command, what)| format!("  {command:<38}{what}\n")).collect();
        let path = path.display();
        let each = if is_named { format!(", each with --settings {path}") } else { String::new() };
        format!("wrote {path}: policy my_custom_workers for the workers of this machine\nnext{each}:\n{}", steps.concat())
    }
}

/// Writes the file, which must not exist. After an error no part of it is left, so that the command can be repeated.
fn write_new(path: &Path, text: &str) -> Result<()> {
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::AlreadyExists => CliFailure::new(
            Code::Refused,
            format!("{} is there already and was not changed: edit it, or write another with --settings FILE", path.display()),
        ),
        _ => CliFailure::io(format_args!("write {}", path.display()), &error),
    };
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(|error| {
        // Only this process can have created it. If it cannot be removed either, the next run names it.
        let _ = std::fs::remove_file(path);
        failed(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_settings_have_ten_lines() {
        assert_eq!(WORKERS.lines().count(), 10);
    }
}
