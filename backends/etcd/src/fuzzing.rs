//! What must hold for any bytes that come out of etcd or out of the settings, for the package `fuzz`. No part of the interface.

use std::path::PathBuf;

use shardwise_core::{ClaimName, GroupName, Holder, Incarnation, InstanceId, Resource};
use shardwise_discovery::RecordId;

use crate::EtcdConfig;
use crate::claim_records::{decode_claim, decode_store, encode_claim, encode_store};
use crate::client::KeyEntry;
use crate::keys::Prefix;
use crate::records;

/// Samples for `keys`.
pub const KEYS: &[&[u8]] = &[
    b"slots/0",
    b"slots/65535",
    b"slots/65536",
    b"slots/007",
    b"slots/+7",
    b"names/a%2Fb%25",
    b"names/\xc3\xa9",
    b"names/%C3",
    b"worker%201",
    b"%2f",
    b"%",
    b"/",
];

/// Samples for `records`.
pub const RECORDS: &[&[u8]] = &[
    br#"{"schema":1,"instance_id":"a","incarnation":"00000000000000ff","floor":7}"#,
    br#"{"schema":1,"instance_id":"a","incarnation":"00000000000000ff","floor":9007199254740991}"#,
    br#"{"schema":1,"id":"000000000000004d","floor":4503599627370496}"#,
    br#"{"schema":1,"id":"000000000000004d","floor":-1}"#,
    br#"{"schema":1,"incarnation":"0000000000000001","weight":1,"state":"active","address":{"host":"::1","port":1}}"#,
];

/// Samples for `addresses`.
pub const ADDRESSES: &[&[u8]] = &[
    b"http://127.0.0.1:2379",
    b"https://[::1]:2379/",
    b"h:1",
    b"http://me:pass@h:1",
    b"h:1/#x",
    b"[h]]:1",
    b"https://[]:2379/",
    b"ftp://h:1?x",
    b"/shardwise/",
];

/// Keys: what one is read as is written as the same key, and any name is read back from its key.
pub fn keys(input: &[u8]) {
    let (Ok(prefix), Ok(group)) = (Prefix::new("/p"), GroupName::new("a group/%")) else { return };
    let (members, claims) = (prefix.members(&group), prefix.claims(&group));
    let record_id = |instance_id| RecordId { group: group.clone(), instance_id, incarnation: Incarnation::new(1) };
    // A key with another prefix belongs to no member.
    assert!(members.member(input).is_err() || input.starts_with(&members.key()));
    let key = [members.key(), input.to_vec()].concat();
    if let Ok(id) = members.member(&key) {
        assert_eq!(prefix.keys(&record_id(id)).member, key);
    }
    let key = [claims.key(), input.to_vec()].concat();
    if let Some(resource) = claims.resource(&key) {
        assert_eq!(claims.claim(&resource), key);
    }
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(id) = InstanceId::new(text) {
        let key = prefix.keys(&record_id(id.clone())).member;
        assert!(key > members.key() && key < members.end(), "{text:?} is outside its group");
        assert_eq!(members.member(&key), Ok(id));
    }
    if let Ok(name) = ClaimName::new(text) {
        let resource = Resource::Name(name);
        assert_eq!(claims.resource(&claims.claim(&resource)), Some(resource));
    }
}

/// Values of claims, of stores of claims and of members: what is read is written so that it is read again.
pub fn records(input: &[u8]) {
    let (Ok(group), Ok(id)) = (GroupName::new("g"), InstanceId::new("a")) else { return };
    let entry = |value: &[u8], created| KeyEntry { key: b"/p/v1/x".to_vec(), value: value.to_vec(), created, modified: 9, lease: 1 };
    for created in [i64::MIN, 0, 7, i64::MAX] {
        let Ok(claim) = decode_claim(&entry(input, created)) else { continue };
        let Holder { instance_id, incarnation } = claim.holder.clone();
        let record_id = RecordId { group: group.clone(), instance_id, incarnation };
        let again = decode_claim(&entry(encode_claim(&record_id, claim.epoch.get()).as_bytes(), 0));
        assert_eq!(again, Ok(claim));
    }
    if let Ok(store) = decode_store(&entry(input, 7)) {
        assert_eq!(decode_store(&entry(encode_store(&store).as_bytes(), 7)).ok(), Some(store));
    }
    if let Ok(member) = records::decode(&id, &entry(input, 7)) {
        let again = records::encode(&member).ok().and_then(|json| records::decode(&id, &entry(json.as_bytes(), 7)).ok());
        assert_eq!(again, Some(member));
    }
}

/// Addresses and prefixes of the settings: one that is taken is taken again as it is shown, and what stands before an @ is never shown.
pub fn addresses(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    for ca_file in [None, Some(PathBuf::from("ca.pem"))] {
        let config = |text: &str| EtcdConfig { endpoints: vec![text.to_owned()], ca_file: ca_file.clone(), ..EtcdConfig::default() };
        let shown = |text: &str| Some(config(text).servers().ok()?.first()?.to_string());
        if let Some(address) = shown(text) {
            assert_eq!(shown(&address), Some(address.clone()), "{text:?}");
        }
        if !text.contains("hush") {
            let config = config(&format!("http://root:hush@{text}"));
            let said = config.servers().err().map(|failure| failure.to_string());
            assert!(said.as_ref().is_some_and(|said| !said.contains("hush")), "{said:?}");
            assert!(!format!("{config:?}").contains("hush"), "{config:?}");
        }
    }
    if let Ok(prefix) = Prefix::new(text) {
        assert_eq!(Prefix::new(prefix.as_str()).ok(), Some(prefix));
    }
}
