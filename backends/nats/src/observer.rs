//! Reads a group through one consumer, proves it by writes of this process that come back, and evicts members that have been silent for
//! their TTL.
//!
//! The consumer is always polled: probes, evictions and sweeps run beside it. When it misses something, another one lists everything anew.
//! Nothing of that list is shown before a write that began after its last message has come back, so a server that lags behind shows no
//! older view, and what was rewritten during the list is not missing. What is decided when about silent members is in
//! [`shardwise_discovery::silence`].

mod deciding;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use shardwise_core::{Backoff, InstanceId, Moment, View};
use shardwise_discovery::feeds::{ObserverNeeds, REPAIR_PAUSE, ReadingEnd};
use shardwise_discovery::silence::{Silence, SilenceInput};
use shardwise_discovery::{RecordId, jittered};
use tokio::time::{Instant, sleep, sleep_until};

use crate::client::bounded;
use crate::consumer::PushConsumer;
use crate::error::{Failure, NatsResult};
use crate::evictions::EvictionOutcome;
use crate::handle::{AwaitedLife, BucketGroup, BucketHandle};
use crate::mirror::{BucketChange, BucketMirror, OldMarker};
use crate::names::GroupSubjects;
use crate::status::{ForeignFollower, ForeignReading};

/// First and longest pause between two attempts to list a group, and the share of its shortest TTL that a pause has at most.
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_LONGEST: Duration = Duration::from_secs(30);
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRIES_PER_TTL: u32 = 3;
/// The longest wait for messages before the needs are looked at.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// How many messages are taken before anything else is done.
const DRAIN_MAX: usize = 1_024;
/// In a group of up to so many members every beat is followed.
const FOLLOW_ALL: usize = 64;
/// The most members whose beats are followed one by one.
const FOLLOWED_MAX: usize = 256;
/// How often the choice of followed beats may change, which lists the group anew.
const REFOLLOW_EVERY: Duration = Duration::from_secs(5);

/// Reads the group in a task for as long as it is needed.
pub(crate) fn start(handle: &Arc<BucketHandle>, group: Arc<BucketGroup>) {
    let handle = Arc::downgrade(handle);
    tokio::spawn(async move {
        let _end = ReadingEnd::of(&handle, &group);
        let mut observer: Option<BucketObserver> = None;
        // Without it nothing reads the group, nor ever will. An eviction that has begun is finished first: others would wait before they
        // do.
        while let Some(present) = handle
            .upgrade()
            .filter(|present| observer.as_ref().is_some_and(BucketObserver::is_evicting) || !present.groups.end_unneeded(&group))
        {
            let observer = observer.get_or_insert_with(|| {
                let status = present.client.status.clone();
                let foreign = status.map(|keys| ForeignFollower::start(Weak::clone(&handle), keys));
                BucketObserver::new(present.client.bucket.group(&group.name), foreign)
            });
            observer.round(&present, &group).await;
        }
    });
}

/// Whose beats are followed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FollowedBeats {
    All,
    Of(BTreeSet<InstanceId>),
}

/// What ran beside the consumer.
enum FinishedCall {
    Probe { started: Moment, answer: NatsResult<u64> },
    Eviction { record: RecordId, seen: Option<u64>, answer: NatsResult<EvictionOutcome> },
    Rest { id: InstanceId },
    Sweep { answer: NatsResult<Vec<OldMarker>> },
}

/// What this process may do, as far as it has found out.
struct ObserverRights {
    may_evict: bool,
    may_sweep: bool,
}

