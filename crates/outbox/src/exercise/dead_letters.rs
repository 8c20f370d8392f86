//! Store suite: dead letters, and cleaning.

use std::future::Future;
use std::time::Duration;

use super::StoreHarness;
use super::fence::take;
use super::store::{events, fetch, ids, nth, one_run, outcome, owner};
use crate::store::{DeadState, HeadUpdate, ReplayResult, ResendResult, Signature};
use crate::{ErrorKind, Store};

pub(super) async fn all<H: StoreHarness, F: Future<Output = H>>(fresh: &impl Fn() -> F) {
    what_is_set_aside_is_sent_again_as_the_newest(&fresh().await).await;
    what_is_blocked_is_tried_again_in_its_place(&fresh().await).await;
    what_is_discarded_is_gone_and_written_down(&fresh().await).await;
    a_failure_that_is_recorded_again_is_not_the_next_events(&fresh().await).await;
    an_aggregate_is_sent_again_from_what_was_set_aside(&fresh().await).await;
    what_a_publisher_discards_is_written_down_once(&fresh().await).await;
    what_was_set_aside_too_long_ago_goes(&fresh().await).await;
    the_sequence_of_a_forgotten_aggregate_goes_on(&fresh().await).await;
}

fn ann() -> Signature {
    Signature::new("ann", "the broker is fixed").unwrap()
}

/// `a` has three events: the first is delivered, the second is parked, the third is delivered. Returns their sequences.
async fn with_one_set_aside(harness: &impl StoreHarness) -> (std::sync::Arc<dyn Store>, crate::store::PublisherRegistration, [u64; 3]) {
    let (store, me, run) = one_run(harness, events("a", 3)).await;
    let numbers = [1, 2, 3].map(|n| nth(&run, n));
    let park = outcome(&run, Some(numbers[0]), HeadUpdate::Park { sequence: numbers[1], error: "422\nno".into() });
    assert_eq!(store.record(&me, &[park], false).await.unwrap(), []);
    let rest = fetch(&*store, &me).await.remove(0);
    assert_eq!(store.record(&me, &[outcome(&rest, Some(numbers[2]), HeadUpdate::Next)], false).await.unwrap(), []);
    (store, me, numbers)
}

async fn what_is_set_aside_is_sent_again_as_the_newest(harness: &impl StoreHarness) {
    let (store, me, [_, parked, last]) = with_one_set_aside(harness).await;
    let dead = harness.open_dead_letters().await;
    assert_eq!(dead.dead_letters(Some("order/b"), 10).await.unwrap(), []);
    let letter = dead.dead_letters(None, 10).await.unwrap().remove(0);
    assert_eq!((letter.id.as_str(), letter.key.as_str(), letter.sequence, letter.state), ("a-2", "order/a", parked, DeadState::Parked));
    assert_eq!((letter.error.as_str(), letter.event_type.as_str(), letter.payload_bytes), ("422 no", "OrderChanged", 7));
    assert_eq!(dead.replay("a-1", &ann()).await.unwrap(), None, "it is delivered, and no dead letter");
    assert_eq!(dead.replay("nobody", &ann()).await.unwrap(), None);
    let Some(ReplayResult::Appended { sequence: newest }) = dead.replay("a-2", &ann()).await.unwrap() else { panic!("it is appended") };
    assert!(newest > last, "above all former ones");
    assert_eq!(dead.replay("a-2", &ann()).await.unwrap(), None, "twice does nothing the second time");
    assert_eq!(dead.dead_letters(None, 10).await.unwrap(), []);
    let run = fetch(&*store, &me).await.remove(0);
    let event = &run.events[0];
    assert_eq!((event.id.as_str(), event.sequence, event.replayed), ("a-2", newest, Some(parked)));
    let park = outcome(&run, None, HeadUpdate::Park { sequence: newest, error: "again".into() });
    store.record(&me, &[park], false).await.unwrap();
    assert_eq!(dead.dead_letters(Some("order/a"), 10).await.unwrap()[0].replayed, Some(parked));
    let Some(ReplayResult::Appended { sequence: again }) = dead.replay("a-2", &ann()).await.unwrap() else { panic!("it is appended") };
    assert!(again > newest, "and again");
    let event = fetch(&*store, &me).await.remove(0).events.remove(0);
    assert_eq!((event.sequence, event.replayed), (again, Some(parked)), "what it had first stays");
    let audit = dead.audit(10).await.unwrap();
    let lines: Vec<_> = audit.iter().map(|e| (&*e.who, &*e.action, &*e.event, &*e.key, e.sequence, e.events, &*e.why)).collect();
    let line = |sequence| ("ann", "replay", "a-2", "order/a", sequence, 1, "the broker is fixed");
    assert_eq!(lines, [line(newest), line(parked)]);
}

