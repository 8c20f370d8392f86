//! Where a value came from, and the one line that says what is wrong with it.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::file::DEFAULT_SECTION;
use super::value::shown;
use crate::{Error, ErrorKind};

/// Where a value in force came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "from", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Origin {
    /// Nobody wrote the key.
    Default,
    /// A policy's `next` does not name the key, and the policy's own value holds.
    Policy,
    /// A section of the settings file.
    File {
        /// The file as it was named; `settings` when the text did not come from a file.
        file: Arc<str>,
        /// The section: `default`, or an environment's such as `production`.
        section: Arc<str>,
        /// The line, counted from 1.
        line: usize,
    },
    /// An environment variable.
    Variable {
        /// Its name.
        variable: Arc<str>,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Policy => f.write_str("the policy"),
            Self::File { file, section, line } => write!(f, "{file} line {line}, [{section}]"),
            Self::Variable { variable } => write!(f, "environment variable {variable}"),
        }
    }
}

impl Origin {
    /// Which layer this is, the uppermost has the highest number.
    pub(super) fn layer(&self) -> u8 {
        match self {
            Self::Default | Self::Policy => 0,
            Self::File { section, .. } if &**section == DEFAULT_SECTION => 1,
            Self::File { .. } => 2,
            Self::Variable { .. } => 3,
        }
    }

    /// A settings error that begins with the place to look at.
    pub(super) fn fail(&self, message: impl fmt::Display) -> Error {
        match self {
            Self::Default | Self::Policy => fail(message),
            Self::File { file, line, .. } => fail(format_args!("{file} line {line}: {message}")),
            Self::Variable { variable } => fail(format_args!("environment variable {variable}: {message}")),
        }
    }
}

/// A settings error that belongs to no place: one line, whatever characters the names in it have.
pub(super) fn fail(message: impl fmt::Display) -> Error {
    let mut line = String::new();
    for c in message.to_string().chars() {
        if c.is_control() { line.extend(c.escape_debug()) } else { line.push(c) }
    }
    Error::new(ErrorKind::Settings, line)
}

/// One value in force, for people who ask why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Setting {
    /// The full key without its section, such as `resilience.sharding.policies.workers.slots`.
    pub key: String,
    /// The value as text, relative paths as they are used.
    pub value: String,
    /// Where it came from. A policy's discovery key that the policy does not override has the origin of the common one.
    pub origin: Origin,
    /// What the key is for, in one line.
    pub why: &'static str,
}

/// The full key of a value, without its section.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Path(Vec<String>);

impl Path {
    pub(super) fn of(names: &[&str]) -> Self {
        Self(names.iter().map(|&name| name.to_owned()).collect())
    }

    pub(super) fn join(&self, name: &str) -> Self {
        let mut names = self.0.clone();
        names.push(name.to_owned());
        Self(names)
    }

    /// The last name, if `self` stands directly in `table`.
    pub(super) fn child_of(&self, table: &Self) -> Option<&str> {
        let (last, parents) = self.0.split_last()?;
        (parents == table.0).then_some(last.as_str())
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, name) in self.0.iter().enumerate() {
            let dot = if i == 0 { "" } else { "." };
            let bare = !name.is_empty() && name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
            if bare { write!(f, "{dot}{name}")? } else { write!(f, "{dot}{}", shown(name))? }
        }
        Ok(())
    }
}
