//! A hash modulo the number of members: what teams write who need nothing more.

/// FNV-1a in 32 bits.
pub(super) fn fnv1a(text: &[u8]) -> u32 {
    text.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
