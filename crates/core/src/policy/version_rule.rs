//! What versions have to say about who gets what.

use super::{PolicyError, refuse};

/// Who gets what while the members' versions differ: as in a rolling upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum VersionRule {
    /// Versions do not count.
    #[default]
    None,
    /// Whoever holds a slot or a name keeps it, and what is free goes to the newest version that has room ([`Succession`](crate::Succession)). Once
    /// all versions are the same the placement decides again.
    Newest,
}

impl VersionRule {
    /// The name in the settings, and in the fingerprint's text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Newest => "newest",
        }
    }

    /// The rule of that name in the settings.
    pub fn named(name: &str) -> Option<Self> {
        [Self::None, Self::Newest].into_iter().find(|rule| rule.as_str() == name)
    }

    /// Without claims nobody knows who has had what.
    pub(super) fn allowed_without_claims(self) -> Result<(), PolicyError> {
        let allowed = "it is about who keeps a claim; write ownership = \"exclusive\" beside it, which needs placement = \"ring\", \
                       or write version_rule = \"none\"";
        if self == Self::None { Ok(()) } else { Err(refuse("version_rule", self.as_str(), allowed)) }
    }
}
