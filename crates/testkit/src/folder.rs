//! The folders of servers: gone with the server, or with the test program, however that ends.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;

use crate::error::{Error, Result};

/// Reads names until its input is closed, which the kernel does when we die, gives
/// the servers a moment to die as well, and deletes what is left.
const JANITOR: &str = r#"set --; while IFS= read -r folder; do set -- "$@" "$folder"; done; sleep 1; rm -rf -- "$@""#;

/// A folder for a server of that kind.
pub(crate) fn temporary(kind: &str) -> Result<TempDir> {
    let folder = tempfile::Builder::new().prefix(&format!("shardwise-{kind}-")).tempdir();
    let folder = folder.map_err(|error| Error::io(format!("a folder for {kind}"))(error))?;
    delete_after_us(folder.path()).map_err(|error| Error::io("the shell that deletes folders")(error))?;
    Ok(folder)
}

/// Makes the folder, or empties it.
pub(crate) fn empty(folder: &Path) -> Result<()> {
    let left_over = if folder.exists() { std::fs::remove_dir_all(folder) } else { Ok(()) };
    left_over.and_then(|()| std::fs::create_dir_all(folder)).map_err(Error::io(folder.display()))
}

/// Deletes the folder if this process is killed, and for servers that live until its end. Dropping the folder deletes it as well.
fn delete_after_us(folder: &Path) -> std::io::Result<()> {
    static INPUT: Mutex<Option<ChildStdin>> = Mutex::new(None);
    let mut input = INPUT.lock().unwrap_or_else(PoisonError::into_inner);
    if input.is_none() {
        let mut janitor = Command::new("sh");
        // In a separate process group, so that Ctrl-C at the terminal does not reach it.
        janitor.args(["-c", JANITOR]).current_dir("/").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        *input = janitor.spawn()?.stdin.take();
    }
    input.as_mut().map_or(Ok(()), |input| writeln!(input, "{}", folder.display()))
}
