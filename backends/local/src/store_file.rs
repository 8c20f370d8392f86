//! The file before SQLite sees it: made with the least rights, on a local disk, and still the same one later.
//!
//! Nothing here opens an existing file. Closing any descriptor of a file drops all POSIX locks that the process holds on it, and
//! with them those of SQLite in the same process.

use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use crate::error::Failure;

/// Remote or shared between kernels: SQLite's shared memory and locks do not reach across.
const NETWORK_FILE_SYSTEMS: &[&str] = &[
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb2", "smb3",
    "smbfs", "virtiofs",
];
/// The same, of programs in user space: `fuse.NAME`, and some without the prefix.
const NETWORK_FUSE: &[&str] =
    &["ceph", "ceph-fuse", "cephfs", "davfs2", "gcsfuse", "glusterfs", "juicefs", "mount-s3", "rclone", "s3fs", "smbnetfs", "sshfs"];

/// The identity of the file that a path leads to, valid while the file is held open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The file that `path` leads to now.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        fs::metadata(path).map(|metadata| Self::from(&metadata))
    }
}

impl From<&Metadata> for FileId {
    fn from(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// Makes the directory (0700) and an empty file (0600) if they are missing, and refuses what cannot work. Blocks. Returns the file, and
/// whether it is new.
pub(crate) fn prepare(path: &Path) -> Result<(FileId, bool), Failure> {
    let directory = path.parent().ok_or_else(|| Failure::NotAFile { path: path.to_owned(), what: "the root directory" })?;
    let no_file = |source| Failure::NoFile { path: path.to_owned(), source };
    match fs::metadata(path) {
        Ok(metadata) => refuse_other_kinds(path, &metadata)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
            made.map_err(|source| Failure::NoDirectory { directory: directory.to_owned(), source })?;
        }
        Err(error) => return Err(no_file(error)),
    }
    // Without /proc (other systems) nothing is known; WAL mode then fails by itself on most network file systems.
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    refuse_network(&mounts, &fs::canonicalize(path).or_else(|_| fs::canonicalize(directory)).map_err(no_file)?)?;
    // SQLite puts its -wal and -shm files beside the file, and deletes them.
    refuse_read_only("the directory", directory, Access::WRITE_OK | Access::EXEC_OK)?;
    let is_new = match make_file(path) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(no_file(error)),
    };
    let metadata = fs::metadata(path).map_err(no_file)?;
    refuse_other_kinds(path, &metadata)?;
    refuse_read_only("the file", path, Access::READ_OK | Access::WRITE_OK)?;
    refuse_untrusted(path, &fs::metadata(directory).map_err(no_file)?)?;
    Ok((FileId::from(&metadata), is_new))
}

/// A file, or what SQLite keeps beside it, that another user has made or may write: who can write it can remove members and invent some.
fn refuse_untrusted(path: &Path, directory: &Metadata) -> Result<(), Failure> {
    let me = rustix::process::geteuid().as_raw();
    for beside in ["", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(beside);
        let name = PathBuf::from(name);
        // What is not there will be made by SQLite, with the rights of the file.
        let Ok(file) = fs::metadata(&name) else { continue };
        if let Some(why) = distrust(me, &FilePermissions::of(&file), &FilePermissions::of(directory)) {
            return Err(Failure::Untrusted { path: name, why });
        }
    }
    Ok(())
}

/// Whose a file or directory is, and what its mode lets others do.
struct FilePermissions {
    owner: u32,
    group: u32,
    mode: u32,
}

impl FilePermissions {
    fn of(metadata: &Metadata) -> Self {
        Self { owner: metadata.uid(), group: metadata.gid(), mode: metadata.mode() & 0o7777 }
    }
}

/// What is wrong with a file that user `me` would share, and what to do. Another owner's is shared on purpose where `docs.md` says how: a
/// directory with the set-group-id bit, and a file that its group may write.
fn distrust(me: u32, file: &FilePermissions, directory: &FilePermissions) -> Option<String> {
    let mode = file.mode;
    if mode & 0o002 != 0 {
        return Some(format!(
            "is writable by every user (mode {mode:04o}), so each of them could remove and add members; revoke that: chmod o-w"
        ));
    }
    let on_purpose = mode & 0o060 == 0o060 && directory.mode & 0o2072 == 0o2070 && file.group == directory.group;
    let owner = file.owner;
    (owner != me && !on_purpose).then(|| {
        format!(
            "belongs to user {owner} and this process runs as user {me}; run both as one user, or share the file on purpose: its directory with mode \
             2770, the file with mode 0660, and both of one group"
        )
    })
}

fn refuse_other_kinds(path: &Path, metadata: &Metadata) -> Result<(), Failure> {
    let kind = metadata.file_type();
    if kind.is_dir() {
        return Err(Failure::IsADirectory { path: path.to_owned(), example: path.join("shardwise.db") });
    }
    if !kind.is_file() {
        return Err(Failure::NotAFile { path: path.to_owned(), what: "a device, pipe or socket" });
    }
    Ok(())
}

/// Makes an empty file without ever holding it open: see the head of this module.
#[cfg(target_os = "linux")]
fn make_file(path: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    Ok(mknodat(CWD, path, FileType::RegularFile, Mode::RUSR | Mode::WUSR, 0)?)
}

