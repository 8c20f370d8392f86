//! Members' records as backends keep them: JSON from any client with write access.

use shardwise::discovery::Record;
use shardwise_core::{InstanceId, PlacementParams, SlotOwners, View, WEIGHT_MAX};

pub(crate) const RECORDS: &[&[u8]] = &[
    br#"{"schema":1,"incarnation":"0000000000000001","weight":1,"state":"active"}"#,
    br#"{"schema":1,"incarnation":"0123456789abcdef","address":{"host":"10.0.0.1","port":8080},"weight":100,"zone":"north","version":"1.0",
         "state":"draining","metadata":{"k":"v"},"fingerprints":["0123456789abcdef"],"loss":"confirmed","later":[1,{"x":null}]}"#,
    br#"{"schema":1,"incarnation":"0000000000000001","state":"active","loss":{"missing":[{"instance_id":"b","weight":2}]}}"#,
    br#"{"schema":1,"incarnation":"0000000000000001","weight":0,"state":"active"}"#,
    br#"{"schema":1,"incarnation":"0000000000000001","weight":101,"state":"active"}"#,
    br#"{"schema":1,"incarnation":"+000000000000001","weight":1,"state":"active"}"#,
];

/// What is read is valid, is written back as it was, and can be placed beside another member.
pub(crate) fn records(input: &[u8]) {
    let Ok(json) = std::str::from_utf8(input) else { return };
    let (Ok(id), Ok(other)) = (InstanceId::new("a"), InstanceId::new("b")) else { return };
    let Ok(member) = Record::decode(id.clone(), 7, json) else { return };
    assert!((1..=WEIGHT_MAX).contains(&member.weight.get()), "{member:?}");
    let written = Record::encode(&member).ok().and_then(|json| Record::decode(id, 7, &json).ok());
    assert_eq!(written.as_ref(), Some(&member));
    let beside = shardwise_core::Member { instance_id: other, ..member.clone() };
    let view = View::new(1, vec![member, beside]);
    let params = PlacementParams { slots: 7, virtual_nodes: 3, ..PlacementParams::default() };
    let placed = SlotOwners::of_view(&view, params);
    assert!((0..7).all(|slot| placed.owner_of_slot(slot).is_some()), "{view:?}");
}
