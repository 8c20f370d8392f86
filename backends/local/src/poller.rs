//! Following groups by polling the file.
//!
//! SQLite announces no changes to other processes, so this module polls. One poll is one `PRAGMA data_version`, which touches shared memory
//! only; rows are read when the group's revision has risen or a record expires. All groups of a backend take turns at one connection, and
//! what one of them has found out serves the others.

use std::sync::{Arc, Mutex as StdMutex, PoisonError, Weak};
use std::time::Duration;

use shardwise_core::{GroupName, Moment, View};
use shardwise_discovery::ClaimTable;
use shardwise_discovery::feeds::{Feed, FeedLimits, GroupReader, Watched};
use sqlx::sqlite::SqliteConnection;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout};

use crate::claim_statements::ClaimsVersion;
use crate::client::Client;
use crate::error::Failure;
use crate::open_store::OpenStore;

/// How often the file is looked at.
const POLL_EVERY: Duration = Duration::from_millis(25);
/// For how long one poll serves all groups.
const POLL_LASTS: Duration = Duration::from_millis(5);
/// How long one poll may take, with waiting for the connection.
const POLL_TIMEOUT: Duration = Duration::from_secs(2);

/// The most watches that one [`LocalBackend`](crate::LocalBackend) and its clones serve at a time.
pub const WATCHERS_MAX: usize = 16_384;
/// A watched group has a watch, so that these are never too many.
pub(crate) const LIMITS: FeedLimits = FeedLimits { watches: WATCHERS_MAX, groups: WATCHERS_MAX };

/// A followed part of a group.
pub(crate) trait PolledGroup: Default + Send + Sync + 'static {
    /// The state that watches see.
    type Shown: Watched + Default;

    /// The group as of `now`, and when its next record expires unless it is renewed, which was `next_end` so far; `None` if nothing is new.
    fn read(
        &mut self,
        client: &Client,
        link: &mut PollerConnection,
        group: &GroupName,
        next_end: Option<Moment>,
        now: Moment,
    ) -> impl Future<Output = Result<Option<PolledState<Self::Shown>>, Failure>> + Send;

    /// Whether the state shown equals the state read.
    fn is_same(shown: &Self::Shown, read: &Self::Shown) -> bool {
        shown == read
    }
}

/// The state of a group, and when it is read again though nothing has been written.
pub(crate) type PolledState<T> = (Arc<T>, Option<Moment>);

/// What all groups of a backend are read by.
pub(crate) struct Poller {
    client: Arc<Client>,
    /// Notified of this process's writes.
    written: watch::Sender<()>,
    /// Shared by the groups that are followed, and closed with the last of them.
    link: StdMutex<Weak<Mutex<Option<PollerConnection>>>>,
}

/// A connection for polls alone, and what the last one found.
pub(crate) struct PollerConnection {
    store: Arc<OpenStore>,
    connection: SqliteConnection,
    opened: Instant,
    last: Option<PollReading>,
}

/// One reading of the file.
#[derive(Clone, Copy)]
struct PollReading {
    begun: Instant,
    /// Before the request.
    now: Moment,
    /// It differs from that of another reading if the file may have changed in between: the connection, and what it counts.
    version: (Instant, i64),
}

impl Poller {
    pub(crate) fn new(client: Arc<Client>) -> Self {
        Self { client, written: watch::Sender::new(()), link: StdMutex::default() }
    }

    /// Has all groups polled now.
    pub(crate) fn wake(&self) {
        self.written.send_replace(());
    }

    fn link(&self) -> Arc<Mutex<Option<PollerConnection>>> {
        // Nothing under this lock can panic halfway through a change.
        let mut shared = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let link = Arc::default();
            *shared = Arc::downgrade(&link);
            link
        })
    }
}