/// Makes an empty file. Two backends of one process that make the same file at the same instant could disturb each other's locks
/// here; other systems offer no way without a descriptor.
#[cfg(not(target_os = "linux"))]
fn make_file(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map(drop)
}

fn refuse_read_only(what: &'static str, path: &Path, wanted: Access) -> Result<(), Failure> {
    rustix::fs::access(path, wanted).map_err(|error| Failure::ReadOnly {
        what,
        path: path.to_owned(),
        why: io::Error::from(error).to_string(),
    })
}

fn refuse_network(mounts: &str, real: &Path) -> Result<(), Failure> {
    let is_network =
        |kind: &str| NETWORK_FILE_SYSTEMS.contains(&kind) || NETWORK_FUSE.contains(&kind.strip_prefix("fuse.").unwrap_or(kind));
    match file_system_of(mounts, real) {
        Some(kind) if is_network(kind) => Err(Failure::NetworkFileSystem { path: real.to_owned(), kind: kind.to_owned() }),
        _ => Ok(()),
    }
}

/// The type of the file system that holds `real`, from the text of `/proc/self/mountinfo`: the deepest mount point, and of several on
/// one point the last, which covers the others.
pub(crate) fn file_system_of<'m>(mounts: &'m str, real: &Path) -> Option<&'m str> {
    let mut found: Option<(usize, &str)> = None;
    for line in mounts.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let (Some(point), Some(kind)) = (left.split(' ').nth(4), right.split(' ').next()) else { continue };
        let point = unescaped(point);
        let depth = point.components().count();
        if real.starts_with(&point) && found.is_none_or(|(deepest, _)| depth >= deepest) {
            found = Some((depth, kind));
        }
    }
    found.map(|(_, kind)| kind)
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescaped(point: &str) -> PathBuf {
    let plain = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    PathBuf::from(plain.iter().fold(point.to_owned(), |text, (code, character)| text.replace(code, character)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:40 / /srv/team\\040data rw,relatime shared:7 - nfs4 files:/export rw,vers=4.2
31 27 0:41 / /srv rw,relatime - xfs /dev/vdb rw
32 27 0:42 / /mnt rw,relatime - ext4 /dev/vdc rw
33 32 0:43 / /mnt rw,relatime - fuse.sshfs me@there: rw
34 27 0:44 / /srvx rw,relatime - cifs //there/x rw
";

    #[test]
    fn the_deepest_and_latest_mount_counts() {
        for (path, kind) in [
            ("/var/lib/a.db", "ext4"),
            ("/srv/a.db", "xfs"),
            ("/srv/team data/a.db", "nfs4"),
            ("/srv/team", "xfs"),
            ("/mnt/a.db", "fuse.sshfs"),
            ("/srvx/a.db", "cifs"),
        ] {
            assert_eq!(file_system_of(MOUNTS, Path::new(path)), Some(kind), "{path}");
        }
        assert_eq!(file_system_of("", Path::new("/a")), None);
    }

    #[test]
    fn a_network_file_system_is_refused_by_name() {
        let error = refuse_network(MOUNTS, Path::new("/srv/team data/a.db")).unwrap_err().during("open", Path::new("/srv/team data/a.db"));
        assert_eq!(*error.kind(), shardwise_discovery::ErrorKind::Misconfigured);
        assert_eq!(
            error.to_string(),
            "open: \"/srv/team data/a.db\" is on a network file system (nfs4), where SQLite cannot share a file safely; set discovery.local.path to a file \
             on a local disk"
        );
        assert!(refuse_network(MOUNTS, Path::new("/srv/a.db")).is_ok());
    }

    #[test]
    fn a_file_of_another_owner_is_shared_on_purpose_or_refused() {
        let rights = |owner, mode| FilePermissions { owner, group: 50, mode };
        let private = rights(0, 0o755);
        let shared = rights(0, 0o2770);
        assert_eq!(distrust(7, &rights(7, 0o600), &private), None);
        assert_eq!(distrust(7, &rights(7, 0o644), &private), None, "others may look");
        assert_eq!(distrust(7, &rights(8, 0o660), &shared), None, "as the documentation has it");
        assert_eq!(distrust(0, &rights(8, 0o660), &shared), None);
        assert_eq!(distrust(7, &rights(8, 0o660), &rights(0, 0o2775)), None, "others may look");
        for (me, file, directory) in [
            (7, rights(8, 0o600), &shared),
            (7, rights(8, 0o640), &shared),
            (7, rights(8, 0o660), &private),
            (7, rights(8, 0o660), &rights(0, 0o2777)),
            (7, rights(8, 0o660), &FilePermissions { group: 51, ..rights(0, 0o2770) }),
            (0, rights(8, 0o600), &private),
        ] {
            let why = distrust(me, &file, directory).unwrap();
            assert!(why.contains(&format!("belongs to user 8 and this process runs as user {me}")), "{why}");
        }
        for directory in [&private, &shared] {
            let why = distrust(7, &rights(7, 0o666), directory).unwrap();
            assert!(why.starts_with("is writable by every user (mode 0666)"), "{why}");
        }
    }

    #[test]
    fn what_is_made_is_for_this_user_only() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("one/two/members.db");
        let (first, is_new) = prepare(&path).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap()), mode(&scratch.path().join("one"))), (0o600, 0o700, 0o700));
        assert!(is_new);
        assert_eq!(prepare(&path).unwrap(), (first, false), "a second call finds the same file");
    }
}
