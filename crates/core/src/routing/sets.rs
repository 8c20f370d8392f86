//! The set of members that may serve a destination, or why there is none.

use super::Width;

const MEMBERS: usize = Width::MAX.get() as usize;

/// Up to four members, as indices into the members of a [`RouteTable`](super::RouteTable)'s view: for a key its owner first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberSet {
    indices: [u32; MEMBERS],
    len: usize,
}

impl MemberSet {
    pub(super) const EMPTY: Self = Self { indices: [0; MEMBERS], len: 0 };

    pub(super) const fn one(index: u32) -> Self {
        Self { indices: [index; MEMBERS], len: 1 }
    }

    /// Adds a member; ignored if there are four.
    pub(super) fn push(&mut self, index: u32) {
        if let Some(free) = self.indices.get_mut(self.len) {
            *free = index;
            self.len += 1;
        }
    }

    /// The indices.
    pub fn as_slice(&self) -> &[u32] {
        self.indices.get(..self.len).unwrap_or_default()
    }
}

/// Why no member can serve a request now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoRoute {
    /// No member owns keys now: the view or the claims are not known yet, all members are drained, or fewer than `min_members` are active.
    #[error(
        "no member owns keys now: the view is not known yet, all members are drained, or fewer than min_members are active; \
         `shardwise owner KEY` names the cause"
    )]
    NoView,
    /// No member serves the key, name or member now: it is away, its claim is free, or its holder is no longer a member.
    #[error("no member serves it now")]
    Unserved,
    /// The group has no active member, or none with the label.
    #[error("the group has no such active member")]
    NoMembers,
    /// The group has no member of that name.
    #[error("the group has no member of that name")]
    UnknownMember,
    /// The member that opened the session is in no view so far. Only a view that was proven after the request came decides.
    #[error("the member that opened the session is not known yet")]
    Unproven,
    /// The session has ended with its member.
    #[error("the session has ended: the member that opened it is gone")]
    SessionEnded,
}

impl NoRoute {
    /// Whether a later view or claim may bring a member, so that a request should wait.
    pub const fn may_change(self) -> bool {
        matches!(self, Self::NoView | Self::Unserved | Self::NoMembers | Self::Unproven)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_at_most_four_members() {
        let mut set = MemberSet::EMPTY;
        assert_eq!(set.as_slice(), [0_u32; 0]);
        for index in 5..11 {
            set.push(index);
        }
        assert_eq!((set.as_slice(), MemberSet::one(7).as_slice()), (&[5, 6, 7, 8][..], &[7][..]));
    }
}