impl PollerConnection {
    /// The last reading if it is younger than `oldest`, or a new one.
    async fn poll(&mut self, client: &Client, oldest: Instant) -> Result<PollReading, Failure> {
        if let Some(last) = self.last.filter(|last| last.begun >= oldest) {
            return Ok(last);
        }
        let (begun, now) = (Instant::now(), client.clock.now());
        // A number that differs from the last one on this connection if another connection has written since.
        let version = sqlx::query_scalar("PRAGMA data_version").fetch_one(&mut self.connection).await;
        let version = (self.opened, client.settle(&self.store, version)?);
        Ok(*self.last.insert(PollReading { begun, now, version }))
    }
}

/// Reads one group.
pub(crate) struct PollingReader<P> {
    poller: Arc<Poller>,
    link: Arc<Mutex<Option<PollerConnection>>>,
    written: watch::Receiver<()>,
    polled: P,
    /// The file as it was when the group was read last.
    seen: Option<(Instant, i64)>,
    /// When the next record expires.
    next_end: Option<Moment>,
}

impl<P: PolledGroup> PollingReader<P> {
    pub(crate) fn new(poller: Arc<Poller>) -> Self {
        Self { written: poller.written.subscribe(), link: poller.link(), poller, polled: P::default(), seen: None, next_end: None }
    }

    async fn poll(&mut self, feed: &Feed<P::Shown>, oldest: Instant) -> shardwise_discovery::Result<()> {
        let answer = timeout(POLL_TIMEOUT, self.poll_file(feed, oldest)).await;
        let path = &self.poller.client.path;
        let late = || Failure::TimedOut { path: path.clone(), after: POLL_TIMEOUT };
        answer.unwrap_or_else(|_| Err(late())).map_err(|failure| failure.during(P::Shown::OPERATION, path))
    }

    async fn poll_file(&mut self, feed: &Feed<P::Shown>, oldest: Instant) -> Result<(), Failure> {
        let (client, group) = (&*self.poller.client, feed.group());
        let mut link = self.link.lock().await;
        if link.is_none() && client.is_unmade() {
            show::<P>(feed, Some(Arc::default()), client.clock.now());
            return Ok(());
        }
        let connection = match &mut *link {
            Some(connection) => connection,
            none => {
                let store = client.store().await?;
                let connection = store.connect().await?;
                none.insert(PollerConnection { store, connection, opened: Instant::now(), last: None })
            }
        };
        let read = async {
            let reading = connection.poll(client, oldest).await?;
            let expiring = self.next_end.is_some_and(|end| end <= reading.now);
            let mut shown = None;
            if expiring || self.seen != Some(reading.version) {
                let answer = self.polled.read(client, connection, group, self.next_end, reading.now).await;
                if let Some((read, next_end)) = client.settle(&connection.store, answer)? {
                    (shown, self.next_end) = (Some(read), next_end);
                }
                self.seen = Some(reading.version);
            }
            show::<P>(feed, shown, reading.now);
            Ok(())
        };
        let answer = read.await;
        if answer.as_ref().is_err_and(|failure: &Failure| !failure.keeps_connection()) {
            *link = None;
        }
        answer
    }
}

impl<P: PolledGroup> GroupReader<P::Shown> for PollingReader<P> {
    const NEXT_PROVES: bool = true;

    async fn open(&mut self, feed: &Feed<P::Shown>) -> shardwise_discovery::Result<()> {
        (self.polled, self.seen, self.next_end) = (P::default(), None, None);
        self.poll(feed, Instant::now()).await
    }

    async fn next(&mut self, feed: &Feed<P::Shown>) -> shardwise_discovery::Result<()> {
        let wait = self.next_end.map_or(POLL_EVERY, |end| end.since(self.poller.client.clock.now()));
        // A stopped clock must not make this spin.
        let wait = wait.clamp(Duration::from_millis(1), POLL_EVERY);
        let woken = timeout(wait, self.written.changed()).await.is_ok();
        let now = Instant::now();
        let oldest = if woken || wait < POLL_EVERY { now } else { now.checked_sub(POLL_LASTS).unwrap_or(now) };
        self.poll(feed, oldest).await
    }

