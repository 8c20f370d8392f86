//! What must hold for any bytes that come out of Consul or out of the settings, for the package `fuzz`. No part of the interface.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::json;
use shardwise_core::{ClaimName, ClaimStore, GroupName, Holder, InstanceId, Moment, Resource, StoreId};
use shardwise_discovery::RecordId;

use crate::ConsulConfig;
use crate::claims::keys as claims;
use crate::keys::KvPair;
use crate::registrations::LiveRegistration;
use crate::wire::{Service, ServiceEntry};
use crate::{names, notes};

/// Samples for `keys`.
pub const KEYS: &[&[u8]] = &[
    b"slot/0",
    b"slot/65535",
    b"slot/65536",
    b"slot/007",
    b"name/a%2Fb",
    b"name/%2f",
    b"name/%C3%A9%252F",
    b"name/%C3",
    b"name/%",
    b"store",
    b"consul",
    b"shardwise:%2F",
    b"a//b",
    "Größe 🦀".as_bytes(),
];

/// Samples for `records`: what the key-value store answers.
pub const RECORDS: &[&[u8]] = &[
    // {"id":"a","floor":7}
    br#"[{"Key":"slot/7","Flags":255,"ModifyIndex":12,"LockIndex":1,"Session":"s","Value":"eyJpZCI6ImEiLCJmbG9vciI6N30="}]"#,
    br#"[{"Key":"name/a","Flags":255,"ModifyIndex":18446744073709551615,"Session":"s","Value":"eyJpZCI6ImEiLCJmbG9vciI6N30="}]"#,
    // {"id":"000000000000004d","floor":7}
    br#"[{"Key":"store","Flags":0,"ModifyIndex":12,"Value":"eyJpZCI6IjAwMDAwMDAwMDAwMDAwNGQiLCJmbG9vciI6N30="}]"#,
    br#"[{"Key":"store","Flags":0,"ModifyIndex":12,"Value":null},{"Key":"slot/1","Flags":0,"ModifyIndex":1,"Session":"s","Value":"?"}]"#,
];

/// Samples for `services`: what the catalog and the agent answer.
pub const SERVICES: &[&[u8]] = &[
    br#"[{"Node":{"Node":"n","Datacenter":"dc1"},"Service":{"ID":"w","Service":"g","Address":"10.0.0.1","Port":80,"Meta":{"shardwise_id":"w",
        "shardwise_joined":"7","shardwise_check":"c","shardwise_ttl_ms":"3000","shardwise_record_0":
        "{\"schema\":1,\"incarnation\":\"0000000000000001\",\"weight\":2,","shardwise_record_1":"\"state\":\"active\"}"}},
        "Checks":[{"Name":"x","Status":"passing"}]}]"#,
    br#"[{"Node":{},"Service":{"ID":"w","Service":"g","Meta":null},"Checks":null}]"#,
    br#"{"w":{"ID":"w","Service":"g","Meta":{"shardwise_check":"c"}}}"#,
];

/// Samples for `addresses`.
pub const ADDRESSES: &[&[u8]] = &[
    b"http://127.0.0.1:8500",
    b"https://[::1]:8501/base/",
    b"consul:8500",
    b"unix:///run/consul.sock",
    b"http://me:pass@x",
    b"ftp://x?y",
    b"ph/ \0/ /",
];

/// Keys and names: what a key is read as is written as the same key, and any name is read back from its part of a key.
pub fn keys(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(group) = GroupName::new("a group/.") else { return };
    let prefix = claims::prefix(&group);
    let key = format!("{prefix}{text}");
    if let Some(resource) = claims::resource(&prefix, &key) {
        assert_eq!(claims::claim_key(&prefix, &resource), key);
    }
    if let Ok(name) = ClaimName::new(text) {
        let resource = Resource::Name(name);
        assert_eq!(claims::resource(&prefix, &claims::claim_key(&prefix, &resource)), Some(resource));
    }
    assert_eq!(names::key_text(&names::key_part(text)).as_deref(), Some(text));
    drop(names::key_text(text));
    assert!(names::segment(text).is_ascii() && names::literal(text).is_ascii() && names::any_case(text).is_ascii());
    if let (Ok(group), Ok(id)) = (GroupName::new(text), InstanceId::new(text)) {
        // The two ids differ only where the name is escaped.
        let (service, escaped) = (names::service_name(&group), names::other_service_id(&group, &id));
        let own = names::service_id(&id);
        assert_eq!(own.as_deref().unwrap_or(&service), service);
        let other = GroupName::new(&*service).ok().map(|service| names::service_name(&service));
        assert!(service == text || other.is_none_or(|other| other != service), "{service:?} could be somebody's own");
        assert!(InstanceId::new(&*escaped).map_or(true, |escaped| names::service_id(&escaped).is_none()), "{escaped:?}");
    }
}

