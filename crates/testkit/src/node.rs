//! Packages of npm's registry for tests of what runs in Node and in browsers.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};
use crate::python::run;

/// A folder `node_modules` that has these packages, such as `typescript@5.9.3`, below `target/node`. It is made by the first call; of
/// several at once one makes it, and the others wait. No script of a package is run. Where the registry is is `npm`'s own configuration.
///
/// # Errors
///
/// What is missing on this machine, or what `npm` had to say.
pub fn node_modules(packages: &[&str]) -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/node");
    std::fs::create_dir_all(&folder).map_err(Error::io(folder.display()))?;
    let folder = folder.canonicalize().map_err(Error::io(folder.display()))?;
    let lock = File::create(folder.join("lock")).map_err(Error::io(folder.display()))?;
    lock.lock().map_err(Error::io("the lock of the folder of Node's packages"))?;
    let home = folder.join(packages.join("+").replace('/', "_"));
    let (modules, done) = (home.join("node_modules"), home.join("done"));
    if done.is_file() {
        return Ok(modules);
    }
    std::fs::create_dir_all(&home).map_err(Error::io(home.display()))?;
    let quiet =
        ["install", "--no-save", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", "--prefix"];
    run(Command::new("npm").args(quiet).arg(&home).args(packages), "install npm, with a registry that it can reach")?;
    File::create(&done).map_err(Error::io(done.display()))?;
    Ok(modules)
}
