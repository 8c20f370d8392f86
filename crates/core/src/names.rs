//! The names of policies, groups and instances, validated on construction.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Escaped;

/// The most bytes (UTF-8) of an instance or group name; backends escape names where they must.
pub const NAME_BYTES_MAX: usize = 255;

/// Why a name is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name has no characters.
    #[error("{what} is empty: give it at least one character")]
    Empty {
        /// The kind of name.
        what: &'static str,
    },
    /// The name has more than [`NAME_BYTES_MAX`] bytes.
    #[error("{what} has {bytes} bytes; at most {NAME_BYTES_MAX} are allowed")]
    TooLong {
        /// The kind of name.
        what: &'static str,
        /// Its length in bytes.
        bytes: usize,
    },
    /// The name contains a NUL, which some backends cannot store.
    #[error("{what} contains a NUL character: remove it")]
    Nul {
        /// The kind of name.
        what: &'static str,
    },
    /// A policy's or outbox's name is not of the form `[a-z][a-z0-9]*(_[a-z0-9]+)*`.
    #[error("{given:?} is not a name: use lower-case letters, digits and single underscores, beginning with a letter")]
    NotAnIdentifier {
        /// The name as it was given.
        given: String,
    },
}

fn check(what: &'static str, name: &str) -> Result<(), NameError> {
    match name.len() {
        0 => Err(NameError::Empty { what }),
        bytes if bytes > NAME_BYTES_MAX => Err(NameError::TooLong { what, bytes }),
        _ if name.contains('\0') => Err(NameError::Nul { what }),
        _ => Ok(()),
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        /// By the bytes.
        impl Ord for $name {
            fn cmp(&self, other: &Self) -> Ordering {
                // Nearly all names of two successive views are the same in memory too. Equality looks there by itself.
                if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
            }
        }

        impl $name {
            /// Validates the name.
            pub fn new(name: impl AsRef<str>) -> Result<Self, NameError> {
                check($what, name.as_ref())?;
                Ok(Self(name.as_ref().into()))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        /// For display: control characters are escaped (see [`Escaped`]). Programs use `as_str`.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                Escaped(&self.0).fmt(f)
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(name: String) -> Result<Self, NameError> {
                Self::new(name)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.as_ref().into()
            }
        }
    };
}

name!(
    /// The name of one worker in its group: any UTF-8 without NUL, 1 to [`NAME_BYTES_MAX`] bytes. Ordered by bytes.
    InstanceId,
    "the instance id"
);
name!(
    /// The name of the group of workers that share one workload: any UTF-8 without NUL, 1 to [`NAME_BYTES_MAX`] bytes.
    GroupName,
    "the group name"
);
name!(
    /// The name of a claim that is not for a slot: a singleton, a daemon, a timer. Any UTF-8 without NUL, 1 to [`NAME_BYTES_MAX`] bytes.
    ClaimName,
    "the claim's name"
);

/// The name of a policy or an outbox in the settings: `[a-z][a-z0-9]*(_[a-z0-9]+)*`, so that it fits into an environment variable.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PolicyName(Arc<str>);

impl PolicyName {
    /// Validates the name.
    pub fn new(name: impl AsRef<str>) -> Result<Self, NameError> {
        let name = name.as_ref();
        let begins = name.starts_with(|c: char| c.is_ascii_lowercase());
        let parts = name.split('_').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()));
        if begins && parts { Ok(Self(name.into())) } else { Err(NameError::NotAnIdentifier { given: name.to_owned() }) }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_slashes_and_emoji_are_names() {
        for name in ["a b", "rack/1", "🦀", "ünïcode", &"x".repeat(NAME_BYTES_MAX)] {
            assert_eq!(InstanceId::new(name).map(String::from), Ok(name.to_owned()));
        }
    }

    #[test]
    fn a_name_is_shown_on_one_line_and_kept_as_it_is() {
        let name = "a\nb\u{1b}[2J\u{202e}c";
        let id = InstanceId::new(name).unwrap();
        assert_eq!((id.to_string().as_str(), id.as_str()), (r"a\nb\u{1b}[2J\u{202e}c", name));
        assert_eq!(serde_json::to_value(&id).unwrap(), name);
    }

    #[test]
    fn empty_long_and_nul_are_refused() {
        assert!(matches!(GroupName::new(""), Err(NameError::Empty { .. })));
        assert!(matches!(GroupName::new("x".repeat(256)), Err(NameError::TooLong { bytes: 256, .. })));
        assert!(matches!(GroupName::new("a\0b"), Err(NameError::Nul { .. })));
    }

    #[test]
    fn policy_names_fit_an_environment_variable() {
        for good in ["a", "outbox_publishers", "x9_9"] {
            assert!(PolicyName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "A", "9a", "_a", "a_", "a__b", "a-b", "ä"] {
            assert!(PolicyName::new(bad).is_err(), "{bad}");
        }
    }
}
