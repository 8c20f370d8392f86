use super::*;
use crate::routing::{KeyHash, KeyRoute, WIDTH_VALID_FOR};
use crate::{Claim, Epoch, KeyPlacement, PlacementKind, PlacementParams, Weight};
use proptest::prelude::*;
use std::time::Duration;

const NOW: Moment = Moment::from_nanos(1_000_000_000_000);
const PARAMS: PlacementParams =
    PlacementParams { kind: PlacementKind::Ring, slots: 64, virtual_nodes: 16, load_margin: crate::LoadMargin::Thousandths(50) };

fn id(number: u64) -> InstanceId {
    InstanceId::new(format!("m{number}")).unwrap()
}

fn member(number: u64) -> Member {
    Member { incarnation: Incarnation::new(100 + number), ..Member::named(id(number)) }
}

fn view(members: Vec<Member>) -> Arc<View> {
    Arc::new(View::new(1, members))
}

fn fleet(members: u64) -> Arc<View> {
    view((0..members).map(member).collect())
}

/// Under eventual ownership, with successors for `max_width`.
fn table(view: &Arc<View>, max_width: usize, before: Option<&RouteTable>) -> RouteTable {
    let placement = ViewPlacement::of_view(view, PARAMS).unwrap();
    let replicas = Replicas::of_view(view, PARAMS, max_width);
    RouteTable::eventual(Arc::clone(view), Some(&placement), Some(&replicas), before)
}

fn names(table: &RouteTable, set: &[u32]) -> Vec<InstanceId> {
    set.iter().map(|index| table.member(*index).unwrap().instance_id.clone()).collect()
}

/// The members for a key, whose hint is that width and whose route is that one.
fn owners(table: &RouteTable, key: &str, width: u64, route: Option<(u64, Vec<InstanceId>)>) -> Result<Vec<InstanceId>, NoRoute> {
    let (hints, hash) = (WidthHints::default(), key.key_hash());
    hints.on_answer(NOW, hash, Some(width), Width::MAX);
    let route = route.map(|(width, skip)| KeyRoute::new(KeyHash::new(hash), width, skip).unwrap());
    let routes = Routes::new(route.into_iter().collect()).unwrap();
    table.owners(key, NOW, &hints, &routes).map(|set| names(table, set.as_slice()))
}

#[test]
fn before_the_first_view_nothing_is_known() {
    let table = RouteTable::eventual(Arc::default(), None, None, None);
    assert_eq!(owners(&table, "a", 1, None), Err(NoRoute::NoView));
    assert_eq!((table.active(), table.holder(None)), (Err(NoRoute::NoMembers), Err(NoRoute::Unserved)));
    assert!(!table.accepts("a", &id(0)));
    let placement = ViewPlacement::of_view(&View::default(), PARAMS).unwrap();
    let empty = RouteTable::eventual(Arc::default(), Some(&placement), None, None);
    assert_eq!(owners(&empty, "a", 1, None), Err(NoRoute::NoMembers));
}

#[test]
fn a_route_overrides_the_owners_width_and_skips_members() {
    let view = fleet(6);
    let table = table(&view, 4, None);
    let ranks: Vec<_> = Replicas::of_view(&view, PARAMS, 4).owners("k", 4).cloned().collect();
    assert_eq!(owners(&table, "k", 1, None).unwrap(), ranks[..1]);
    assert_eq!(owners(&table, "k", 3, None).unwrap(), ranks[..3]);
    assert_eq!(owners(&table, "k", 3, Some((1, vec![]))).unwrap(), ranks[..1]);
    assert_eq!(owners(&table, "k", 1, Some((4, vec![]))).unwrap(), ranks[..]);
    assert_eq!(owners(&table, "k", 1, Some((1, vec![ranks[0].clone()]))).unwrap(), ranks[1..2], "moved by hand");
    let skipped = vec![ranks[1].clone(), id(99)];
    assert_eq!(owners(&table, "k", 1, Some((2, skipped))).unwrap(), [ranks[0].clone(), ranks[2].clone()]);
    assert_eq!(owners(&table, "k", 1, Some((2, ranks.clone()))).unwrap(), ranks[..2], "a route that skips all skips none");
}