struct BucketObserver {
    subjects: GroupSubjects,
    consumer: Option<PushConsumer>,
    mirror: BucketMirror,
    silence: Silence,
    calls: FuturesUnordered<BoxFuture<'static, FinishedCall>>,
    follows: FollowedBeats,
    /// Follows the keys of another fleet, and what it has read.
    foreign: Option<ForeignFollower>,
    foreign_reading: ForeignReading,
    reads_claims: bool,
    /// What [`Silence`] knows of the needs.
    known_needs: ObserverNeeds<AwaitedLife>,
    known_waits: Vec<(RecordId, Duration)>,
    /// When the present consumer had delivered its list, and whether a write that began after that has come back. A record that was
    /// rewritten before the list came to it is not in the list, but stands before that write in the stream.
    listed: Moment,
    is_caught_up: bool,
    /// What the messages that are not shown yet have changed.
    changed: BucketChange,
    beats: BTreeSet<InstanceId>,
    /// When the latest write began that came back, and the latest that [`Silence`] knows of.
    proven: Moment,
    written: Moment,
    interrupted: u64,
    /// When the probe began that is under way, and when another one may begin after one that failed.
    probing: Option<Moment>,
    probe_after: Moment,
    evicting: BTreeSet<InstanceId>,
    /// Since when records are there whose life is evicted.
    half_evicted: BTreeMap<InstanceId, Moment>,
    swept: Moment,
    rights: ObserverRights,
    era: u64,
    /// The highest revision of this era.
    revision: u64,
    view: Option<Arc<View>>,
    backoff: Backoff,
}

impl BucketObserver {
    fn new(subjects: GroupSubjects, foreign: Option<ForeignFollower>) -> Self {
        Self {
            consumer: None,
            mirror: BucketMirror::new(subjects.clone()),
            subjects,
            silence: Silence::default(),
            calls: FuturesUnordered::new(),
            follows: FollowedBeats::All,
            foreign,
            foreign_reading: ForeignReading::default(),
            reads_claims: false,
            known_needs: ObserverNeeds::default(),
            known_waits: Vec::new(),
            listed: Moment::ZERO,
            is_caught_up: false,
            changed: BucketChange::default(),
            beats: BTreeSet::new(),
            proven: Moment::ZERO,
            written: Moment::ZERO,
            interrupted: 0,
            probing: None,
            probe_after: Moment::ZERO,
            evicting: BTreeSet::new(),
            half_evicted: BTreeMap::new(),
            swept: Moment::ZERO,
            rights: ObserverRights { may_evict: true, may_sweep: true },
            era: 0,
            revision: 0,
            view: None,
            backoff: Backoff::new(RETRY_FIRST, RETRY_LONGEST),
        }
    }

    fn is_evicting(&self) -> bool {
        !self.evicting.is_empty()
    }

    /// Waits for messages, for a second at most, and does what follows from them.
    async fn round(&mut self, handle: &Arc<BucketHandle>, group: &Arc<BucketGroup>) {
        let Err(failure) = self.try_round(handle, group).await else { return };
        let now = handle.client.clock.now();
        self.silence.step(now, SilenceInput::Interrupted);
        let was_caught_up = self.is_caught_up;
        (self.consumer, self.is_caught_up, self.probing) = (None, false, None);
        self.calls = FuturesUnordered::new();
        self.evicting.clear();
        tracing::debug!(group = %group.name, %failure, "a group could not be read");
        if was_caught_up && matches!(failure, Failure::Missed | Failure::Broken | Failure::Replaced) {
            // Listing anew may be all it takes. Many processes miss the same at the same moment.
            sleep(jittered(RETRY_FIRST)).await;
            return;
        }
        let is_passing = failure.is_passing();
        group.shown.send_modify(|shown| shown.failure = Some((failure, now)));
        let longest = self.least_ttl().map_or(RETRY_MIN, |ttl| (ttl / RETRIES_PER_TTL).clamp(RETRY_MIN, RETRY_LONGEST));
        let pause = if is_passing { self.backoff.fail().min(longest) } else { REPAIR_PAUSE };
        sleep(jittered(pause)).await;
    }

    async fn try_round(&mut self, handle: &Arc<BucketHandle>, group: &Arc<BucketGroup>) -> NatsResult<()> {
        let needs = group.needed();
        if self.must_open(&needs, handle.client.clock.now()) {
            self.open(handle, group, &needs).await?;
        }
        let wait = self.wait(group, handle.client.clock.now());
        let Some(consumer) = &mut self.consumer else { return Err(Failure::Missed) };
        tokio::select! {
            delivery = consumer.next() => {
                let (mut next, mut taken) = (Some(delivery), 0);
                while let Some(delivery) = next {
                    let delivery = delivery?;
                    handle.client.history.saw(self.era, delivery.sequence)?;
                    let (change, beat) = self.mirror.take(&delivery);
                    self.changed = self.changed.with(change);
                    self.beats.extend(beat);
                    taken += 1;
                    next = if taken < DRAIN_MAX { consumer.next().now_or_never() } else { None };
                }
            }
            Some(finished) = self.calls.next(), if !self.calls.is_empty() => self.finish(handle, group, finished)?,
            () = group.woken() => {}
            () = ForeignFollower::changed(self.foreign.as_mut()) => {}
            () = sleep_until(Instant::now() + wait) => {}
        }
        self.decide(handle, group)
    }

