//! The addressee of a request.

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
    /// The owner of a key.
    Owner,
    /// The holder of a name: of a singleton, a daemon or a timer.
    Holder,
    /// The member that has opened a session.
    Session,
}

const ALL: [Addressee; 5] = [Addressee::Instance, Addressee::Any, Addressee::Owner, Addressee::Holder, Addressee::Session];

impl Addressee {
    /// The value of [`TO_HEADER`].
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Instance => "instance",
            Self::Any => "any",
            Self::Owner => "owner",
            Self::Holder => "holder",
            Self::Session => "session",
        }
    }

    /// The addressee for that value of [`TO_HEADER`]; `None` if it is not a known one.
    pub fn of_header(value: &[u8]) -> Option<Self> {
        ALL.into_iter().find(|addressee| addressee.as_str().as_bytes() == value)
    }
}

impl fmt::Display for Addressee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Instance => "one instance",
            Self::Any => "any instance",
            Self::Owner => "the owner of a key",
            Self::Holder => "the holder of a name",
            Self::Session => "a session",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_what_it_was_written_for() {
        for addressee in ALL {
            assert_eq!(Addressee::of_header(addressee.as_str().as_bytes()), Some(addressee));
        }
        for unknown in ["", "Any", "any ", "instance, any", "everybody"] {
            assert_eq!(Addressee::of_header(unknown.as_bytes()), None, "{unknown}");
        }
    }
}
