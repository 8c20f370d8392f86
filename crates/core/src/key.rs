//! What can be sharded, and how its bytes become a hash.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use twox_hash::XxHash3_64;

/// XXH3-64 with seed 0 over `bytes`: the hash of protocol 1, for keys as for points.
#[inline]
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// A value that can be placed on the ring: text, bytes, fixed arrays and integers.
///
/// Its bytes decide, and nothing else does: UTF-8 for text, the bytes as they are, big-endian at the type's own width for integers. So
/// `7u32` and `7u64` are different keys; choose one type for one kind of id. `usize` is left out because its width is the
/// machine's.
///
/// A type of your own delegates to the part that identifies it:
///
/// ```
/// use shardwise_core::ShardKey;
///
/// struct Tenant { name: String }
///
/// impl ShardKey for Tenant {
///     fn with_key_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
///         self.name.with_key_bytes(read)
///     }
/// }
///
/// assert_eq!(Tenant { name: "acme".into() }.key_hash(), "acme".key_hash());
/// ```
pub trait ShardKey {
    /// Hands the key's bytes to `read`; borrowed, so that nothing is allocated.
    fn with_key_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R;

    /// The key's hash, the same in every language and version.
    #[inline]
    fn key_hash(&self) -> u64 {
        self.with_key_bytes(hash_bytes)
    }
}

macro_rules! by_bytes {
    ($($type:ty),*) => {$(
        impl ShardKey for $type {
            #[inline]
            fn with_key_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
                read(self.as_ref())
            }
        }
    )*};
}
by_bytes!(str, String, [u8], Vec<u8>);

macro_rules! by_big_endian {
    ($($type:ty),*) => {$(
        impl ShardKey for $type {
            #[inline]
            fn with_key_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
                read(&self.to_be_bytes())
            }
        }
    )*};
}
by_big_endian!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128);

impl<const N: usize> ShardKey for [u8; N] {
    #[inline]
    fn with_key_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
        read(self)
    }
}

impl<K: ShardKey + ToOwned + ?Sized> ShardKey for Cow<'_, K> {
    #[inline]
    fn with_key_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
        (**self).with_key_bytes(read)
    }
}

macro_rules! by_pointee {
    ($($type:ty),*) => {$(
        impl<K: ShardKey + ?Sized> ShardKey for $type {
            #[inline]
            fn with_key_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
                (**self).with_key_bytes(read)
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
    fn text_and_its_bytes_are_one_key() {
        let text = String::from("Größe 🦀");
        assert_eq!(text.key_hash(), text.as_bytes().key_hash());
        assert_eq!(Arc::<str>::from("a").key_hash(), "a".key_hash());
        assert_eq!(Cow::Borrowed("a").key_hash(), Box::<str>::from("a").key_hash());
    }
}