async fn what_is_blocked_is_tried_again_in_its_place(harness: &impl StoreHarness) {
    harness.insert([events("a", 3), events("b", 1)].concat()).await;
    let (store, me) = owner(harness).await;
    let run = fetch(&*store, &me).await.into_iter().find(|run| run.events.len() == 3).unwrap();
    let [second, third] = [2, 3].map(|n| nth(&run, n));
    let block = outcome(&run, Some(nth(&run, 1)), HeadUpdate::Block { sequence: second, attempts: 10, error: "413".into() });
    store.record(&me, &[block], false).await.unwrap();
    let dead = harness.open_dead_letters().await;
    let letters = dead.dead_letters(None, 10).await.unwrap();
    assert_eq!((letters.len(), letters[0].id.as_str(), letters[0].state), (1, "a-2", DeadState::Blocked));
    assert_eq!(dead.replay("a-3", &ann()).await.unwrap(), None, "it only waits behind the blocked one");
    assert_eq!(dead.replay("b-1", &ann()).await.unwrap(), None, "it may be on its way");
    assert_eq!(dead.replay_aggregate("order/a", None, 10, &ann()).await.unwrap(), None, "nothing is set aside");
    assert_eq!(dead.replay("a-2", &ann()).await.unwrap(), Some(ReplayResult::Unblocked));
    assert_eq!(dead.replay("a-2", &ann()).await.unwrap(), None);
    let run = fetch(&*store, &me).await.into_iter().find(|run| run.events.len() == 2).unwrap();
    assert_eq!(run.events.iter().map(|event| (event.sequence, event.replayed)).collect::<Vec<_>>(), [(second, None), (third, None)]);
    assert_eq!(dead.audit(10).await.unwrap()[0].action, "unblock");
}

async fn what_is_discarded_is_gone_and_written_down(harness: &impl StoreHarness) {
    let (store, me, _) = with_one_set_aside(harness).await;
    harness.insert(events("b", 2)).await;
    let run = fetch(&*store, &me).await.remove(0);
    let block = HeadUpdate::Block { sequence: nth(&run, 1), attempts: 1, error: "no".into() };
    store.record(&me, &[outcome(&run, None, block)], false).await.unwrap();
    let dead = harness.open_dead_letters().await;
    assert_eq!(dead.dead_letters(None, 1).await.unwrap().len(), 1);
    assert_eq!(dead.dead_letters(None, 10).await.unwrap().len(), 2);
    for (id, discarded) in [("a-1", false), ("a-2", true), ("a-2", false), ("b-2", false), ("b-1", true), ("b-1", false), ("x", false)] {
        assert_eq!(dead.discard(id, &ann()).await.unwrap(), discarded, "{id}");
    }
    assert_eq!(dead.dead_letters(None, 10).await.unwrap(), []);
    assert_eq!(ids(&fetch(&*store, &me).await), ["b-2"], "the aggregate goes on behind it");
    let audit = dead.audit(10).await.unwrap();
    assert_eq!(audit.iter().map(|e| (&*e.action, &*e.event)).collect::<Vec<_>>(), [("discard", "b-1"), ("discard", "a-2")]);
    assert_eq!(dead.audit(1).await.unwrap().len(), 1);
}

