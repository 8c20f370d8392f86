use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::walk::owners;
use crate::{IncrementalRing, LoadMargin, SlotOwners, hash_bytes, slot_start};

fn fleet(name: &str, weights: &[u64]) -> Vec<(InstanceId, Weight)> {
    (0..).zip(weights).map(|(i, weight)| (InstanceId::new(format!("{name}-{i}")).unwrap(), Weight::new(*weight).unwrap())).collect()
}

fn params(slots: u32, virtual_nodes: u32, load_margin: LoadMargin) -> PlacementParams {
    PlacementParams { kind: PlacementKind::Quota, slots, virtual_nodes, load_margin }
}

/// The placement taken literally from the protocol's text, rule by rule.
fn as_written(members: &[(InstanceId, Weight)], params: &PlacementParams, hash: PointHash) -> Vec<u32> {
    let members = ring::in_order(members.iter().cloned());
    let members = &members[..];
    let (slots, sum) = (u64::from(params.slots), ring::weight_sum(members));
    let per_weight = ring::points_per_weight(params.virtual_nodes, sum);
    let limits = ring::capacities(members, params.slots, params.load_margin);
    let point = |member: usize, i: u32| hash(&[members[member].0.as_str().as_bytes(), &i.to_le_bytes()].concat());
    let of = |weight: u64| (0..members.len()).filter(move |at| u64::from(members[*at].1.get()) == weight);
    let weights: Vec<u64> = (1..=100).filter(|weight| of(*weight).next().is_some()).collect();
    // Quotas.
    let total: BTreeMap<u64, u64> = weights.iter().map(|weight| (*weight, slots * weight * of(*weight).count() as u64)).collect();
    let mut quota: BTreeMap<u64, u64> = total.iter().map(|(weight, total)| (*weight, total / sum)).collect();
    let mut order: Vec<u64> = weights.iter().copied().filter(|weight| !total[weight].is_multiple_of(sum)).collect();
    let draw = |weight: u64| u128::from(hash(members[of(weight).next().unwrap()].0.as_str().as_bytes()) >> 32);
    order.sort_by(|a, b| (draw(*a) * u128::from(total[b] % sum)).cmp(&(draw(*b) * u128::from(total[a] % sum))).then(a.cmp(b)));
    let missing = slots - quota.values().sum::<u64>();
    order.iter().take(usize::try_from(missing).unwrap()).for_each(|weight| *quota.get_mut(weight).unwrap() += 1);
    let most = |weight: u64| quota[&weight].max(total[&weight] * 1_010 / (1_000 * sum));
    let least = |weight: u64| quota[&weight].min((total[&weight] * 990).div_ceil(1_000 * sum));
    // The walk.
    let mut ring: Vec<(u64, usize)> = (0..members.len())
        .flat_map(|at| (0..per_weight * u32::from(members[at].1.get())).map(move |i| (at, i)))
        .map(|(at, i)| (point(at, i), at))
        .collect();
    ring.sort_unstable();
    let mut owners: Vec<usize> = Vec::new();
    let has = |owners: &[usize], member: usize| owners.iter().filter(|owner| **owner == member).count();
    let together =
        |owners: &[usize], weight: u64| owners.iter().filter(|owner| u64::from(members[**owner].1.get()) == weight).count() as u64;
    for slot in 0..params.slots {
        let first = ring.iter().position(|(hash, _)| *hash >= slot_start(slot, params.slots)).unwrap_or(0);
        let free = |member: &usize| {
            let weight = u64::from(members[*member].1.get());
            has(&owners, *member) < limits[*member] as usize && together(&owners, weight) < most(weight)
        };
        let owner = (0..ring.len()).map(|step| ring[(first + step) % ring.len()].1).find(free).unwrap();
        owners.push(owner);
    }
    // What lacks.
    for weight in weights {
        for back in 0..params.slots {
            for i in 0..per_weight * u32::try_from(weight).unwrap() {
                for member in of(weight) {
                    let slot = (slot_of(point(member, i), params.slots) + params.slots - back) % params.slots;
                    let giver = u64::from(members[owners[slot as usize]].1.get());
                    if together(&owners, weight) < least(weight)
                        && has(&owners, member) < limits[member] as usize
                        && giver != weight
                        && together(&owners, giver) > least(giver)
                    {
                        owners[slot as usize] = member;
                    }
                }
            }
            if together(&owners, weight) >= least(weight) {
                break;
            }
        }
    }
    owners.into_iter().map(|owner| u32::try_from(owner).unwrap()).collect()
}

