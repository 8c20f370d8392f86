//! A disk that is small enough to be filled, and files that the system lets grow no further.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::error::{Error, Result};

/// Where the disk is, for the process that has it.
const FOLDER: &str = "SHARDWISE_TEST_SMALL_DISK";
/// How long a test may take that runs on a small disk, in seconds.
const WITHIN: &str = "300";
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
        let run = |program: &[&str]| {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-root-user", "--mount", "--", "sh", "-c", MOUNT, "sh"]).arg(folder.path());
            command.arg(bytes.to_string()).args(program).env(FOLDER, folder.path()).env("TMPDIR", folder.path());
            command.output().map_err(Error::io("unshare (Debian's package is util-linux)"))
        };
        let probe = run(&["true"])?;
        if !probe.status.success() {
            let why = String::from_utf8_lossy(&probe.stderr);
            let note = format!(
                "{name}: this system does not allow mounting a small disk in a namespace ({}); allow user namespaces, or run the test as root",
                why.trim()
            );
            if std::env::var_os("CI").is_some() {
                return Err(Error::new(note));
            }
            // Not by a macro, whose output the tests' harness keeps to itself.
            return writeln!(io::stderr(), "NOT TESTED: {note}").map(|()| None).map_err(Error::io("stderr"));
        }
        let test = std::env::current_exe().map_err(Error::io("the test's own program"))?;
        let test = test.to_str().ok_or_else(|| Error::new(format!("{}: no UTF-8", test.display())))?;
        let ran = run(&["timeout", "--kill-after=5", WITHIN, test, "--exact", name, "--nocapture"])?;
        let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
        // No test of that name is a success too.
        if ran.status.success() && said.contains("1 passed") {
            return Ok(None);
        }
        Err(Error::new(format!("{name} on a disk of {bytes} bytes: {}\n{said}", ran.status)))
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
