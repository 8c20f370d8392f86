//! The origin of a value, and one-line errors that name it.

use std::fmt;
use std::sync::Arc;

use config::Value;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::quote::shown;

/// The section that all others override.
pub(crate) const DEFAULT_SECTION: &str = "default";
/// What our variables begin with, and what separates names in them.
pub(crate) const PREFIX: &str = "SHARDWISE__";
pub(crate) const SEPARATOR: &str = "__";

/// The origin of a value in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Origin {
    /// The key is not set.
    Default,
    /// A policy's `next` does not set the key, so the policy's own value applies.
    Policy,
    /// A section of the settings file.
    File {
        /// The file's name as given; `settings` if the text did not come from a file.
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
    /// The value with this origin, stored as JSON in the text that `config` keeps for it.
    pub(crate) fn on(&self, kind: impl Into<config::ValueKind>) -> Value {
        Value::new(serde_json::to_string(self).ok().as_ref(), kind)
    }

    /// The origin written by [`Origin::on`]; a value without one is a default.
    pub(crate) fn of(value: &Value) -> Self {
        value.origin().and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Self::Default)
    }

    /// The number of the layer; the one that overrides all others has the highest. Other tools' variables rank below the file.
    pub(crate) fn layer(&self) -> u8 {
        match self {
            Self::File { section, .. } if &**section == DEFAULT_SECTION => 1,
            Self::File { .. } => 2,
            Self::Variable { variable } if variable.starts_with(PREFIX) => 3,
            Self::Default | Self::Policy | Self::Variable { .. } => 0,
        }
    }

    /// For a variable: the name to write if it sets `right` instead of `given`, both full keys of values or of tables around them.
    pub fn variable_with(&self, right: &str, given: &str) -> Option<String> {
        let Self::Variable { variable } = self else { return None };
        let below = variable.strip_prefix(&*variable_of(given)).unwrap_or_default();
        Some(variable_of(right) + below)
    }

    /// Whether it is a variable that sets something below the key `given`.
    pub(crate) fn is_below(&self, given: &str) -> bool {
        matches!(self, Self::Variable { variable } if variable.strip_prefix(&*variable_of(given)).is_some_and(|below| !below.is_empty()))
    }

    /// A settings error that starts with the origin.
    pub fn fail(&self, message: impl fmt::Display) -> Error {
        match self {
            Self::Default | Self::Policy => Error::new(message),
            Self::File { file, line, .. } => Error::new(format_args!("{file} line {line}: {message}")),
            Self::Variable { variable } => Error::new(format_args!("environment variable {variable}: {message}")),
        }
    }
}

/// One value in force, for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Setting {
    /// The full key without its section, such as `resilience.sharding.policies.workers.slots`.
    pub key: String,
    /// The value as text; relative paths are resolved.
    pub value: String,
    /// Its origin. A policy's discovery key that the policy does not override has the origin of the common one.
    pub origin: Origin,
    /// The purpose of the key, in one line.
    pub why: &'static str,
}

/// The full key of `name` in `table`; a name that TOML does not allow bare is in quotes.
pub(crate) fn join(table: &str, name: &str) -> String {
    let is_bare = !name.is_empty() && name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    let name = if is_bare { name.to_owned() } else { shown(name) };
    if table.is_empty() { name } else { format!("{table}.{name}") }
}

/// The variable that sets a full key.
fn variable_of(key: &str) -> String {
    let names = key.split('.').filter(|name| !name.is_empty()).collect::<Vec<_>>();
    PREFIX.to_owned() + &names.join(SEPARATOR).to_uppercase()
}
