//! The user who runs a server that refuses to run as root, as PostgreSQL and PgBouncer do: then it is `nobody`.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::{User, geteuid};

use crate::command::run;
use crate::error::{Error, Result};

/// For root, `nobody`; otherwise the present user.
pub(crate) fn other_than_root() -> Result<Option<User>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let found = User::from_name("nobody").map_err(|error| Error::new(format!("the user nobody: {error}")))?;
    found.map(Some).ok_or_else(|| Error::new("this server does not run as root, and there is no user nobody to run it"))
}

/// Gives the folder to that user and says where he finds the programs: where they are if he gets there, else in a copy in the folder.
pub(crate) fn settle(user: Option<&User>, home: &Path, folder: &Path) -> Result<PathBuf> {
    let Some(user) = user else { return Ok(home.to_owned()) };
    std::os::unix::fs::chown(folder, Some(user.uid.as_raw()), Some(user.gid.as_raw())).map_err(Error::io(folder.display()))?;
    if reachable(home) {
        return Ok(home.to_owned());
    }
    let copy = folder.join("programs");
    run(Command::new("cp").args(["-R", "-P"]).args([home, &copy]), "there must be room for a copy of the programs").map(|_| copy)
}

/// Whether everybody may pass through all folders down to this one.
fn reachable(path: &Path) -> bool {
    path.ancestors().all(|folder| folder.metadata().is_ok_and(|folder| folder.permissions().mode() & 0o001 != 0))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    #[test]
    fn programs_behind_a_closed_door_are_copied_for_another_user() {
        let (closed, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir_all(closed.path().join("home/bin")).unwrap();
        std::fs::write(closed.path().join("home/bin/postgres"), "the program").unwrap();
        let home = closed.path().join("home");
        assert_eq!(settle(None, &home, folder.path()).unwrap(), home, "oneself gets there");
        let nobody = other_than_root().unwrap();
        if nobody.is_none() {
            return;
        }
        std::fs::set_permissions(closed.path(), Permissions::from_mode(0o700)).unwrap();
        let copy = settle(nobody.as_ref(), &home, folder.path()).unwrap();
        assert_eq!(std::fs::read_to_string(copy.join("bin/postgres")).unwrap(), "the program");
        assert!(copy.starts_with(folder.path()));
        std::fs::set_permissions(closed.path(), Permissions::from_mode(0o711)).unwrap();
        if reachable(closed.path().parent().unwrap()) {
            assert_eq!(settle(nobody.as_ref(), &home, folder.path()).unwrap(), home, "the door is open");
        }
    }
}