/// The answer to a recording is lost, an operator acts, and the recording is repeated.
async fn a_failure_that_is_recorded_again_is_not_the_next_events(harness: &impl StoreHarness) {
    harness.insert([events("a", 3), events("b", 3)].concat()).await;
    let (store, me) = owner(harness).await;
    let runs = fetch(&*store, &me).await;
    let block = |run: &crate::store::EventRun| {
        outcome(run, Some(nth(run, 1)), HeadUpdate::Block { sequence: nth(run, 2), attempts: 10, error: "413".into() })
    };
    let blocks: Vec<_> = runs.iter().map(block).collect();
    assert_eq!(store.record(&me, &blocks, false).await.unwrap(), []);
    assert!(harness.open_dead_letters().await.discard("a-2", &ann()).await.unwrap());
    let a = runs.iter().find(|run| run.events[0].aggregate_id == "a").unwrap();
    let (sequence, retry_in) = (nth(a, 2), Duration::from_secs(200));
    let retry = HeadUpdate::Retry { sequence, attempts: 1, failures: 1, retry_in, error: "503".into() };
    for again in [blocks, vec![outcome(a, Some(nth(a, 1)), retry)]] {
        assert_eq!(store.record(&me, &again, false).await.unwrap(), [], "nobody is fenced");
        assert_eq!(ids(&fetch(&*store, &me).await), ["a-3"], "the event behind it has done nothing");
        assert_eq!(store.status().await.unwrap().blocked_aggregates, 1);
    }
}

async fn an_aggregate_is_sent_again_from_what_was_set_aside(harness: &impl StoreHarness) {
    let (store, me, [_, parked, third]) = with_one_set_aside(harness).await;
    let more = events("a", 5).split_off(3);
    harness.insert([more, events("b", 1)].concat()).await;
    // The publisher has both events in memory when the operator acts.
    let in_hand = fetch(&*store, &me).await;
    let run = in_hand.iter().find(|run| run.events.len() == 2).unwrap();
    let dead = harness.open_dead_letters().await;
    let refused = dead.replay_aggregate("order/a", None, 3, &ann()).await.unwrap_err();
    assert!(refused.kind() == ErrorKind::Event && refused.to_string().contains("has 4 events from there on, more than 3"), "{refused}");
    for (key, from) in [("order/x", None), ("order/a", Some("a-3")), ("order/b", None)] {
        assert_eq!(dead.replay_aggregate(key, from, 10, &ann()).await.unwrap(), None, "{key} {from:?}");
    }
    let resent = dead.replay_aggregate("order/a", Some("a-2"), 10, &ann()).await.unwrap();
    let Some(ResendResult { events: 4, gone: None | Some(0), from }) = resent else { panic!("{resent:?}") };
    assert!(from > nth(run, 2), "above all former ones");
    assert_eq!(dead.replay_aggregate("order/a", None, 10, &ann()).await.unwrap(), None, "twice does nothing the second time");
    // The recording on its way is fenced: it may neither mark later events nor change the new head.
    let late = outcome(run, Some(nth(run, 2)), HeadUpdate::Next);
    assert_eq!(store.record(&me, &[late], false).await.unwrap(), [run.hold]);
    take(&*store, &me, 0..me.slots).await;
    let again = fetch(&*store, &me).await;
    let run = again.iter().find(|run| run.events.len() == 4).unwrap();
    let found: Vec<_> = run.events.iter().map(|event| (event.id.as_str(), event.replayed)).collect();
    assert_eq!(found, [("a-2", Some(parked)), ("a-3", Some(third)), ("a-4", None), ("a-5", None)]);
    assert!(nth(run, 1) == from && run.events.is_sorted_by(|one, next| one.sequence < next.sequence), "{:?}", run.events);
    assert_eq!(store.record(&me, &[outcome(run, Some(nth(run, 4)), HeadUpdate::Next)], false).await.unwrap(), []);
    assert!(!ids(&fetch(&*store, &me).await).iter().any(|id| id.starts_with('a')));
    let line = dead.audit(1).await.unwrap().remove(0);
    assert_eq!((&*line.action, &*line.event, line.sequence, line.events), ("replay-aggregate", "a-2", parked, 4));
}

