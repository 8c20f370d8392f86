//! What is allocated, counted by the allocator.

#![expect(clippy::unwrap_used, reason = "a test; a name that is refused should stop it")]

use allocation_counter::measure;
use shardwise_core::{Circle, InstanceId, PlacementParams, Weight};

const MIB: u64 = 1 << 20;

fn fleet(ids: std::ops::Range<u32>) -> Vec<(InstanceId, Weight)> {
    ids.map(|i| (InstanceId::new(format!("worker-{i}")).unwrap(), Weight::ONE)).collect()
}

/// 1,000 members of 1,024 points: what is kept, what a reader holds, and what a change takes on top while it is worked out.
#[test]
fn a_view_of_a_thousand_members_stays_below_32_mib() {
    let members = fleet(0..1_000);
    let mut circle = Circle::new(PlacementParams::default());
    let first = measure(|| drop(circle.place(members.iter().cloned())));
    assert!(first.bytes_max < 16 * MIB, "placing the first view took {} bytes", first.bytes_max);

    let mut changed = members;
    changed.remove(500);
    changed.extend(fleet(5_000..5_001));
    let mut placed = None;
    let change = measure(|| placed = Some(circle.place(changed.iter().cloned())));
    assert!(change.bytes_max < MIB, "a change took {} bytes", change.bytes_max);
    let copy = measure(|| drop(placed.clone()));
    assert!(copy.bytes_max < 2 * MIB / 10, "a placement is {} bytes", copy.bytes_max);

    // A thousand newcomers later the buckets have grown to what their fullest moment needed.
    let kept = measure(|| {
        for newcomer in 0..1_000 {
            changed.rotate_left(1);
            changed.pop();
            changed.extend(fleet(10_000 + newcomer..10_001 + newcomer));
            drop(circle.place(changed.iter().cloned()));
        }
    });
    let kept = i64::try_from(first.bytes_max).unwrap() + kept.bytes_current;
    assert!(kept < i64::try_from(16 * MIB).unwrap(), "{kept} bytes are kept");
}
