//! A disk that is small enough to be filled, and files that the system lets grow no further.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::error::{Error, Result};
use crate::namespace::NamespacedRun;

/// Where the disk is, for the process that has it.
const FOLDER: &str = "SHARDWISE_TEST_SMALL_DISK";
/// Mounts the disk and goes on as the program behind the folder and the size. Writes
/// beyond a limit are errors then, and not the process's end.
const MOUNT: &str = "trap '' XFSZ && mount -t tmpfs -o size=\"$2\" shardwise \"$1\" && shift 2 && exec \"$@\"";

/// A file system in memory for one test, in its own namespace: no other process sees it, it needs no rights, and it goes with its process.
#[derive(Debug)]
pub struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    /// To be called first by the test of that name (with its modules). Runs that test once more
    /// as a process that has such a disk of `bytes`, and answers `None` when that has passed;
    /// in that process, whose folder for temporary files is on the disk, it answers the disk.
    ///
    /// Where the system does not allow mounting one, a line on stderr says that the test
    /// did not run; in CI (the variable `CI`) it is an error.
    pub fn of_test(name: &str, bytes: u64) -> Result<Option<Self>> {
        if let Some(folder) = std::env::var_os(FOLDER) {
            return Ok(Some(Self { folder: folder.into() }));
        }
        let folder = tempfile::tempdir().map_err(Error::io("a folder for a small disk"))?;
        let (path, size) = (folder.path().as_os_str(), bytes.to_string());
        let again = NamespacedRun {
            test: name,
            what: "mounting a small disk",
            namespaces: &["--mount"],
            script: MOUNT,
            arguments: &[path, OsStr::new(&size)],
            variables: &[(FOLDER, path), ("TMPDIR", path)],
        };
        again.passes().map(|()| None)
    }

    /// Where it is mounted.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Fills it to its last byte.
    pub fn fill(&self) -> Result<()> {
        let path = self.filler();
        let mut file = File::create(&path).map_err(Error::io(path.display()))?;
        loop {
            match file.write_all(&[0; 4_096]) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(Error::io(path.display())(error)),
            }
        }
    }

    /// Frees what [`SmallDisk::fill`] took.
    pub fn empty(&self) -> Result<()> {
        let path = self.filler();
        std::fs::remove_file(&path).map_err(Error::io(path.display()))
    }

    fn filler(&self) -> PathBuf {
        self.folder.join("filler")
    }

    /// Lets no file of this process grow beyond so many bytes from now on, or as far as the system allows again. A write behind that fails
    /// with EFBIG, which SQLite reports as an I/O error.
    pub fn limit_files(&self, bytes: Option<u64>) -> Result<()> {
        let why = |error: nix::Error| Error::new(format!("the limit of files: {error}"));
        let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).map_err(why)?;
        setrlimit(Resource::RLIMIT_FSIZE, bytes.unwrap_or(hard), hard).map_err(why)
    }
}
