//! What can be a key, and how its bytes become a hash.

use std::borrow::Cow;
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;

use twox_hash::XxHash3_64;

/// XXH3-64 with seed 0 over `bytes`: the hash of protocol 1, for keys as for points.
#[inline]
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    // Short keys take a handful of instructions that belong in the caller's loop; code for longer ones would be in the way there.
    if bytes.len() <= 16 { XxHash3_64::oneshot(bytes) } else { hash_longer(bytes) }
}

#[inline(never)]
fn hash_longer(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// A key as a [`ShardKey`] passes it on: its bytes, and whether they are an integer.
///
/// The placement `ring` uses only the bytes. Key placements use the text, because other fleets hash that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key<'a> {
    bytes: &'a [u8],
    kind: KeyKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyKind {
    /// Text, or arbitrary bytes.
    Bytes,
    /// An unsigned integer, big-endian at its type's width.
    Unsigned,
    /// A signed integer, big-endian in two's complement at its type's width.
    Signed,
}

impl<'a> Key<'a> {
    /// A key of these bytes; for text, its UTF-8.
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, kind: KeyKind::Bytes }
    }

    /// The bytes that protocol 1 hashes.
    pub const fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Passes the key's text to `read`: the decimal digits of an integer, with `-` if negative, whatever its width; otherwise the bytes
    /// unchanged. Allocates nothing.
    pub fn with_text<R>(self, read: impl FnOnce(&[u8]) -> R) -> R {
        let fill = match self.kind {
            KeyKind::Bytes => return read(self.bytes),
            KeyKind::Signed if self.bytes.first().is_some_and(|first| *first >= 0x80) => 0xff,
            KeyKind::Signed | KeyKind::Unsigned => 0,
        };
        // At most 16 bytes wide, and as text 39 digits and a sign.
        let mut wide = [fill; 16];
        let begin = wide.len().saturating_sub(self.bytes.len());
        wide[begin..].copy_from_slice(self.bytes);
        let mut text = [0; 40];
        let mut rest = &mut text[..];
        // The text always fits; an overflow would only truncate it.
        let _ = if self.kind == KeyKind::Signed {
            write!(rest, "{}", i128::from_be_bytes(wide))
        } else {
            write!(rest, "{}", u128::from_be_bytes(wide))
        };
        let left = rest.len();
        read(&text[..text.len() - left])
    }
}

/// A key that outlives the value it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedKey {
    bytes: Box<[u8]>,
    kind: KeyKind,
}

/// The most bytes of a key that comes from outside: in a request, or in a list of keys.
pub const KEY_BYTES_MAX: usize = 64 << 10;

impl OwnedKey {
    /// A copy of any key.
    pub fn of<K: ShardKey + ?Sized>(key: &K) -> Self {
        key.with_key(|key| Self { bytes: key.bytes.into(), kind: key.kind })
    }

    /// The same key, borrowed.
    pub fn as_key(&self) -> Key<'_> {
        Key { bytes: &self.bytes, kind: self.kind }
    }

    /// What its bytes are, for [`OwnedKey::from_parts`] in another process: `bytes`, `unsigned` or `signed`.
    pub const fn kind(&self) -> &'static str {
        match self.kind {
            KeyKind::Bytes => "bytes",
            KeyKind::Unsigned => "unsigned",
            KeyKind::Signed => "signed",
        }
    }

    /// The key of that kind and these bytes; `None` for an unknown kind, or an integer that is not 1, 2, 4, 8 or 16 bytes wide.
    pub fn from_parts(kind: &str, bytes: &[u8]) -> Option<Self> {
        let kind = match kind {
            "bytes" => return Some(Self { bytes: bytes.into(), kind: KeyKind::Bytes }),
            "unsigned" => KeyKind::Unsigned,
            "signed" => KeyKind::Signed,
            _ => return None,
        };
        matches!(bytes.len(), 1 | 2 | 4 | 8 | 16).then(|| Self { bytes: bytes.into(), kind })
    }
}

impl From<Key<'_>> for OwnedKey {
    fn from(key: Key<'_>) -> Self {
        Self::of(&key)
    }
}

