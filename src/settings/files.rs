//! Paths in settings: relative to what.

use std::path::PathBuf;

use super::keys::Key;
use super::origin::Origin;
use super::read::{Found, Place, Reader};
use crate::Error;

/// What relative paths are relative to. All workers that read one settings file must arrive at the same file, wherever they were
/// started; two that miss each other would both own everything. So a path in the settings file, and a default, is taken from the
/// directory of that file; a path in an environment variable from the working directory, like everything else in a shell.
#[derive(Debug, Clone, Default)]
pub(super) struct Base {
    directory: PathBuf,
}

impl Base {
    pub(super) const fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// The path that `text`, found at `found`, stands for.
    pub(super) fn resolve(&self, found: &Found, text: &str) -> Result<PathBuf, Error> {
        if text.is_empty() || text.contains('\0') {
            return Err(found.refuse("write the path of a file"));
        }
        Ok(match found.origin {
            Origin::Variable { .. } => text.into(),
            _ => self.directory.join(text),
        })
    }

    /// Reads a key whose whole value is a path.
    pub(super) fn path(&self, reader: &Reader, place: &Place, key: &Key) -> Result<PathBuf, Error> {
        let found = reader.require(place, key)?;
        let path = self.resolve(&found, found.text()?)?;
        reader.note(&found, path.display());
        Ok(path)
    }
}
