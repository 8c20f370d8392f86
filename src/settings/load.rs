//! The sources of settings: the file, its section, the environment variables.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::{ErrorKind as IoErrorKind, Read};
use std::path::{Path, PathBuf};

use shardwise_settings::customary_variables;

use super::{fail, schema};
use crate::error::Error;

/// The most bytes that a settings file may have.
pub const FILE_BYTES_MAX: u64 = 1024 * 1024;

const DEFAULT_FILE: &str = "settings.toml";
const FILE_VARIABLE: &str = "SHARDWISE_SETTINGS";
const ENVIRONMENT_VARIABLE: &str = "SHARDWISE_ENV";
/// The prefix of all our variables.
const COMMON_PREFIX: &str = "SHARDWISE_";

/// Where to read settings from. The default has no file name and no environment variables; most programs need
/// [`LoadOptions::from_process`].
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct LoadOptions {
    /// The settings file. `None`: the variable `SHARDWISE_SETTINGS`, else `settings.toml` in the working directory.
    pub file: Option<PathBuf>,
    /// Environment variables by name. Only those with the prefix `SHARDWISE_` are read, and those of other tools that a backend's keys
    /// fall back on.
    pub variables: BTreeMap<String, OsString>,
    /// Replaces the file.
    text: Option<String>,
}

impl LoadOptions {
    /// Takes the environment of this process.
    pub fn from_process() -> Self {
        let customary = customary_variables(&schema::root(None));
        let ours = |(name, value): (OsString, OsString)| {
            let ours = |name: &String| name.starts_with(COMMON_PREFIX) || customary.iter().any(|other| other == name);
            name.into_string().ok().filter(ours).map(|name| (name, value))
        };
        Self { variables: std::env::vars_os().filter_map(ours).collect(), ..Self::default() }
    }

    /// Reads this file instead of the one named by the environment.
    #[must_use]
    pub fn with_file(self, file: impl Into<PathBuf>) -> Self {
        Self { file: Some(file.into()), ..self }
    }

    /// Uses this text instead of a file. Messages call it `settings`, and relative paths in it start at the working directory.
    #[must_use]
    pub fn with_text(self, text: impl Into<String>) -> Self {
        Self { text: Some(text.into()), ..self }
    }

    /// Replaces the environment variables.
    #[must_use]
    pub fn with_variables<N: Into<String>, V: Into<OsString>>(self, variables: impl IntoIterator<Item = (N, V)>) -> Self {
        Self { variables: variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect(), ..self }
    }

    /// The text to read, and its file.
    pub(super) fn read(&self) -> Result<(Cow<'_, str>, Option<PathBuf>), Error> {
        if let Some(text) = &self.text {
            return Ok((text.into(), None));
        }
        let named = self.named_file();
        let path = named.clone().unwrap_or_else(|| DEFAULT_FILE.into());
        Ok((read(&path, named.is_some())?.into(), Some(path)))
    }

    fn named_file(&self) -> Option<PathBuf> {
        self.file.clone().or_else(|| self.variable(FILE_VARIABLE).map(PathBuf::from))
    }

    /// The environment whose section overrides `[default]`.
    pub(super) fn environment(&self) -> Result<Option<&str>, Error> {
        let Some(value) = self.variable(ENVIRONMENT_VARIABLE) else {
            return Ok(None);
        };
        value.to_str().map(Some).ok_or_else(|| fail(format_args!("{ENVIRONMENT_VARIABLE} is not UTF-8 text")))
    }

    /// A variable; an empty one counts as not set, because shells and container tools unset variables that way.
    fn variable(&self, name: &str) -> Option<&OsString> {
        self.variables.get(name).filter(|value| !value.is_empty())
    }
}

impl fmt::Debug for LoadOptions {
    /// Shows the names of variables, but neither their values nor the text: both may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.variables.keys().collect();
        f.debug_struct("LoadOptions").field("file", &self.file).field("variables", &names).finish_non_exhaustive()
    }
}

/// The absolute folder of a file.
fn folder_of(path: &Path) -> String {
    let folder = std::path::absolute(path).ok().and_then(|path| path.parent().map(|folder| folder.display().to_string()));
    folder.unwrap_or_else(|| "the working directory".to_owned())
}

fn read(path: &Path, is_named: bool) -> Result<String, Error> {
    let shown = path.display();
    let unreadable = |error: std::io::Error| {
        let message = match error.kind() {
            IoErrorKind::NotFound if !is_named => format!(
                "there is no {DEFAULT_FILE} in {}: go to its folder, name it with {FILE_VARIABLE}, or write one with `shardwise init`",
                folder_of(path)
            ),
            IoErrorKind::NotFound => format!("the settings file {shown} does not exist: check the path"),
            IoErrorKind::IsADirectory => format!("the settings file {shown} is a directory: name a file in it"),
            IoErrorKind::PermissionDenied => format!("the settings file {shown} cannot be read by this user: let it read the file"),
            _ => format!("the settings file {shown} cannot be read: {error}; check the path, or name another file"),
        };
        fail(message).caused_by(error)
    };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(fail(format_args!("the settings file {shown} has more than {FILE_BYTES_MAX} bytes: is it the right file?")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()].split(|byte| *byte == b'\n').count();
        fail(format_args!("{shown} line {line}: this is not UTF-8 text"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_any_file_the_message_names_the_folder_and_says_how_to_make_one() {
        let folder = tempfile::tempdir().unwrap();
        let error = read(&folder.path().join(DEFAULT_FILE), false).unwrap_err();
        let expected = format!(
            "there is no settings.toml in {}: go to its folder, name it with SHARDWISE_SETTINGS, or write one with `shardwise init`",
            folder.path().display()
        );
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_file_named_in_code_goes_before_one_in_the_environment_and_that_before_the_usual_one() {
        let none = LoadOptions::default();
        assert_eq!(none.named_file(), None);
        let variable = none.with_variables([(FILE_VARIABLE, "a.toml")]);
        assert_eq!(variable.named_file(), Some("a.toml".into()));
        assert_eq!(variable.with_file("b.toml").named_file(), Some("b.toml".into()));
        assert_eq!(LoadOptions::default().with_variables([(FILE_VARIABLE, "")]).named_file(), None);
    }
}
