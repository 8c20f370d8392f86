//! Files that hold events: readable by this user only, with a warning if another user can read one.

use std::io;
use std::path::Path;

/// Creates an empty file that only this user may read and write. Does not keep it open: closing any descriptor of a file drops the locks
/// that SQLite holds on it in this process.
#[cfg(all(feature = "sqlite", target_os = "linux"))]
pub(crate) fn make(path: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    Ok(mknodat(CWD, path, FileType::RegularFile, Mode::RUSR | Mode::WUSR, 0)?)
}

/// Creates an empty file that only this user may read and write, if the system supports users.
#[cfg(all(feature = "sqlite", not(target_os = "linux")))]
pub(crate) fn make(path: &Path) -> io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    for_this_user(&mut options).write(true).create_new(true).open(path).map(drop)
}

/// The same for a file that is created when it is opened.
pub(crate) fn for_this_user(options: &mut std::fs::OpenOptions) -> &mut std::fs::OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

/// Warns if every user of the machine can read the file.
pub(crate) fn warn_if_public(path: &Path) {
    if let Some(mode) = public_mode(path).ok().flatten() {
        tracing::warn!(
            path = %path.display(),
            mode = format!("{mode:04o}"),
            "every user of this machine may read this file, which holds events; unless they should, revoke that: chmod o-r"
        );
    }
}

/// The file's mode, if other users can read it and its directory lets them reach it.
#[cfg(unix)]
fn public_mode(path: &Path) -> io::Result<Option<u32>> {
    use std::os::unix::fs::PermissionsExt;
    let file = std::fs::metadata(path)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (mode, of_directory) = (file.permissions().mode() & 0o7777, std::fs::metadata(directory)?.permissions().mode());
    Ok((file.is_file() && mode & 0o004 != 0 && of_directory & 0o001 != 0).then_some(mode))
}

#[cfg(not(unix))]
fn public_mode(_: &Path) -> io::Result<Option<u32>> {
    Ok(None)
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_others_may_read_and_reach_is_public() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("events.jsonl");
        fs::write(&path, "").unwrap();
        let permit = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        for (directory, file, public) in [(0o755, 0o644, true), (0o755, 0o640, false), (0o755, 0o600, false), (0o750, 0o644, false)] {
            permit(scratch.path(), directory);
            permit(&path, file);
            assert_eq!(public_mode(&path).unwrap(), public.then_some(file), "{directory:o} {file:o}");
        }
        assert_eq!(public_mode(Path::new("/dev/null")).unwrap(), None, "holds nothing");
        assert!(public_mode(&scratch.path().join("gone")).is_err());
    }
}
