//! The one setting, checked before anything is touched.

use std::path::{Path, PathBuf};

use crate::error::Failure;

/// Where the members of one machine meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalConfig {
    /// The SQLite file, on a disk of this machine. A relative path counts from the working directory at the time of
    /// [`LocalBackend::open`](crate::LocalBackend::open). File and directory are made if they are missing. All workers that name the same
    /// file see each other.
    pub path: PathBuf,
}

impl LocalConfig {
    /// The path, absolute, so that a later change of the working directory does not lead to another file and SQLite never takes
    /// it for one of its special names.
    pub(crate) fn absolute(&self) -> Result<PathBuf, Failure> {
        let refused = |why| Failure::BadPath { given: self.path.clone(), why };
        let Some(text) = self.path.to_str() else { return Err(refused("is not valid UTF-8")) };
        if let Some(why) = objection(text) {
            return Err(refused(why));
        }
        let absolute = std::path::absolute(Path::new(text)).map_err(|_| refused("has no absolute form"))?;
        match absolute.to_str() {
            Some(_) => Ok(absolute),
            None => Err(refused("lies under a working directory that is not valid UTF-8")),
        }
    }
}

fn objection(path: &str) -> Option<&'static str> {
    match path {
        "" => Some("is empty"),
        ":memory:" => Some("names no file (for one process, use the memory backend)"),
        _ if path.contains('\0') => Some("contains a NUL character"),
        _ if matches!(path.rsplit('/').next(), Some("" | "." | "..")) => Some("names a directory"),
        _ if path.starts_with("sqlite:") || path.starts_with("file:") => Some("is a URL"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn absolute(path: &str) -> Result<PathBuf, String> {
        LocalConfig { path: path.into() }.absolute().map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_relative_path_becomes_absolute() {
        assert!(absolute("run/members.db").unwrap().is_absolute());
        assert_eq!(absolute("/run/a b/ü.db"), Ok("/run/a b/ü.db".into()));
    }

    #[test]
    fn what_is_no_file_on_this_machine_is_refused_by_name() {
        for (path, why) in [
            ("", "is empty"),
            (":memory:", "use the memory backend"),
            ("file:x.db?mode=ro", "is a URL"),
            ("sqlite://x.db", "is a URL"),
            ("/run/", "names a directory"),
            ("/.", "names a directory"),
            ("run/..", "names a directory"),
            (".", "names a directory"),
            ("a\0b", "contains a NUL character"),
        ] {
            let said = absolute(path).unwrap_err();
            assert!(
                said.contains(why) && said.contains(&format!("{path:?}")) && said.contains("set discovery.local.path to a file"),
                "{said}"
            );
        }
    }
}