#[test]
fn no_member_serves_the_share_of_one_that_rests() {
    let ranks: Vec<_> = Replicas::of_view(&fleet(4), PARAMS, 4).owners("k", 4).cloned().collect();
    for state in [MemberState::Away, MemberState::Pausing] {
        let rests = |member: Member| if member.instance_id == ranks[0] { Member { state, ..member } } else { member };
        let table = table(&view((0..4).map(member).map(rests).collect()), 4, None);
        assert_eq!(owners(&table, "k", 1, None), Err(NoRoute::Unserved));
        assert_eq!(owners(&table, "k", 2, None).unwrap(), ranks[1..2]);
        assert!(!table.accepts("k", &ranks[0]) && table.accepts("k", &ranks[1]));
        assert_eq!(table.active().unwrap().len(), 3);
        assert_eq!(table.instance(&ranks[0]).is_err(), state == MemberState::Away, "a pausing one still answers");
    }
}

#[test]
fn under_a_key_placement_only_the_owner_serves() {
    let params = PlacementParams { kind: PlacementKind::Key(KeyPlacement::Uhashring), ..PARAMS };
    let view = fleet(5);
    let placement = ViewPlacement::of_view(&view, params).unwrap();
    let table = RouteTable::eventual(Arc::clone(&view), Some(&placement), None, None);
    let owner = placement.owner("k").unwrap();
    assert_eq!(owners(&table, "k", 4, None).unwrap(), std::slice::from_ref(owner));
    assert!(table.accepts("k", owner));
}

fn holders(claims: impl IntoIterator<Item = (u32, u64, u64)>) -> Holders {
    let claim = |(slot, number, incarnation)| {
        let holder = Holder { instance_id: id(number), incarnation: Incarnation::new(incarnation) };
        (Resource::Slot(slot), Claim { holder, epoch: Epoch::new(1).unwrap() })
    };
    let mut holders = Holders::default();
    holders.on_all(Moment::ZERO, claims.into_iter().map(claim));
    holders
}

#[test]
fn under_exclusive_ownership_the_holder_alone_serves_whatever_the_width() {
    let view = fleet(3);
    let slot = slot_of("k".key_hash(), 64);
    let table = |holders: &Holders| RouteTable::exclusive(Arc::clone(&view), 64, holders, None);
    assert_eq!(owners(&table(&Holders::default()), "k", 1, None), Err(NoRoute::NoView), "the claims are not known yet");
    assert_eq!(owners(&table(&holders([])), "k", 1, None), Err(NoRoute::Unserved), "the slot is free");
    assert_eq!(owners(&table(&holders([(slot, 2, 7)])), "k", 1, None), Err(NoRoute::Unserved), "a former life of the member holds it");
    let held = table(&holders([(slot, 2, 102), (64, 1, 101), (u32::MAX, 1, 101)]));
    for width in 1..=4 {
        assert_eq!(owners(&held, "k", width, Some((4, vec![id(2)]))).unwrap(), [id(2)]);
    }
    assert!(held.accepts("k", &id(2)) && !held.accepts("k", &id(1)));
    let holder = |incarnation| Holder { instance_id: id(1), incarnation: Incarnation::new(incarnation) };
    assert_eq!(held.holder(Some(&holder(101))), Ok(MemberSet::one(1)));
    assert_eq!(held.holder(Some(&holder(7))), Err(NoRoute::Unserved));
}

#[test]
fn what_is_known_of_a_member_stays_while_it_does() {
    let first = table(&fleet(3), 1, None);
    for index in 0..3 {
        first.peer_load(index).unwrap().on_answer(NOW, Some(10 + u64::from(index)));
    }
    let again = Member { incarnation: Incarnation::new(7), ..member(1) };
    let second = table(&view(vec![member(4), member(2), again, member(0)]), 1, Some(&first));
    let loads: Vec<_> = (0..4).map(|index| second.peer_load(index).unwrap().load_at(NOW)).collect();
    assert_eq!(names(&second, &[0, 1, 2, 3]), [0, 1, 2, 4].map(id));
    assert_eq!(loads, [10, 0, 12, 0], "a new life of a member begins without");
    let (left, kept) = (Arc::clone(first.peer_load(1).unwrap()), Arc::clone(first.peer_load(2).unwrap()));
    drop(first);
    assert_eq!((Arc::strong_count(&left), Arc::strong_count(&kept)), (1, 2), "the table of the former view kept it alive");
    assert!(second.member(4).is_none() && second.peer_load(u32::MAX).is_none());
}

