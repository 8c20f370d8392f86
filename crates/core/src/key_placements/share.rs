//! What one member holds under a key placement.

use std::fmt;
use std::sync::Arc;

use super::KeyOwners;
use crate::ShardKey;

/// What one member holds under a key placement: its own keys, every key, or none.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyShare(ShareKind);

#[derive(Clone, PartialEq, Eq)]
enum ShareKind {
    Nothing,
    Everything,
    Member(Arc<KeyOwners>, u32),
}

impl KeyShare {
    pub(super) const fn of_member(owners: Arc<KeyOwners>, position: u32) -> Self {
        Self(ShareKind::Member(owners, position))
    }

    /// No key.
    pub const fn nothing() -> Self {
        Self(ShareKind::Nothing)
    }

    /// Every key.
    pub const fn everything() -> Self {
        Self(ShareKind::Everything)
    }

    /// Whether it holds no key by definition. The share of a member that happens to own no key is not `nothing`.
    pub const fn is_nothing(&self) -> bool {
        matches!(self.0, ShareKind::Nothing)
    }

    /// The owners of all keys; `None` if it is nothing or everything.
    pub fn owners(&self) -> Option<&KeyOwners> {
        match &self.0 {
            ShareKind::Member(owners, _) => Some(owners),
            ShareKind::Nothing | ShareKind::Everything => None,
        }
    }

    /// Whether `key` is in it.
    #[inline]
    pub fn holds<K: ShardKey + ?Sized>(&self, key: &K) -> bool {
        match &self.0 {
            ShareKind::Nothing => false,
            ShareKind::Everything => true,
            ShareKind::Member(owners, me) => owners.position(key) == Some(*me),
        }
    }
}

impl fmt::Debug for KeyShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ShareKind::Member(owners, me) => {
                let (placement, members) = (owners.placement(), owners.members());
                write!(f, "keys of {:?} by {placement} among {}", members[*me as usize].0, members.len())
            }
            ShareKind::Nothing => f.write_str("no keys"),
            ShareKind::Everything => f.write_str("all keys"),
        }
    }
}
