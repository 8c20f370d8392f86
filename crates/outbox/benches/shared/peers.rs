//! What the outbox is compared with: a plain table of jobs, and graphile-worker.

use std::path::PathBuf;
use std::process::Command;

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection as _, PgConnection};

/// The tested version.
const GRAPHILE_WORKER: &str = "graphile-worker@0.18.0";

/// The table of jobs that workers take with `FOR UPDATE SKIP LOCKED`.
pub(crate) const QUEUE: &str =
    "CREATE TABLE queue (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text NOT NULL, type text NOT NULL, payload text NOT NULL)";

pub(crate) async fn connect(url: &str) -> PgConnection {
    let options: PgConnectOptions = url.parse().unwrap();
    PgConnection::connect_with(&options).await.unwrap()
}

/// The folder where graphile-worker is installed, below `node_modules`. The error says what is missing to install it.
pub(crate) fn graphile_worker() -> Result<PathBuf, String> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(GRAPHILE_WORKER);
    if !folder.join("node_modules/graphile-worker").is_dir() {
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("package.json"), "{\"private\":true}").unwrap();
        let mut install = Command::new("npm");
        install.args(["install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", GRAPHILE_WORKER]).current_dir(&folder);
        answer(&mut install)?;
    }
    Ok(folder)
}

/// What the command wrote; an error if it fails.
pub(crate) fn answer(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{}: {error}", command.get_program().to_string_lossy()))?;
    let reported = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(reported(&output.stdout)) } else { Err(reported(&output.stderr)) }
}