#[test]
fn a_session_ends_only_by_a_view_that_is_proven_after_its_request() {
    let away = Member { state: MemberState::Away, ..member(2) };
    let table = table(&view(vec![member(0), member(1), away]), 1, None);
    let of = |incarnation| SessionId::new(Incarnation::new(incarnation), [3; 16]);
    let later = NOW.plus(Duration::from_nanos(1));
    assert_eq!(table.session(&of(101), NOW, None), Ok(MemberSet::one(1)));
    for gone in [7, 102] {
        assert_eq!(table.session(&of(gone), NOW, None), Err(NoRoute::Unproven));
        assert_eq!(table.session(&of(gone), NOW, Some(NOW)), Err(NoRoute::Unproven));
        assert_eq!(table.session(&of(gone), NOW, Some(later)), Err(NoRoute::SessionEnded));
    }
    assert!(NoRoute::Unproven.may_change() && !NoRoute::SessionEnded.may_change());
}

#[test]
fn any_member_may_be_asked_if_it_is_active_and_has_the_label() {
    let labelled = |number, value: &str| Member { metadata: [("pool".to_owned(), value.to_owned())].into(), ..member(number) };
    let draining = Member { state: MemberState::Draining, ..labelled(3, "large") };
    let table = table(&view(vec![labelled(0, "large"), labelled(1, "small"), member(2), draining, labelled(4, "large")]), 1, None);
    assert_eq!(table.active(), Ok(&[0, 1, 2, 4][..]));
    assert_eq!(table.labelled("pool", "large").to_vec(), [0, 4]);
    assert!(table.labelled("pool", "huge").is_empty());
    assert_eq!((table.instance(&id(3)), table.instance(&id(9))), (Ok(MemberSet::one(3)), Err(NoRoute::UnknownMember)));
}

proptest! {
    /// For every key and width, these are the first owners, and exactly those within the largest width accept.
    #[test]
    fn the_set_of_a_key_is_its_first_owners(weights in prop::collection::vec(1u8..4, 0..8), max_width in 1usize..7, key in "[a-z]{1,4}") {
        let weighted = |(number, weight): (u64, &u8)| Member { weight: Weight::new(u64::from(*weight)).unwrap(), ..member(number) };
        let view = view((0..).zip(&weights).map(weighted).collect());
        let (table, replicas) = (table(&view, max_width, None), Replicas::of_view(&view, PARAMS, max_width));
        for width in 1..=4 {
            let expected: Vec<_> = replicas.owners(&key, usize::try_from(width).unwrap().min(max_width)).cloned().collect();
            let found = owners(&table, &key, width, None);
            prop_assert_eq!(found, if weights.is_empty() { Err(NoRoute::NoMembers) } else { Ok(expected) });
        }
        for member in view.members() {
            let is_owner = replicas.owners(&key, max_width.min(4)).any(|owner| *owner == member.instance_id);
            prop_assert_eq!(table.accepts(&key, &member.instance_id), is_owner);
        }
    }

    /// Without successors, and after the hint has expired, only the owner serves.
    #[test]
    fn otherwise_the_owner_serves_alone(members in 1u64..8, key in "[a-z]{1,4}") {
        let view = fleet(members);
        let placement = ViewPlacement::of_view(&view, PARAMS).unwrap();
        let narrow = RouteTable::eventual(Arc::clone(&view), Some(&placement), None, None);
        let owner = placement.owner(&key).unwrap().clone();
        prop_assert_eq!(owners(&narrow, &key, 4, None), Ok(vec![owner.clone()]));
        let (wide, hints) = (table(&view, 4, None), WidthHints::default());
        hints.on_answer(NOW, key.key_hash(), Some(4), Width::MAX);
        let set = wide.owners(&key, NOW.plus(WIDTH_VALID_FOR), &hints, &Routes::default());
        prop_assert_eq!(set.map(|set| names(&wide, set.as_slice())), Ok(vec![owner]));
    }
}