impl ShardKey for OwnedKey {
    fn with_key<R>(&self, read: impl FnOnce(Key<'_>) -> R) -> R {
        read(self.as_key())
    }
}

impl ShardKey for Key<'_> {
    #[inline]
    fn with_key<R>(&self, read: impl FnOnce(Key<'_>) -> R) -> R {
        read(*self)
    }
}

/// A value that can be placed on the ring: text, bytes, fixed arrays and integers.
///
/// Only its bytes count: UTF-8 for text, bytes as they are, and integers big-endian at their type's width. So `7u32` and `7u64` are
/// different keys; choose one type for one kind of id. `usize` is left out because its width depends on the machine. (The key placements
/// `uhashring`, `modulo` and `hashring` use [`Key::with_text`], where an integer is its decimal text.)
///
/// A type of your own delegates to the part that identifies it:
///
/// ```
/// use shardwise_core::{Key, ShardKey};
///
/// struct Tenant { name: String }
///
/// impl ShardKey for Tenant {
///     fn with_key<R>(&self, read: impl FnOnce(Key<'_>) -> R) -> R {
///         self.name.with_key(read)
///     }
/// }
///
/// assert_eq!(Tenant { name: "acme".into() }.key_hash(), "acme".key_hash());
/// ```
pub trait ShardKey {
    /// Passes the key to `read`, borrowed, so that nothing is allocated.
    fn with_key<R>(&self, read: impl FnOnce(Key<'_>) -> R) -> R;

    /// The key's hash, the same in every language and version.
    #[inline]
    fn key_hash(&self) -> u64 {
        self.with_key(|key| hash_bytes(key.bytes))
    }
}

macro_rules! by_bytes {
    ($($type:ty),*) => {$(
        impl ShardKey for $type {
            #[inline]
            fn with_key<R>(&self, read: impl FnOnce(Key<'_>) -> R) -> R {
                read(Key::new(self.as_ref()))
            }
        }
    )*};
}
by_bytes!(str, String, [u8], Vec<u8>);

macro_rules! by_big_endian {
    ($kind:expr, $($type:ty),*) => {$(
        impl ShardKey for $type {
            #[inline]
            fn with_key<R>(&self, read: impl FnOnce(Key<'_>) -> R) -> R {
                read(Key { bytes: &self.to_be_bytes(), kind: $kind })
            }
        }
    )*};
}
by_big_endian!(KeyKind::Unsigned, u8, u16, u32, u64, u128);
by_big_endian!(KeyKind::Signed, i8, i16, i32, i64, i128);

impl<const N: usize> ShardKey for [u8; N] {
    #[inline]
    fn with_key<R>(&self, read: impl FnOnce(Key<'_>) -> R) -> R {
        read(Key::new(self))
    }
}

impl<K: ShardKey + ToOwned + ?Sized> ShardKey for Cow<'_, K> {
    #[inline]
    fn with_key<R>(&self, read: impl FnOnce(Key<'_>) -> R) -> R {
        (**self).with_key(read)
    }
}

macro_rules! by_pointee {
    ($($type:ty),*) => {$(
        impl<K: ShardKey + ?Sized> ShardKey for $type {
            #[inline]
            fn with_key<R>(&self, read: impl FnOnce(Key<'_>) -> R) -> R {
                (**self).with_key(read)
            }
        }
    )*};
}
by_pointee!(&K, Box<K>, Arc<K>, Rc<K>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_xxh3_64_with_seed_0() {
        // The reference implementation's own values for the empty input and for "abc".
        assert_eq!(hash_bytes(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(hash_bytes(b"abc"), 0x78af_5f94_892f_3950);
    }

    #[test]
    fn integers_are_big_endian_at_their_own_width() {
        assert_eq!(0x0102_0304_u32.key_hash(), [1u8, 2, 3, 4].key_hash());
        assert_eq!((-2i16).key_hash(), [0xffu8, 0xfe].key_hash());
        assert_ne!(7u32.key_hash(), 7u64.key_hash());
    }

    #[test]
    fn the_text_of_an_integer_is_decimal_whatever_its_width() {
        fn text<K: ShardKey>(key: K) -> String {
            key.with_key(|key| key.with_text(|text| String::from_utf8(text.to_vec()).unwrap()))
        }
        assert_eq!((text(7u8), text(7u64), text(-7i8), text(-7i64)), ("7".into(), "7".into(), "-7".into(), "-7".into()));
        assert_eq!(text(u128::MAX), u128::MAX.to_string());
        assert_eq!((text(i128::MIN), text(i128::MAX)), (i128::MIN.to_string(), i128::MAX.to_string()));
        assert_eq!((text(i16::MIN), text(u16::MAX), text(0i32)), ("-32768".into(), "65535".into(), "0".into()));
        assert_eq!((text(Box::new(42u32)), text("é"), text(*b"42")), ("42".into(), "é".into(), "42".into()));
    }

    #[test]
    fn text_and_its_bytes_are_one_key() {
        let text = String::from("Größe 🦀");
        assert_eq!(text.key_hash(), text.as_bytes().key_hash());
        assert_eq!(Arc::<str>::from("a").key_hash(), "a".key_hash());
        assert_eq!(Cow::Borrowed("a").key_hash(), Box::<str>::from("a").key_hash());
        let owned = OwnedKey::of(&-7_i64);
        assert_eq!((owned.as_key().key_hash(), OwnedKey::from(owned.as_key())), ((-7_i64).key_hash(), owned.clone()));
    }
}