    /// Whether the group must be listed, at first or because other subjects are needed.
    fn must_open(&self, needs: &ObserverNeeds<AwaitedLife>, now: Moment) -> bool {
        if self.consumer.is_none() || (needs.reads_claims && !self.reads_claims) {
            return true;
        }
        if !self.is_caught_up || now < self.listed.plus(REFOLLOW_EVERY) {
            return false;
        }
        match (&self.follows, self.followed_beats(needs)) {
            (FollowedBeats::All, FollowedBeats::Of(_)) => self.mirror.member_count() > FOLLOW_ALL * 3 / 2,
            (FollowedBeats::Of(_), FollowedBeats::All) => true,
            (FollowedBeats::Of(followed), FollowedBeats::Of(wanted)) => !wanted.is_subset(followed),
            (FollowedBeats::All, FollowedBeats::All) => false,
        }
    }

    fn followed_beats(&self, needs: &ObserverNeeds<AwaitedLife>) -> FollowedBeats {
        let wanted: BTreeSet<_> = self.silence.guarded().chain(&needs.mine).cloned().collect();
        if self.mirror.member_count() <= FOLLOW_ALL || wanted.len() > FOLLOWED_MAX { FollowedBeats::All } else { FollowedBeats::Of(wanted) }
    }

    /// Makes a consumer and takes everything that is there.
    async fn open(&mut self, handle: &Arc<BucketHandle>, group: &BucketGroup, needs: &ObserverNeeds<AwaitedLife>) -> NatsResult<()> {
        let client = &handle.client;
        let follows = self.followed_beats(needs);
        let (filters, subjects) = (self.filters(&follows, needs, client.process), self.subjects.clone());
        let listed = bounded(async move {
            let connection = client.connection().await?;
            let era = client.history.now().era;
            let made = PushConsumer::open(Arc::clone(&connection), &client.bucket, &filters).await;
            let mut consumer = client.doubt(&connection, made).await?;
            let mut mirror = BucketMirror::new(subjects);
            while !consumer.has_listed() {
                let delivery = consumer.next().await?;
                client.history.saw(era, delivery.sequence)?;
                mirror.take(&delivery);
            }
            Ok((consumer, mirror, client.clock.now(), era))
        });
        let (consumer, mirror, listed, era) = listed.await?;
        if era != self.era {
            (self.era, self.revision, self.proven) = (era, 0, Moment::ZERO);
            group.extra.forget();
        }
        (self.consumer, self.mirror, self.listed, self.is_caught_up) = (Some(consumer), mirror, listed, false);
        (self.follows, self.reads_claims) = (follows, needs.reads_claims);
        (self.changed, self.view) = (BucketChange { members: true, claims: true, notes: true }, None);
        self.half_evicted.clear();
        Ok(())
    }

    fn filters(&self, follows: &FollowedBeats, needs: &ObserverNeeds<AwaitedLife>, process: u32) -> Vec<String> {
        let subjects = &self.subjects;
        let mut filters = vec![subjects.members(), subjects.notes(), subjects.probe(process)];
        filters.extend(needs.reads_claims.then(|| subjects.claims()));
        match follows {
            FollowedBeats::All => filters.push(subjects.beats()),
            FollowedBeats::Of(ids) => filters.extend(ids.iter().map(|id| subjects.beat(id))),
        }
        filters
    }

    /// Until the next look at the needs for which nothing has to ask.
    fn wait(&self, group: &BucketGroup, now: Moment) -> Duration {
        let due = if self.wants_proof(group, now) { now } else { self.write_due(group).unwrap_or(now.plus(POLL_EVERY)) };
        // What is due and waits for an answer must not make the task spin.
        let least = if self.probing.is_some() { POLL_EVERY } else { Duration::from_millis(1) };
        due.max(self.probe_after).since(now).clamp(least, POLL_EVERY)
    }

    fn least_ttl(&self) -> Option<Duration> {
        self.mirror.least_ttl()
    }
}
