//! Paths in settings: relative to what.

use std::path::PathBuf;

use super::origin::Origin;
use super::read::ResolvedValue;
use crate::Error;

/// What relative paths are relative to. All workers that read one settings file must arrive at the same file, wherever they were
/// started; two that miss each other would both own everything. So a path in the settings file, and a default, is taken from the
/// directory of that file; a path in an environment variable from the working directory, like everything else in a shell.
#[derive(Debug, Clone, Default)]
pub(super) struct BaseDirectory {
    directory: PathBuf,
}

impl BaseDirectory {
    pub(super) const fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// The path that `text`, found at `found`, stands for.
    pub(super) fn resolve(&self, found: &ResolvedValue, text: &str) -> Result<PathBuf, Error> {
        if text.is_empty() || text.contains('\0') {
            return Err(found.refuse("write the path of a file"));
        }
        Ok(match found.origin {
            Origin::Variable { .. } => text.into(),
            _ => self.directory.join(text),
        })
    }
}