fn margins() -> impl Strategy<Value = LoadMargin> {
    prop_oneof![Just(LoadMargin::None), (0u32..300).prop_map(LoadMargin::Thousandths)]
}

fn weights() -> impl Strategy<Value = Vec<u64>> {
    proptest::collection::vec(prop_oneof![1u64..4, Just(10), 1u64..=100], 1..10)
}

fn hashes() -> impl Strategy<Value = PointHash> {
    let crowded: PointHash = |bytes| hash_bytes(bytes) >> 58 << 58;
    let stacked: PointHash = |_| 7;
    prop_oneof![4 => Just(hash_bytes as PointHash), 1 => Just(crowded), 1 => Just(stacked)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn it_is_the_text(weights in weights(), slots in 1u32..150, nodes in 1u32..6, margin in margins(), hash in hashes()) {
        let (members, params) = (ring::in_order(fleet("w", &weights)), params(slots, nodes, margin));
        prop_assert_eq!(owners(&members, &params, hash), as_written(&members, &params, hash));
    }

    #[test]
    fn the_ring_that_is_kept_gives_the_same_whatever_came_before_and_in_any_order(
        fleets in proptest::collection::vec(weights(), 1..5), slots in 1u32..300, nodes in 1u32..12, margin in margins(), hash in hashes(),
    ) {
        let params = params(slots, nodes, margin);
        let mut ring = IncrementalRing::with_hash(params, hash);
        for weights in fleets {
            let members = fleet("w", &weights);
            let placed = ring.place(members.iter().rev().cloned());
            prop_assert_eq!(placed.indices(), owners(&ring::in_order(members), &params, hash));
        }
    }

    #[test]
    fn where_all_are_of_one_weight_it_is_the_ring(members in 0usize..12, weight in 1u64..=100, slots in 1u32..300, nodes in 1u32..8, margin in margins()) {
        let (members, params) = (fleet("w", &vec![weight; members]), params(slots, nodes, margin));
        let ring = SlotOwners::place(members.clone(), PlacementParams { kind: PlacementKind::Ring, ..params });
        let placed = SlotOwners::place(members, params);
        prop_assert_eq!(placed.indices(), ring.indices());
    }

    /// Each weight is within one slot of its share or within 1 % of it, and no member is above the limit of the ring.
    #[test]
    fn each_weight_has_its_share_and_no_member_is_above_its_capacity(weights in weights(), slots in 1u32..2_000, nodes in 1u32..40, margin in margins()) {
        let (members, params) = (fleet("w", &weights), params(slots, nodes, margin));
        let placed = SlotOwners::place(members, params);
        let (sum, capacities) = (ring::weight_sum(placed.members()), ring::capacities(placed.members(), slots, margin));
        let mut together = BTreeMap::<u64, (f64, f64)>::new();
        for ((id, weight), capacity) in placed.members().iter().zip(capacities) {
            let has = placed.slots_of(id).len();
            prop_assert!(has <= capacity, "{} has {} of {}", id, has, capacity);
            let (all, share) = together.entry(weight.get().into()).or_default();
            (*all, *share) = (*all + f64::from(has), *share + f64::from(slots) * f64::from(weight.get()) / sum as f64);
        }
        for (weight, (all, share)) in together {
            prop_assert!((all - share).abs() < (share * 0.01).max(1.0) + 1e-6, "weight {} has {} of {}", weight, all, share);
        }
    }
}

/// The largest error of a weight's mean share over 20 fleets, among weights entitled to at least `entitled` slots.
fn off(name: &str, weights: &[u64], members: usize, slots: u32, entitled: f64) -> f64 {
    let mut ratios = BTreeMap::<u64, Vec<f64>>::new();
    for number in 0..20 {
        let all: Vec<u64> = weights.iter().copied().cycle().take(members).collect();
        // With four million points the test would take a minute.
        let nodes = if members < 100 { 1_024 } else { 64 };
        let placed = SlotOwners::place(fleet(&format!("{name}-{number}"), &all), params(slots, nodes, LoadMargin::DEFAULT));
        let sum = ring::weight_sum(placed.members());
        for (id, weight) in placed.members() {
            let share = f64::from(slots) * f64::from(weight.get()) / sum as f64;
            if share >= entitled {
                ratios.entry(weight.get().into()).or_default().push(f64::from(placed.slots_of(id).len()) / share);
            }
        }
    }
    let off = |ratios: Vec<f64>| (ratios.iter().sum::<f64>() / ratios.len() as f64 - 1.0).abs();
    ratios.into_values().map(off).fold(0.0, f64::max)
}

/// The ring misses this: see `docs/internals/placement-study.md`. A single member of its weight that is entitled to 3.25 slots has 3 or
/// 4, so the mean of 20 fleets is off by chance; with 65,536 slots it is entitled to 13.
#[test]
fn the_mean_share_of_a_weight_is_within_two_percent_of_it() {
    let to = |last: u64| (1..=last).collect::<Vec<_>>();
    let (few, ten, far, all) = (to(4), to(10), vec![1, 10, 100], to(100));
    let cases = [
        ("1 to 4", &few[..], 20, 16_384, 0.0, 0.02),
        ("1 to 10", &ten[..], 50, 16_384, 0.0, 0.02),
        ("1 and 10", &[1, 10][..], 50, 16_384, 0.0, 0.02),
        ("1, 10 and 100", &far[..], 20, 16_384, 0.0, 0.02),
        ("each of 1 to 100", &all[..], 100, 16_384, 12.0, 0.02),
        ("each of 1 to 100", &all[..], 100, 16_384, 0.0, 0.04),
        ("each of 1 to 100", &all[..], 100, 65_536, 0.0, 0.02),
    ];
    for (name, weights, members, slots, entitled, most) in cases {
        let off = off("worker", weights, members, slots, entitled);
        assert!(off <= most, "weights {name}, {slots} slots: off by {:.2} %", off * 100.0);
    }
}

/// Where weights differ it moves hardly more than the ring does: the mean over `fleets` fleets, for one member less.
#[test]
fn one_more_or_less_moves_little_more_than_on_the_ring() {
    for (weights, members, fleets) in [(&[1u64, 10, 100][..], 21, 5), (&[1, 2, 3, 4], 51, 10)] {
        let all: Vec<u64> = weights.iter().copied().cycle().take(members).collect();
        let moved = |kind| {
            let ratio = |number: u32| {
                let members = fleet(&format!("worker-{number}"), &all);
                let params = PlacementParams { kind, ..PlacementParams::default() };
                let (last, share) =
                    (members.len() - 1, f64::from(u32::try_from(*all.last().unwrap()).unwrap()) / all.iter().sum::<u64>() as f64);
                let mut ring = IncrementalRing::new(params);
                let (with, without) = (ring.place(members.clone()), ring.place(members[..last].to_vec()));
                let moves = (0..params.slots).filter(|slot| with.owner_of_slot(*slot) != without.owner_of_slot(*slot)).count();
                moves as f64 / (f64::from(params.slots) * share)
            };
            (0..fleets).map(ratio).sum::<f64>() / f64::from(fleets)
        };
        let (quota, ring) = (moved(PlacementKind::Quota), moved(PlacementKind::Ring));
        assert!(quota <= 1.10 && quota <= ring + 0.05, "weights {weights:?}: moved {quota:.3} times the share, the ring {ring:.3} times");
    }
}
