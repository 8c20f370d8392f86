//! A small fleet and the constants it is placed by, out of any bytes.

use shardwise_core::{Fingerprint, InstanceId, LoadMargin, Loss, Member, MemberState, Missing, PlacementParams, Weight};

use crate::bytes::Bytes;

/// A small ring and its members.
pub(crate) struct Fleet {
    pub(crate) params: PlacementParams,
    pub(crate) members: Vec<Member>,
}

impl Fleet {
    pub(crate) fn read(input: &[u8]) -> Self {
        let mut bytes = Bytes(input);
        let (slots, virtual_nodes) = (bytes.short() % 500 + 1, u32::from(bytes.byte() % 40) + 1);
        // 0 stands for no limit.
        let load_margin = bytes.short().checked_sub(1).map_or(LoadMargin::None, |margin| LoadMargin::Thousandths(margin % 10_001));
        let mut members = Vec::new();
        while !bytes.is_empty() && members.len() < 16 {
            members.extend(member(&mut bytes));
        }
        Self { params: PlacementParams { slots, virtual_nodes, load_margin, ..PlacementParams::default() }, members }
    }
}

/// A weight, a byte of flags and a name, followed by the missing members, if there are any. The flags, from the lowest bit on: two for the
/// zone, one for draining, three for what it can serve, two for the mark of a loss.
fn member(bytes: &mut Bytes<'_>) -> Option<Member> {
    let (weight, said) = (weight(bytes.byte()), bytes.byte());
    let id = name(bytes.byte());
    let loss = match said >> 6 {
        0 => None,
        1 => Some(Loss::Confirmed),
        missing => Some(Loss::Missing((0..missing).filter_map(|_| self::missing(bytes)).collect())),
    };
    Some(Member {
        weight: weight?,
        zone: (said & 3 > 0).then(|| (said & 3).to_string()),
        state: if said >> 2 & 1 == 1 { MemberState::Draining } else { MemberState::Active },
        fingerprints: served(said >> 3 & 7).iter().map(|text| Fingerprint::of(text)).collect(),
        loss,
        ..Member::named(id?)
    })
}

/// A weight and a name.
fn missing(bytes: &mut Bytes<'_>) -> Option<Missing> {
    let (weight, instance_id) = (weight(bytes.byte()), name(bytes.byte()));
    weight.zip(instance_id).map(|(weight, instance_id)| Missing { instance_id, weight })
}

fn weight(byte: u8) -> Option<Weight> {
    Weight::new(u64::from(byte % 100) + 1)
}

/// The group's fingerprint, none, a foreign one, and a change that only some members know, in either order.
const fn served(which: u8) -> &'static [&'static str] {
    match which {
        1 => &[],
        2 => &["foreign"],
        3 => &["ours", "next"],
        4 => &["next", "ours"],
        5 => &["next"],
        _ => &["ours"],
    }
}

/// Few letters and short: equal ids, and ids that are the beginnings of others.
pub(crate) fn name(byte: u8) -> Option<InstanceId> {
    let letter = ['a', 'b', '\u{e9}', '\u{1f980}'][usize::from(byte >> 4 & 3)];
    InstanceId::new(String::from(letter).repeat(usize::from(byte % 8) + 1)).ok()
}
