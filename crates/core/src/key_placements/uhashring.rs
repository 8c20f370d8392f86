//! The ring of the Python package uhashring 2.4, `HashRing(nodes)` with its default hash function.

use std::cmp::Ordering;
use std::io::Write;

use md5::{Digest, Md5};

use super::points::RingPosition;
use crate::NAME_BYTES_MAX;

/// Points per unit of weight: the package's own default (`vnodes`).
pub(super) const POINTS: u32 = 160;

/// MD5 as one big-endian number. Stored as bytes in the machine's order, because a `u128` together with a member would double the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UhashringPosition([u8; 16]);

impl UhashringPosition {
    pub(super) fn of(text: &[u8]) -> Self {
        Self(u128::from_be_bytes(Md5::digest(text).into()).to_ne_bytes())
    }

    pub(super) const fn number(self) -> u128 {
        u128::from_ne_bytes(self.0)
    }
}

impl Ord for UhashringPosition {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.number().cmp(&other.number())
    }
}

impl PartialOrd for UhashringPosition {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl RingPosition for UhashringPosition {
    /// Point `i` of a node is the hash of its name, a hyphen and `i` in decimal.
    fn each_point(id: &str, points: u32, mut put: impl FnMut(Self)) {
        let mut text = Vec::with_capacity(NAME_BYTES_MAX + 11);
        text.extend_from_slice(id.as_bytes());
        for i in 0..points {
            text.truncate(id.len());
            // Writing into a vector does not fail.
            let _ = write!(text, "-{i}");
            put(Self::of(&text));
        }
    }

    fn find(points: &[(Self, u32)], key: Self) -> Option<(Self, u32)> {
        last_behind(points, key)
    }
}

/// The first point behind the key, excluding its own place. The package keeps one node per place, the last one added: the greatest id.
pub(super) fn last_behind<C: RingPosition>(points: &[(C, u32)], key: C) -> Option<(C, u32)> {
    let behind = &points[points.partition_point(|(place, _)| *place <= key)..];
    let from_there = if behind.is_empty() { points } else { behind };
    let (first, _) = from_there.first()?;
    from_there.iter().take_while(|(place, _)| place == first).last().copied()
}
