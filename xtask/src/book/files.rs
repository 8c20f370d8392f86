//! The files of the repository, as git has them.

use std::collections::BTreeMap;

use crate::context::TaskContext;
use crate::failure::TaskFailure;

/// Every file by its path from the repository's root, with its text; nothing stands for one that is no UTF-8.
#[derive(Default)]
pub(super) struct RepositoryFiles(BTreeMap<String, Option<String>>);

impl RepositoryFiles {
    /// Reads the committed files and the new ones that git does not ignore.
    pub(super) fn load(context: &TaskContext) -> Result<Self, TaskFailure> {
        let failed = |why: String| TaskFailure::new(format!("git ls-files: {why}"));
        let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
        let output = context.command("git", &arguments).output().map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        let mut files = BTreeMap::new();
        for path in String::from_utf8_lossy(&output.stdout).split('\0').filter(|path| !path.is_empty()) {
            match std::fs::read(context.root().join(path)) {
                Ok(bytes) => _ = files.insert(path.to_owned(), String::from_utf8(bytes).ok()),
                // Deleted, and not committed so far.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(TaskFailure::new(format!("{path}: {error}"))),
            }
        }
        Ok(Self(files))
    }

    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        Self(files.iter().map(|(path, text)| ((*path).to_owned(), Some((*text).to_owned()))).collect())
    }

    /// The files that are text, in the order of their paths.
    pub(super) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }

    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.0.get(path)?.as_deref()
    }

    /// Whether there is a file of that path, or a folder with files in it.
    pub(super) fn has(&self, path: &str) -> bool {
        self.0.contains_key(path) || self.any_begins(&format!("{path}/"))
    }

    /// Whether the path of some file begins like that.
    pub(super) fn any_begins(&self, start: &str) -> bool {
        self.0.range(start.to_owned()..).next().is_some_and(|(path, _)| path.starts_with(start))
    }
}