/// Answers of the key-value store, and in them claims, stores of claims and notes: what is read is written so that it is read again.
pub fn records(input: &[u8]) {
    let (Ok(all), Ok(group)) = (serde_json::from_slice::<Vec<KvPair>>(input), GroupName::new("g")) else { return };
    let answer = |key: &str, flags: u64, index: u64, value: &str| {
        let answer = json!({"Key": key, "Flags": flags, "ModifyIndex": index, "Session": "s", "Value": value});
        serde_json::from_value::<KvPair>(answer).ok()
    };
    for stored in &all {
        if let Ok(store) = claims::store(stored) {
            let again = answer("store", 0, 1, &claims::store_value(&store));
            assert_eq!(again.and_then(|again| claims::store(&again).ok()), Some(store));
        }
        // Keys of the samples are without their prefix.
        if let Ok(Some((resource, claim))) = claims::claim("", stored) {
            assert_eq!(claims::claim_key("", &resource), stored.key);
            let Holder { instance_id, incarnation } = claim.holder.clone();
            let record_id = RecordId { group: group.clone(), instance_id, incarnation };
            let floor = ClaimStore { id: StoreId::new(1), floor: claim.epoch.get() };
            let again = answer(&stored.key, incarnation.get(), 0, &claims::claim_value(&record_id, &floor));
            assert_eq!(again.and_then(|again| claims::claim("", &again).ok()), Some(Some((resource, claim))));
        }
        if let Ok(note) = notes::decoded(stored) {
            assert_eq!((note.text.into_bytes(), note.version), (stored.value(), stored.modify_index));
        }
    }
}

/// Answers of the catalog and of the agent: a member that is read is written so that it is read again.
pub fn services(input: &[u8]) {
    let _: Result<HashMap<String, Service>, _> = serde_json::from_slice(input);
    let Ok(entries) = serde_json::from_slice::<Vec<ServiceEntry>>(input) else { return };
    for service in entries.into_iter().map(|entry| entry.service) {
        let (address, ttl) = (service.address(), service.ttl());
        assert_eq!(address.is_none(), service.address.is_empty());
        let Ok(member) = service.member() else {
            assert!(!service.is_away());
            continue;
        };
        let (joined, ttl) = (member.joined, ttl.unwrap_or(Duration::from_secs(3)));
        let written = LiveRegistration::new("g".into(), "w".into(), "c".into(), joined, ttl, Moment::ZERO);
        // What was longer than we write it may not go in again.
        let Ok(meta) = written.meta(&member, 1) else { continue };
        let again = Service { id: "w".into(), name: "g".into(), address: String::new(), port: 0, meta: meta.into_iter().collect() };
        assert_eq!(again.member().ok().as_ref(), Some(&member));
        assert_eq!(again.ttl(), Some(Duration::from_millis(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))));
    }
}

/// Addresses of the settings: one that is taken is taken again as it is shown, and what stands before an @ is never shown.
pub fn addresses(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    for tls in [false, true] {
        let config = |address: String| ConsulConfig { address, tls, ..ConsulConfig::default() };
        match config(text.to_owned()).endpoint() {
            Ok(endpoint) => assert_eq!(config(endpoint.to_string()).endpoint().ok(), Some(endpoint), "{text:?}"),
            Err(failure) => assert!(!failure.to_string().contains('\n'), "{failure}"),
        }
        if !text.contains("hush") {
            let config = config(format!("http://root:hush@{text}"));
            let said = config.endpoint().err().map(|failure| failure.to_string());
            assert!(said.as_ref().is_some_and(|said| !said.contains("hush")), "{said:?}");
            assert!(!format!("{config:?}").contains("hush"), "{config:?}");
        }
    }
}
