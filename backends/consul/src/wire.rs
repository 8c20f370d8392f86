//! The format of services in Consul.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use shardwise_core::{Address, InstanceId, Member, MemberState};
use shardwise_discovery::{Record, one_line};

use crate::error::{Failure, Result};

/// The most bytes that one value of a service's metadata may have.
const META_VALUE_MAX: usize = 512;
/// How many values the record may be cut into: Consul takes 64, and a few are for us.
const RECORD_PARTS_MAX: usize = 56;
/// The most bytes one record may have as JSON. Cutting at characters can leave three bytes of each value empty.
pub const RECORD_BYTES_MAX: usize = RECORD_PARTS_MAX * (META_VALUE_MAX - 3);
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ServiceEntry {
    pub(crate) node: CatalogNode,
    pub(crate) service: Service,
    #[serde(deserialize_with = "null_is_empty")]
    pub(crate) checks: Vec<Check>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct CatalogNode {
    #[serde(rename = "Node", default)]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) datacenter: String,
}

/// A service, in the servers' answer or the agent's.
#[derive(Debug, Deserialize)]
pub(crate) struct Service {
    #[serde(rename = "ID")]
    pub(crate) id: String,
    #[serde(rename = "Service")]
    pub(crate) name: String,
    #[serde(rename = "Address", default)]
    pub(crate) address: String,
    #[serde(rename = "Port", default)]
    pub(crate) port: u16,
    #[serde(rename = "Meta", default, deserialize_with = "null_is_empty")]
    pub(crate) meta: HashMap<String, String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Check {
    #[serde(rename = "Name", default)]
    pub(crate) name: String,
    #[serde(rename = "Status", default)]
    pub(crate) status: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct AgentCheck {
    #[serde(default)]
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) output: String,
}

/// Go writes an empty list or map as null.
fn null_is_empty<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> std::result::Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

pub(crate) fn encode(member: &Member) -> Result<String> {
    Record::encode_within(RECORD_BYTES_MAX, member).map_err(Failure::Unwritable)
}

/// Cuts a text into pieces that Consul takes, between characters.
pub(crate) fn cut(mut text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    while !text.is_empty() {
        let (part, rest) = text.split_at(text.floor_char_boundary(META_VALUE_MAX));
        parts.push(part);
        text = rest;
    }
    parts
}

impl Service {
    /// The check of our registration; `None` if the instance was registered by something else.
    pub(crate) fn check(&self) -> Option<&str> {
        self.meta.get("shardwise_check").map(String::as_str)
    }

    pub(crate) fn ttl(&self) -> Option<Duration> {
        self.meta.get("shardwise_ttl_ms")?.parse().ok().map(Duration::from_millis)
    }

    pub(crate) fn address(&self) -> Option<Address> {
        (!self.address.is_empty()).then(|| Address { host: self.address.clone(), port: self.port })
    }

    pub(crate) fn is_away(&self) -> bool {
        self.member().is_ok_and(|member| member.state == MemberState::Away)
    }

    pub(crate) fn member(&self) -> Result<Member> {
        let unreadable = |why: String| Failure::BadRecord { instance_id: self.id.clone(), why };
        let missing = |key: &str| unreadable(format!("its metadata has no usable {key:?}"));
        let id = self.meta.get("shardwise_id").and_then(|id| InstanceId::new(id).ok()).ok_or_else(|| missing("shardwise_id"))?;
        let joined = self.meta.get("shardwise_joined").and_then(|n| n.parse().ok()).ok_or_else(|| missing("shardwise_joined"))?;
        let parts = (0..RECORD_PARTS_MAX).map_while(|at| self.meta.get(&format!("shardwise_record_{at}")).map(String::as_str));
        let record: String = parts.collect();
        Record::decode(id, joined, &record).map_err(|error| unreadable(one_line(&error.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use shardwise_core::{Incarnation, Moment};
    use shardwise_discovery::METADATA_BYTES_MAX;

    use super::*;
    use crate::registrations::LiveRegistration;

    fn meta(member: &Member) -> Result<BTreeMap<String, String>> {
        LiveRegistration::new("g".into(), "w".into(), "c".into(), 7, Duration::from_secs(3), Moment::ZERO).meta(member, 1)
    }

    fn large() -> Member {
        let metadata = (0..40).map(|n| (format!("k{n}"), "\u{1}é🦀".repeat(10))).collect();
        Member { incarnation: Incarnation::new(9), metadata, ..Member::named(InstanceId::new("w/1").unwrap()) }
    }

    #[test]
    fn a_large_record_is_cut_within_consuls_limits_and_comes_back_whole() {
        let member = large();
        let meta = meta(&member).unwrap();
        assert!(meta.len() <= 64 && meta.len() > 8, "{} values", meta.len());
        assert!(meta.iter().all(|(key, value)| key.len() <= 128 && value.len() <= META_VALUE_MAX));
        let service = Service { id: "w".into(), name: "g".into(), address: String::new(), port: 0, meta: meta.into_iter().collect() };
        assert_eq!(service.member().unwrap(), Member { joined: 7, ..member });
        assert_eq!((service.check(), service.ttl()), (Some("c"), Some(Duration::from_secs(3))));
    }

    #[test]
    fn what_consul_cannot_hold_is_too_large() {
        let mut member = large();
        member.zone = Some("z".repeat(RECORD_BYTES_MAX));
        let refused = |member: &Member| meta(member).unwrap_err();
        assert!(matches!(refused(&member), Failure::Unwritable(_)) && refused(&member).to_string().starts_with("the record of"));
        member.metadata = BTreeMap::from([("k".into(), "v".repeat(METADATA_BYTES_MAX))]);
        assert!(matches!(refused(&member), Failure::Unwritable(_)) && refused(&member).to_string().starts_with("the metadata of"));
    }

    #[test]
    fn a_missing_part_is_named() {
        let member = large();
        let mut meta: HashMap<_, _> = meta(&member).unwrap().into_iter().collect();
        meta.remove("shardwise_record_1");
        let service = Service { id: "w".into(), name: "g".into(), address: String::new(), port: 0, meta };
        let said = service.member().unwrap_err().to_string();
        assert!(said.contains("\"w\"") && !said.contains('\n'), "{said}");
    }
}
