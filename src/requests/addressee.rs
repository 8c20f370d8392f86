//! The addressee of a request: one instance, or any.

use std::fmt;

/// The header of a forwarded request that names its addressee: `instance` or `any`.
pub const TO_HEADER: &str = "shardwise-to";

/// The addressee of a request. Each has its own handlers: a handler for one instance never answers a request to any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Addressee {
    /// One instance, which the caller has named.
    Instance,
    /// Any instance of the group.
    Any,
}

impl Addressee {
    /// The value of [`TO_HEADER`].
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Instance => "instance",
            Self::Any => "any",
        }
    }

    /// The addressee for that value of [`TO_HEADER`]; `None` if it is not a known one. Without the header it is one instance: older
    /// sidecars do not send it.
    pub fn of_header(value: Option<&[u8]>) -> Option<Self> {
        match value {
            None | Some(b"instance") => Some(Self::Instance),
            Some(b"any") => Some(Self::Any),
            Some(_) => None,
        }
    }
}

impl fmt::Display for Addressee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Instance => "one instance",
            Self::Any => "any instance",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_what_it_was_written_for_and_none_says_one_instance() {
        for addressee in [Addressee::Instance, Addressee::Any] {
            assert_eq!(Addressee::of_header(Some(addressee.as_str().as_bytes())), Some(addressee));
        }
        assert_eq!(Addressee::of_header(None), Some(Addressee::Instance));
        for unknown in ["", "Any", "any ", "instance, any", "owner"] {
            assert_eq!(Addressee::of_header(Some(unknown.as_bytes())), None, "{unknown}");
        }
    }
}
