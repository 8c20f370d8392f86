//! How the versions of members affect ownership.

use super::{PolicyError, refuse};

/// Who owns what while the members' versions differ, as in a rolling upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum VersionRule {
    /// Versions have no effect.
    #[default]
    None,
    /// The holder of a slot or a name keeps it, and free ones go to the newest version that has room ([`Succession`](crate::Succession)).
    /// Once all versions are equal, the placement decides again.
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

    /// The rule with this name in the settings.
    pub fn named(name: &str) -> Option<Self> {
        [Self::None, Self::Newest].into_iter().find(|rule| rule.as_str() == name)
    }

    /// The rule needs claims, which say who held what.
    pub(super) fn allowed_without_claims(self) -> Result<(), PolicyError> {
        let allowed = "it is about who keeps a claim; write ownership = \"exclusive\" too, which needs placement = \"ring\", \
                       or write version_rule = \"none\"";
        if self == Self::None { Ok(()) } else { Err(refuse("version_rule", self.as_str(), allowed)) }
    }
}
