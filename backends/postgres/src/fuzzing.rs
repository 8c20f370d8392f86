//! What must hold for any bytes that go into statements or come out of the database, for the package `fuzz`. No part of the interface.

use shardwise_core::GroupName;

use crate::sql::literal::{read_back, text};
use crate::sql::reads::beat;
use crate::sql::{Schema, notified_group};

/// Samples for `literals`.
pub const LITERALS: &[&[u8]] = &[b"", b"it's", b"'; DROP TABLE member; --", b"\\'", b"a\\", b"a\0b", "Größe 🦀".as_bytes()];

/// Samples for `beats`.
pub const BEATS: &[&[u8]] = &[b"12 7 3000", b"0 0 0", b"9223372036854775807 18446744073709551615 18446744073709551615", b"-1 2 3", b"1 2"];

/// Samples for `names`: schemas, and what notifications say.
pub const NAMES: &[&[u8]] = &[b"shardwise", b"_a1", b"1a", b"a\"; DROP SCHEMA x", b"gworkers", b"gg'\\", b"g"];

/// Texts in statements: the server reads them as they are, and nothing behind them.
pub fn literals(input: &[u8]) {
    let Ok(value) = std::str::from_utf8(input) else { return };
    let literal = text(value).to_string();
    assert!(!literal.contains('\0'), "it would end the message");
    assert_eq!(read_back(&literal), Some(value.replace('\0', "\u{fffd}")));
}

/// Beats: what is read is three numbers, which are read again.
pub fn beats(input: &[u8]) {
    let Ok(entry) = std::str::from_utf8(input) else { return };
    let Some(read) = beat(entry) else { return };
    assert!(read.life >= 0, "{entry:?}");
    assert_eq!(beat(&format!("{} {} {}", read.life, read.count, read.ttl.as_millis())), Some(read));
}

/// Schemas are one identifier that needs no escapes, and a notification names one group.
pub fn names(input: &[u8]) {
    let Ok(given) = std::str::from_utf8(input) else { return };
    if let Ok(schema) = Schema::new(given) {
        assert_eq!(schema.to_string(), format!("\"{given}\""));
        assert!(given.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') && schema.channel().len() < 64);
    }
    if let Some(group) = notified_group(given) {
        assert_eq!(format!("g{}", group.as_str()), given);
    }
    if let Ok(group) = GroupName::new(given) {
        assert_eq!(notified_group(&format!("g{given}")), Some(group));
    }
}
