//! Files and folders of a task; an error names the path.

use std::path::{Path, PathBuf};

use crate::context::TaskContext;
use crate::failure::TaskFailure;

pub(crate) fn read(path: &Path) -> Result<String, TaskFailure> {
    std::fs::read_to_string(path).map_err(TaskFailure::at(path.display()))
}

/// Writes a file, and makes the folders that it is in.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), TaskFailure> {
    let folder = path.parent().unwrap_or(path);
    std::fs::create_dir_all(folder).and_then(|()| std::fs::write(path, text)).map_err(TaskFailure::at(path.display()))
}

/// Makes the folder, or empties it.
pub(crate) fn empty(folder: &Path) -> Result<(), TaskFailure> {
    let left_over = if folder.exists() { std::fs::remove_dir_all(folder) } else { Ok(()) };
    left_over.and_then(|()| std::fs::create_dir_all(folder)).map_err(TaskFailure::at(folder.display()))
}

/// Writes the manifest of a package outside the workspace, which names this checkout `CHECKOUT`, and next to it the versions that
/// everything else was tested with.
pub(crate) fn write_manifest(context: &TaskContext, folder: &Path, manifest: &str) -> Result<PathBuf, TaskFailure> {
    let path = folder.join("Cargo.toml");
    write(&path, &manifest.replace("CHECKOUT", &context.root().display().to_string()))?;
    // Cargo adds to its copy what the manifest has besides, for which it needs the network; so a copy that is still good stays.
    let (lock, copy) = (read(&context.root().join("Cargo.lock"))?, folder.join("workspace.lock"));
    if std::fs::read_to_string(&copy).ok().as_ref() != Some(&lock) {
        write(&folder.join("Cargo.lock"), &lock)?;
        write(&copy, &lock)?;
    }
    Ok(path)
}