async fn what_a_publisher_discards_is_written_down_once(harness: &impl StoreHarness) {
    let (store, me, run) = one_run(harness, events("a", 3)).await;
    let discard = [outcome(&run, Some(nth(&run, 1)), HeadUpdate::Discard { sequence: nth(&run, 2), error: "422".into() })];
    for _ in 0..2 {
        assert_eq!(store.record(&me, &discard, false).await.unwrap(), []);
    }
    assert_eq!(ids(&fetch(&*store, &me).await), ["a-3"]);
    let dead = harness.open_dead_letters().await;
    assert_eq!(dead.dead_letters(None, 10).await.unwrap(), []);
    let audit = dead.audit(10).await.unwrap();
    let lines: Vec<_> = audit.iter().map(|e| (&*e.who, &*e.action, &*e.event, e.sequence, &*e.why)).collect();
    assert_eq!(lines, [("publisher worker-1", "discard", "a-2", nth(&run, 2), "422")]);
}

async fn what_was_set_aside_too_long_ago_goes(harness: &impl StoreHarness) {
    let (store, ..) = with_one_set_aside(harness).await;
    let hour = Duration::from_hours(1);
    assert_eq!(store.clean(hour, 10).await.unwrap().expired, 0, "it is younger than an hour");
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(store.clean(Duration::from_millis(1), 10).await.unwrap().expired, 1);
    assert_eq!(store.status().await.unwrap().parked, 0);
    let line = harness.open_dead_letters().await.audit(1).await.unwrap().remove(0);
    assert_eq!((&*line.action, &*line.event, &*line.why), ("expire", "a-2", "422\nno"));
}

async fn the_sequence_of_a_forgotten_aggregate_goes_on(harness: &impl StoreHarness) {
    harness.insert([events("a", 3), events("b", 2)].concat()).await;
    let (store, me) = owner(harness).await;
    let (mut highest_of_a, mut of_b) = (0, Vec::new());
    for run in fetch(&*store, &me).await {
        if run.events[0].aggregate_id == "a" {
            highest_of_a = nth(&run, 3);
            store.record(&me, &[outcome(&run, Some(highest_of_a), HeadUpdate::Next)], true).await.unwrap();
        } else {
            of_b = [1, 2].map(|n| nth(&run, n)).to_vec();
        }
    }
    // A writer may have locked the row, or a drained aggregate is not removed from the list yet.
    fetch(&*store, &me).await;
    // A store may forget it with its last mark.
    assert!(store.clean(Duration::from_hours(1), 1).await.unwrap().forgotten <= 1, "only the one without events");
    assert_eq!(store.clean(Duration::from_hours(1), 1).await.unwrap().forgotten, 0);
    let more = |id: &str| events(id, 5).split_off(3);
    harness.insert([more("a"), events("c", 2), more("b")].concat()).await;
    let runs = fetch(&*store, &me).await;
    let sequences = |id: &str| {
        let run = runs.iter().find(|run| run.events[0].aggregate_id == id).unwrap();
        assert!(run.events.is_sorted_by(|one, next| one.sequence < next.sequence), "{:?}", run.events);
        run.events.iter().map(|event| event.sequence).collect::<Vec<_>>()
    };
    assert!(sequences("a").len() == 2 && sequences("a")[0] > highest_of_a, "never a number that was there before");
    assert!(sequences("b").len() == 4 && sequences("b").starts_with(&of_b), "what waits keeps its numbers");
    assert!(sequences("c")[0] > highest_of_a, "nobody remembers which keys were forgotten: all new ones begin above");
    for run in &runs {
        assert_eq!(store.record(&me, &[outcome(run, Some(run.through), HeadUpdate::Next)], false).await.unwrap(), []);
    }
    assert_eq!(fetch(&*store, &me).await, []);
    assert_eq!(store.status().await.unwrap().pending, 0);
}
