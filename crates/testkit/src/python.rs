//! Python packages for tests that compare us with them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};

/// A Python that has the package `requirement`, such as `uhashring==2.4`, in a separate virtual environment below `target/python`. The
/// first call makes it; of several at once one makes it, and the others wait.
///
/// # Errors
///
/// A tool that is missing on this machine, or Python's error output.
pub fn python_with(requirement: &str) -> Result<PathBuf> {
    python_with_all(&[requirement])
}

/// [`python_with`] for several packages together.
///
/// # Errors
///
/// As there.
pub fn python_with_all(requirements: &[&str]) -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python");
    std::fs::create_dir_all(&folder).map_err(Error::io(folder.display()))?;
    let lock = File::create(folder.join("lock")).map_err(Error::io(folder.display()))?;
    lock.lock().map_err(Error::io("the lock of the folder of Python packages"))?;
    let home = folder.join(requirements.join("+"));
    let (python, done) = (home.join("bin/python"), home.join("done"));
    if done.is_file() {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&home), "install Python 3.9 or newer with its venv module")?;
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    run(Command::new(&python).args(install).args(requirements), "pip needs a package index that it can reach")?;
    File::create(&done).map_err(Error::io(done.display()))?;
    Ok(python)
}

pub(crate) fn run(command: &mut Command, needs: &str) -> Result<()> {
    let said = match command.output() {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    Err(Error::new(format!("{command:?} failed, {needs}: {}", said.trim())))
}
