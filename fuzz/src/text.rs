//! Short texts: what is accepted is what is written back, and what is refused is refused with a message.

use shardwise_core::{
    Fingerprint, GroupName, Incarnation, InstanceId, LoadMargin, NAME_BYTES_MAX, PolicyName, ShardKey, format_duration, hash_bytes,
    parse_duration,
};

pub(crate) const DURATIONS: &[&[u8]] = &[b"5s", b"250 ms", b"10m", b"6h", b"7d", b"0", b"18446744073709551615ms", b"\xc3\xa9s"];
pub(crate) const FINGERPRINTS: &[&[u8]] = &[b"0123456789abcdef", b"FFFFFFFFFFFFFFFF", b"+123456789abcdef", b"-000000000000001"];
pub(crate) const KEYS: &[&[u8]] = &[b"", b"tenant-00000001", b"\x00\xff", b"seventeen bytes..", "Größe 🦀".as_bytes(), &[0x80; 16]];
pub(crate) const LOAD_MARGINS: &[&[u8]] = &[b"none", b"0.05", b"10", b"0.050", b"10.001", b"4294967.295", b"1e3"];
pub(crate) const NAMES: &[&[u8]] = &[b"worker-1", b"a_policy", "Größe".as_bytes(), b"nul\0", b"_", &[b'a'; NAME_BYTES_MAX + 1]];

fn text(input: &[u8]) -> Option<&str> {
    std::str::from_utf8(input).ok()
}

pub(crate) fn durations(input: &[u8]) {
    let Some(text) = text(input) else { return };
    match parse_duration(text) {
        Ok(duration) => assert_eq!(parse_duration(&format_duration(duration)), Ok(duration), "{text:?}"),
        Err(error) => assert_eq!(error.given, text),
    }
}

pub(crate) fn fingerprints(input: &[u8]) {
    let Some(text) = text(input) else { return };
    if let Some(fingerprint) = Fingerprint::from_hex(text) {
        assert_eq!(fingerprint.to_string(), text.to_ascii_lowercase());
    }
    if let Some(incarnation) = Incarnation::from_hex(text) {
        assert_eq!(incarnation.to_string(), text.to_ascii_lowercase());
    }
}

/// Bytes are a key as they are, and an integer is its big-endian bytes to the ring and its digits to other fleets.
pub(crate) fn keys(input: &[u8]) {
    assert_eq!(input.key_hash(), hash_bytes(input));
    if let Some(text) = text(input) {
        assert_eq!(text.key_hash(), hash_bytes(input));
    }
    let mut wide = [0; 16];
    let length = input.len().min(wide.len());
    wide[..length].copy_from_slice(&input[..length]);
    let (unsigned, signed) = (u128::from_le_bytes(wide), i128::from_le_bytes(wide));
    assert_eq!(unsigned.key_hash(), hash_bytes(&unsigned.to_be_bytes()));
    unsigned.with_key(|key| key.with_text(|digits| assert_eq!(digits, unsigned.to_string().as_bytes())));
    signed.with_key(|key| key.with_text(|digits| assert_eq!(digits, signed.to_string().as_bytes())));
    input.with_key(|key| key.with_text(|text| assert_eq!(text, input)));
}

pub(crate) fn load_margins(input: &[u8]) {
    let Some(text) = text(input) else { return };
    match LoadMargin::parse(text) {
        Ok(margin) => assert_eq!(LoadMargin::parse(&margin.to_string()), Ok(margin), "{text:?}"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

pub(crate) fn names(input: &[u8]) {
    let Some(text) = text(input) else { return };
    let allowed = !text.is_empty() && text.len() <= NAME_BYTES_MAX && !text.contains('\0');
    assert_eq!(InstanceId::new(text).is_ok(), allowed, "{text:?}");
    assert_eq!(GroupName::new(text).is_ok(), allowed, "{text:?}");
    if let Ok(id) = InstanceId::new(text) {
        assert_eq!(id.as_str(), text);
    }
    if let Ok(name) = PolicyName::new(text) {
        assert_eq!(name.as_str(), text);
        let plain = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        assert!(text.split('_').all(plain) && text.starts_with(|c: char| c.is_ascii_lowercase()), "{text:?}");
    }
}
