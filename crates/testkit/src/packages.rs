//! Packages of other languages' registries, for tests that compare us with them or run what is written in those languages. Where a registry
//! is is the configuration of `pip` and of `npm`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::run;
use crate::error::{Error, Result};

/// A Python that has these packages, such as `uhashring==2.4`, in a separate virtual environment below `target/python`.
pub fn python_with(requirements: &[&str]) -> Result<PathBuf> {
    let home = made_once("python", requirements, |home| {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(home), "install Python 3.9 or newer with its venv module")?;
        let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        run(Command::new(home.join("bin/python")).args(install).args(requirements), "pip needs a package index that it can reach")
    })?;
    Ok(home.join("bin/python"))
}

/// A folder `node_modules` that has these packages, such as `typescript@5.9.3`, below `target/node`. No script of a package is run.
pub fn node_modules(packages: &[&str]) -> Result<PathBuf> {
    let quiet =
        ["install", "--no-save", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", "--prefix"];
    let home = made_once("node", packages, |home| {
        run(Command::new("npm").args(quiet).arg(home).args(packages), "install npm, with a registry that it can reach")
    })?;
    Ok(home.join("node_modules"))
}

/// The folder of these packages. The first call makes it; of several at once one makes it, and the others wait.
fn made_once(language: &str, packages: &[&str], make: impl FnOnce(&Path) -> Result<String>) -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target").join(language);
    std::fs::create_dir_all(&folder).map_err(Error::io(folder.display()))?;
    let folder = folder.canonicalize().map_err(Error::io(folder.display()))?;
    // Ends with the file.
    let lock = File::create(folder.join("lock")).map_err(Error::io(folder.display()))?;
    lock.lock().map_err(Error::io(format!("the lock of {}", folder.display())))?;
    let home = folder.join(packages.join("+").replace('/', "_"));
    let done = home.join("done");
    if !done.is_file() {
        std::fs::create_dir_all(&home).map_err(Error::io(home.display()))?;
        make(&home)?;
        File::create(&done).map_err(Error::io(done.display()))?;
    }
    Ok(home)
}