    async fn prove(&mut self, feed: &Feed<P::Shown>) -> shardwise_discovery::Result<()> {
        self.poll(feed, Instant::now()).await
    }
}

/// Shows a new state. A proof without changes goes only to watches that wait for one.
fn show<P: PolledGroup>(feed: &Feed<P::Shown>, read: Option<Arc<P::Shown>>, now: Moment) {
    match read {
        Some(read) if feed.latest().is_none_or(|shown| !P::is_same(&shown, &read)) => feed.show(read, Some(now)),
        _ if feed.wants_proof(now) => feed.prove(now),
        _ => {}
    }
}

/// The members of a group, by the revision that was read last.
#[derive(Default)]
pub(crate) struct PolledMembers(Option<u64>);

impl PolledGroup for PolledMembers {
    type Shown = View;

    async fn read(
        &mut self,
        client: &Client,
        link: &mut PollerConnection,
        group: &GroupName,
        next_end: Option<Moment>,
        now: Moment,
    ) -> Result<Option<PolledState<View>>, Failure> {
        let PollerConnection { store, connection, .. } = link;
        if let Some(revision) = self.0
            && next_end.is_none_or(|end| now < end)
        {
            let before = client.known();
            let at = store.revision(connection, group).await?;
            client.check(store, &at, before)?;
            if at.revision == revision {
                return Ok(None);
            }
        }
        let (view, next_end) = client.read_alive(store, connection, group, now).await?;
        self.0 = Some(view.revision());
        Ok(Some((Arc::new(view), next_end)))
    }

    fn is_same(shown: &View, read: &View) -> bool {
        // The revision of an empty group rises with changes to other groups; that is no change.
        shown.members() == read.members() && (shown.revision() == read.revision() || read.members().is_empty())
    }
}

/// The claims of a group, and the last known ones: the table is kept in memory, and changes are read by number.
///
/// A dead record's claims count as free only once the record is deleted, which every follower sees to: until then its member might register
/// again and keep them.
#[derive(Default)]
pub(crate) struct PolledClaims {
    known: Option<LastClaimsPoll>,
}

struct LastClaimsPoll {
    /// In which file that is: its numbers mean nothing in another one.
    store: Arc<OpenStore>,
    mark: ClaimsVersion,
    table: Arc<ClaimTable>,
    /// The revision of the records for which the next end was read.
    revision: u64,
}

impl PolledGroup for PolledClaims {
    type Shown = ClaimTable;

    /// Reads the changes since the last known state.
    async fn read(
        &mut self,
        client: &Client,
        link: &mut PollerConnection,
        group: &GroupName,
        mut next_end: Option<Moment>,
        now: Moment,
    ) -> Result<Option<PolledState<ClaimTable>>, Failure> {
        let PollerConnection { store, connection, .. } = link;
        let known = self.known.as_ref().filter(|known| Arc::ptr_eq(&known.store, store));
        let highest = client.known();
        let (mut at, mut mark) = store.claims_mark(connection, group).await?;
        client.check(store, &at, highest)?;
        let same_records = known.is_some_and(|known| known.revision == at.revision) && next_end.is_none_or(|end| now < end);
        if !same_records {
            next_end = store.delete_dead(connection, group, now).await?;
            (at, mark) = store.claims_mark(connection, group).await?;
        }
        let table = if let Some(known) = known.filter(|known| known.mark == mark) {
            Arc::clone(&known.table)
        } else {
            let reading = store.read_claims(connection, group, known.map(|known| &known.mark)).await?;
            client.check(store, &reading.at, highest)?;
            mark = reading.mark;
            let mut table = known.filter(|_| !reading.whole).map(|known| known.table.0.clone()).unwrap_or_default();
            for resource in &reading.changes.ended {
                table.remove(resource);
            }
            table.extend(reading.changes.held);
            Arc::new(ClaimTable(table))
        };
        self.known = Some(LastClaimsPoll { store: Arc::clone(store), mark, table: Arc::clone(&table), revision: at.revision });
        Ok(Some((table, next_end)))
    }
}
