//! The ring of the crate `hashring`: `HashRing<(String, u32)>` with its default hasher, queried with `&str`.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use siphasher::sip::SipHasher;

use super::points::RingPosition;

/// SipHash-2-4 with a zero key over a value's `Hash` output. Stored as bytes, like that of `uhashring`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HashringPosition([u8; 8]);

impl HashringPosition {
    /// The hash of a `str` of these bytes.
    pub(super) fn of(text: &[u8]) -> Self {
        Self::at(of_str(text).finish())
    }

    pub(super) const fn number(self) -> u64 {
        u64::from_ne_bytes(self.0)
    }

    const fn at(number: u64) -> Self {
        Self(number.to_ne_bytes())
    }
}

impl Ord for HashringPosition {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.number().cmp(&other.number())
    }
}

impl PartialOrd for HashringPosition {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Writes what `str` writes: its bytes and a byte that does not occur in UTF-8.
fn of_str(text: &[u8]) -> SipHasher {
    let mut hasher = SipHasher::new();
    hasher.write(text);
    hasher.write_u8(0xff);
    hasher
}

impl RingPosition for HashringPosition {
    fn each_point(id: &str, points: u32, mut put: impl FnMut(Self)) {
        let begun = of_str(id.as_bytes());
        for i in 0..points {
            let mut hasher = begun;
            i.hash(&mut hasher);
            put(Self::at(hasher.finish()));
        }
    }

    /// The crate's own search, so that of several points at one place it finds the same one.
    fn find(points: &[(Self, u32)], key: Self) -> Option<(Self, u32)> {
        let (Ok(at) | Err(at)) = points.binary_search_by(|(place, _)| place.cmp(&key));
        points.get(at).or_else(|| points.first()).copied()
    }
}
