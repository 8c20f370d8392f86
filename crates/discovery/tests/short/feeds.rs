//! Watches that share a reader: which events they get and when, which task reads, and the limits. The tests themselves read.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use shardwise_core::{Claim, Epoch, GroupName, Holder, Incarnation, InstanceId, Member, Moment, Resource, View};
use shardwise_discovery::feeds::{Feed, FeedLimits, GroupReader, Hub, Watched, follow};
use shardwise_discovery::{ClaimTable, ClaimsEvent, ClaimsStream, Clock, Error, ErrorKind, WatchEvent, WatchStream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::advance;

const PACE: Duration = Duration::from_secs(1);

struct World {
    clock: Clock,
    hub: Hub,
    feeds: UnboundedReceiver<Feed>,
}

impl World {
    fn new() -> Self {
        let clock = Clock::tokio();
        let (hub, feeds) = hub(&clock);
        Self { clock, hub, feeds }
    }

    fn watch(&self) -> WatchStream {
        self.hub.watch(&group("g"), PACE)
    }

    fn now(&self) -> Moment {
        self.clock.now()
    }

    /// The feed that needs a reader.
    fn started(&mut self) -> Feed {
        self.feeds.try_recv().expect("a reader is wanted")
    }
}

fn group(name: &str) -> GroupName {
    GroupName::new(name).expect("a valid name")
}

fn view(revision: u64, ids: &[&str]) -> Arc<View> {
    let member = |id: &&str| Member::named(InstanceId::new(*id).expect("a valid name"));
    Arc::new(View::new(revision, ids.iter().map(member).collect()))
}

/// The next event of a watch, if there is one now.
fn next_view(watch: &mut WatchStream) -> Option<String> {
    watch.next().now_or_never().map(|event| match event.expect("it does not end") {
        Ok(WatchEvent::View(snapshot)) => format!("view {}", snapshot.view.revision()),
        Ok(_) => "proven".to_owned(),
        Err(error) => error.to_string(),
    })
}

fn says(watch: &mut WatchStream, expected: &str) {
    assert_eq!(next_view(watch).as_deref(), Some(expected));
    assert_eq!(next_view(watch), None, "and no more");
}

#[tokio::test(start_paused = true)]
async fn watches_of_one_group_share_a_reader_while_there_is_any() {
    let mut world = World::new();
    let (mut one, mut two) = (world.watch(), world.watch());
    assert!(world.feeds.try_recv().is_err(), "nobody has asked yet");
    assert_eq!((next_view(&mut one), next_view(&mut two)), (None, None));
    let feed = world.started();
    assert!(world.feeds.try_recv().is_err(), "one reader for both");
    assert_eq!((feed.group(), feed.pace()), (&group("g"), Some(PACE)));
    feed.show(view(1, &["a"]), Some(world.now()));
    says(&mut one, "view 1");
    drop(one);
    assert!(!feed.end_unwatched(), "one of them is left");
    says(&mut two, "view 1");
    drop(two);
    feed.stirred().await;
    assert!(feed.pace().is_none() && feed.end_unwatched());

    let mut late = world.watch();
    assert_eq!(next_view(&mut late), None);
    let another = world.started();
    drop(feed);
    another.show(view(2, &[]), Some(world.now()));
    says(&mut late, "view 2");
}

#[tokio::test(start_paused = true)]
async fn who_comes_gets_no_view_from_a_read_that_began_before() {
    let mut world = World::new();
    let mut first = world.watch();
    assert_eq!(next_view(&mut first), None);
    let (feed, before) = (world.started(), world.now());
    feed.show(view(1, &["a"]), Some(before));
    says(&mut first, "view 1");
    feed.stirred().await;
    advance(Duration::from_millis(1)).await;
    let mut second = world.watch();
    assert_eq!(next_view(&mut second), None);
    assert!(feed.stirred().now_or_never().is_some() && feed.has_newcomer(), "the reader hears of it");
    feed.prove(before);
    assert_eq!(next_view(&mut second), None);
    feed.prove(world.now());
    assert!(!feed.has_newcomer());
    says(&mut second, "view 1");
    assert_eq!(next_view(&mut first), None, "no event for others");
}

#[tokio::test(start_paused = true)]
async fn the_newest_view_is_reported_and_the_same_members_at_a_later_revision_are_reported_again() {
    let mut world = World::new();
    let mut watch = world.watch();
    assert_eq!(next_view(&mut watch), None);
    let feed = world.started();
    feed.show(view(4, &["a"]), Some(world.now()));
    feed.show(view(5, &["a", "b"]), None);
    says(&mut watch, "view 5");
    // A read by itself shows another member at revision 6, which is gone again at 7: who went by that has to hear of 7.
    feed.show(view(7, &["a", "b"]), Some(world.now()));
    says(&mut watch, "view 7");
    feed.show(view(7, &["a", "b"]), Some(world.now()));
    assert_eq!(next_view(&mut watch), None, "nothing new");
    assert_eq!(feed.latest(), Some(view(7, &["a", "b"])));
}

#[tokio::test(start_paused = true)]
async fn proofs_are_reported_at_each_watchs_own_pace() {
    let mut world = World::new();
    let (mut quick, mut slow) = (world.watch(), world.hub.watch(&group("g"), PACE * 10));
    assert_eq!((next_view(&mut slow), next_view(&mut quick)), (None, None));
    let feed = world.started();
    assert_eq!(feed.pace(), Some(PACE), "the quicker one counts");
    feed.show(view(1, &[]), Some(world.now()));
    says(&mut quick, "view 1");
    says(&mut slow, "view 1");
    let mut proofs = (0, 0);
    for _ in 0..100 {
        advance(PACE / 10).await;
        if feed.wants_proof(world.now()) {
            feed.prove(world.now());
        }
        proofs = (proofs.0 + u32::from(next_view(&mut quick).is_some()), proofs.1 + u32::from(next_view(&mut slow).is_some()));
    }
    assert_eq!(proofs, (10, 2), "in ten seconds");
    drop(quick);
    assert_eq!(feed.pace(), Some(PACE * 10));
    drop(slow);
    assert!(!feed.wants_proof(world.now().plus(PACE * 100)), "nobody does");
}

#[tokio::test(start_paused = true)]
async fn each_failure_is_reported_and_then_that_it_is_over() {
    let mut world = World::new();
    let mut watch = world.watch();
    assert_eq!(next_view(&mut watch), None);
    let feed = world.started();
    let failure = || Error::new(ErrorKind::Unavailable, "watch", "gone");
    feed.fail(failure());
    says(&mut watch, "watch: gone");
    feed.fail(failure());
    says(&mut watch, "watch: gone");
    feed.show(view(1, &[]), Some(world.now()));
    says(&mut watch, "view 1");
    feed.fail(failure());
    says(&mut watch, "watch: gone");
    advance(Duration::from_millis(1)).await;
    assert!(feed.wants_proof(world.now()));
    feed.prove(world.now());
    says(&mut watch, "proven");
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_ends_is_replaced_and_does_not_make_its_watches_spin() {
    let mut world = World::new();
    let mut watch = world.watch();
    for revision in 1..=3 {
        assert_eq!(next_view(&mut watch), None);
        assert!(revision == 1 || world.feeds.try_recv().is_err(), "not at once");
        advance(Duration::from_millis(50)).await;
        assert_eq!(next_view(&mut watch), None);
        let feed = world.started();
        feed.show(view(revision, &["a"]), Some(world.now()));
        says(&mut watch, &format!("view {revision}"));
    }
}

#[tokio::test(start_paused = true)]
async fn there_is_room_for_so_much_and_again_when_one_leaves() {
    let mut world = World::new();
    let mut groups = ["g", "h", "i"].map(|name| world.hub.watch(&group(name), PACE));
    assert_eq!((next_view(&mut groups[0]), next_view(&mut groups[1])), (None, None));
    says(&mut groups[2], "watch: this process already has 2 watched groups of this backend, and no more are allowed; drop some");
    let (mut third, mut fourth) = (world.watch(), world.hub.clone().watch(&group("g"), PACE));
    assert_eq!(next_view(&mut third), None);
    let full = "watch: this process already has 3 watches of this backend, and no more are allowed; drop some";
    assert_eq!(next_view(&mut fourth).as_deref(), Some(full));
    drop(third);
    assert_eq!(next_view(&mut fourth), None);
    advance(Duration::from_secs(4)).await;
    assert_eq!(next_view(&mut fourth), None);
    advance(Duration::from_secs(2)).await;
    assert_eq!(next_view(&mut fourth), None);
    let feed = world.started();
    feed.show(view(1, &[]), Some(world.now()));
    says(&mut fourth, "view 1");
}

#[tokio::test(start_paused = true)]
async fn a_single_read_is_the_followers_and_a_group_without_one_is_left_to_its_caller() {
    let mut world = World::new();
    assert_eq!(world.hub.read(&group("g")).await, None, "nothing follows it");
    let mut watch = world.watch();
    assert_eq!(next_view(&mut watch), None);
    let (feed, before) = (world.started(), world.now());
    feed.show(view(1, &["a"]), Some(before));
    says(&mut watch, "view 1");
    feed.stirred().await;
    advance(Duration::from_millis(1)).await;
    let hub = world.hub.clone();
    let reading = tokio::spawn(async move {
        let group = group("g");
        futures::join!(hub.read(&group), hub.read(&group))
    });
    feed.stirred().await;
    assert!(feed.has_newcomer() && feed.pace() == Some(PACE), "they want one read, and none later");
    let now = world.now();
    feed.prove(now);
    let (one, other) = reading.await.expect("no panic");
    let [one, other] = [one, other].map(|read| read.expect("it was read"));
    assert!(Arc::ptr_eq(&one.view, &other.view) && one.proven == now, "one view for both");
    assert_eq!(next_view(&mut watch), None, "no event for others");

    feed.fail(Error::new(ErrorKind::Unavailable, "watch", "gone"));
    assert_eq!(world.hub.read(&group("g")).await, None, "its caller finds out for itself");
}

/// A hub whose feeds the test reads.
fn hub<T: Watched>(clock: &Clock) -> (Hub<T>, UnboundedReceiver<Feed<T>>) {
    let (sender, feeds) = unbounded_channel();
    let start = move |feed| drop(sender.send(feed));
    (Hub::new(clock.clone(), FeedLimits { watches: 3, groups: 2 }, start), feeds)
}

/// Slots and the epochs under which one member holds them.
fn table(held: &[(u32, u64)]) -> Arc<ClaimTable> {
    let holder = Holder { instance_id: InstanceId::new("a").expect("a valid name"), incarnation: Incarnation::new(1) };
    let claim = |epoch| Claim { holder: holder.clone(), epoch: Epoch::new(epoch).expect("an epoch") };
    Arc::new(ClaimTable(held.iter().map(|(slot, epoch)| (Resource::Slot(*slot), claim(*epoch))).collect()))
}

/// The next event of a watch of claims, if there is one now: `=` everything, `~` the changes.
fn next_claims(watch: &mut ClaimsStream) -> Option<String> {
    let epoch = |claim: &Claim| claim.epoch.to_string();
    watch.next().now_or_never().map(|event| match event.expect("it does not end") {
        Ok(ClaimsEvent::All { claims, .. }) => {
            claims.iter().fold("=".to_owned(), |all, (on, claim)| format!("{all} {on}:{}", epoch(claim)))
        }
        Ok(ClaimsEvent::Changed { changes, .. }) => changes.iter().fold("~".to_owned(), |all, change| {
            format!("{all} {}:{}", change.resource, change.claim.as_ref().map_or("free".to_owned(), epoch))
        }),
        Ok(_) => "proven".to_owned(),
        Err(error) => error.to_string(),
    })
}

#[tokio::test(start_paused = true)]
async fn claims_are_reported_whole_and_then_by_what_has_changed_for_this_watch() {
    let clock = Clock::tokio();
    let (hub, mut feeds) = hub::<ClaimTable>(&clock);
    let (mut quick, mut slow) = (hub.watch(&group("g"), PACE), hub.watch(&group("g"), PACE));
    assert_eq!((next_claims(&mut quick), next_claims(&mut slow)), (None, None));
    let feed = feeds.try_recv().expect("a reader is wanted");
    feed.show(table(&[(1, 5), (2, 5)]), Some(clock.now()));
    assert_eq!(next_claims(&mut quick).as_deref(), Some("= slot 1:5 slot 2:5"));
    feed.show(table(&[(2, 5)]), Some(clock.now()));
    assert_eq!(next_claims(&mut quick).as_deref(), Some("~ slot 1:free"));
    assert_eq!(next_claims(&mut slow).as_deref(), Some("= slot 2:5"), "it begins with what is there when it looks");
    feed.show(table(&[(2, 5), (3, 7)]), Some(clock.now()));
    feed.show(table(&[(2, 8), (3, 7)]), Some(clock.now()));
    assert_eq!(next_claims(&mut slow).as_deref(), Some("~ slot 2:8 slot 3:7"), "both changes at once");
    feed.show(table(&[(2, 8)]), Some(clock.now()));
    feed.show(table(&[(2, 8), (3, 7)]), Some(clock.now()));
    assert_eq!(next_claims(&mut slow), None, "there and back is no change");
    assert_eq!(next_claims(&mut quick).as_deref(), Some("~ slot 2:8 slot 3:7"));
    advance(PACE).await;
    feed.prove(clock.now());
    assert_eq!(next_claims(&mut slow).as_deref(), Some("proven"));
}

/// Reads a group as the test says: each step is what `open`, `next` or `prove` does.
struct ScriptedReader {
    clock: Clock,
    calls: Arc<Mutex<Vec<(&'static str, Moment)>>>,
    /// Set while reading fails with this kind.
    failing: Arc<Mutex<Option<ErrorKind>>>,
}

impl ScriptedReader {
    fn called(&self, what: &'static str) -> Result<(), Error> {
        self.calls.lock().expect("no panic").push((what, self.clock.now()));
        let failing = self.failing.lock().expect("no panic").clone();
        failing.map_or(Ok(()), |kind| Err(Error::new(kind, "watch", "gone")))
    }
}

impl GroupReader<View> for ScriptedReader {
    const NEXT_PROVES: bool = false;

    async fn open(&mut self, feed: &Feed) -> Result<(), Error> {
        self.called("open")?;
        feed.show(view(1, &["a"]), Some(self.clock.now()));
        Ok(())
    }

    async fn next(&mut self, _feed: &Feed) -> Result<(), Error> {
        std::future::pending().await
    }

    async fn prove(&mut self, feed: &Feed) -> Result<(), Error> {
        self.called("prove")?;
        feed.prove(self.clock.now());
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_followed_group_is_proven_in_time_and_opened_again_after_growing_pauses() {
    let clock = Clock::tokio();
    let (calls, failing) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<Mutex<Option<ErrorKind>>>::default());
    let reader = (clock.clone(), Arc::clone(&calls), Arc::clone(&failing));
    let hub = Hub::new(clock.clone(), FeedLimits { watches: 3, groups: 2 }, move |feed: Feed| {
        let (clock, calls, failing) = reader.clone();
        follow(ScriptedReader { clock, calls, failing }, feed);
    });
    let mut watch = hub.watch(&group("g"), PACE);
    for expected in ["view 1", "proven", "proven"] {
        let event = watch.next().await.expect("it does not end");
        let said = if matches!(event, Ok(WatchEvent::View(_))) { "view 1" } else { "proven" };
        assert_eq!(said, expected, "{event:?}");
    }
    let taken = || std::mem::take(&mut *calls.lock().expect("no panic"));
    let so_far = taken();
    assert_eq!(so_far.iter().map(|(what, _)| *what).collect::<Vec<_>>(), ["open", "prove", "prove"]);
    assert!(so_far.windows(2).all(|two| two[1].1.since(two[0].1) <= PACE), "{so_far:?}");

    for (kind, shortest, longest) in [(ErrorKind::Unavailable, 25, 1_000), (ErrorKind::Denied, 2_500, 5_000)] {
        *failing.lock().expect("no panic") = Some(kind.clone());
        for _ in 0..9 {
            assert_eq!(watch.next().await.expect("it does not end").expect_err("it fails").kind(), &kind);
        }
        *failing.lock().expect("no panic") = None;
        assert!(watch.next().await.expect("it does not end").is_ok(), "it recovers by itself");
        let opened: Vec<_> = taken().into_iter().filter(|(what, _)| *what == "open").map(|(_, at)| at).collect();
        let pauses: Vec<_> = opened.windows(2).map(|two| two[1].since(two[0]).as_millis()).collect();
        assert!(pauses.iter().all(|pause| (shortest..=longest).contains(pause)), "{pauses:?}");
        assert!(pauses.last() >= Some(&(longest / 2)), "{pauses:?}");
    }

    drop(watch);
    tokio::time::sleep(PACE * 3).await;
    assert!(taken().is_empty(), "nothing reads a group that is not watched");
}
