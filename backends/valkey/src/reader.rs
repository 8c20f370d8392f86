//! Follows a group for its watches: one list, then the changes of its channel. The proof is a script's answer: behind it no changes are
//! missing. The script also evicts members that are due, so it is called at the next deadline too.

use std::sync::Arc;
use std::time::Duration;

use shardwise_core::{GroupName, InstanceId};
use shardwise_discovery::Result;
use shardwise_discovery::feeds::{Feed, FeedLimits, GroupReader};
use tokio::time::{Instant, sleep_until, timeout};

use crate::client::{Client, MakesGroup, read};
use crate::connection::LiveConnection;
use crate::error::{Failure, ValkeyResult};
use crate::foreign::MemberScan;
use crate::mirror::{ChangeOutcome, MemberMirror};
use crate::records::TTL_MIN;
use crate::scripts::{GroupAnswer, LuaScript};
use crate::subscription::ChangeSubscription;

/// The most watches that one [`ValkeyBackend`](crate::ValkeyBackend) and its clones serve at a time.
pub const WATCHERS_MAX: usize = 16_384;
/// The most groups that they watch at a time.
pub const GROUPS_MAX: usize = 256;
pub(crate) const LIMITS: FeedLimits = FeedLimits { watches: WATCHERS_MAX, groups: GROUPS_MAX };

/// How long a proof may take: as long as the watches' pace, but at least and at most so long.
const PROOF_LIMITS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));
/// How often everything is read anew, so that what was edited by hand stays unnoticed for no longer.
const RELIST_EVERY: Duration = Duration::from_mins(1);
/// How often a group is listed at once where its changes are missed again meanwhile.
const LIST_TRIES: usize = 3;

pub(crate) struct ValkeyReader {
    client: Arc<Client>,
    /// `None` before the first list, and while a new one is read.
    followed: Option<Following>,
    /// Looks for the keys of another fleet, and the members that are shown of it.
    scan: Option<MemberScan>,
    foreign: Arc<Vec<InstanceId>>,
}

struct Following {
    connection: Arc<LiveConnection>,
    changes: ChangeSubscription,
    mirror: MemberMirror,
    listed: Instant,
    /// When the next record is due by the server's clock; `None`: there is none.
    due: Option<Instant>,
}

impl ValkeyReader {
    pub(crate) fn new(client: Arc<Client>) -> Self {
        Self { client, followed: None, scan: None, foreign: Arc::default() }
    }

    /// The other fleet's members as they were found last; none where none are followed.
    async fn found(&mut self) -> ValkeyResult<Arc<Vec<InstanceId>>> {
        if self.client.member_keys.is_none() {
            return Ok(Arc::default());
        }
        self.scan.get_or_insert_with(|| MemberScan::start(Arc::clone(&self.client))).latest().await
    }

    /// Shows the other fleet's members if they are others than before. An error if they cannot be found.
    async fn follow_foreign(&mut self, feed: &Feed) -> ValkeyResult<()> {
        let found = self.found().await?;
        if found != self.foreign {
            self.foreign = found;
            self.publish(feed)?;
        }
        Ok(())
    }

    /// Reads the group anew, over the connection in use, and shows it.
    async fn list(&mut self, feed: &Feed) -> ValkeyResult<()> {
        self.followed = None;
        self.foreign = self.found().await?;
        for _ in 0..LIST_TRIES {
            let connection = self.client.connected().await?;
            let proven = self.client.clock.now();
            match Following::open(&self.client, feed.group(), connection).await {
                Ok(mut following) => match following.drain() {
                    Ok(_) => {
                        self.client.show(feed.group(), following.mirror.revision());
                        feed.show(following.mirror.view(&self.foreign), Some(proven));
                        self.followed = Some(following);
                        return Ok(());
                    }
                    Err(Failure::Gap) => {}
                    Err(failure) => return Err(failure),
                },
                Err((connection, failure)) => {
                    if failure.is_of_connection() {
                        self.client.forget(&connection);
                    }
                    return Err(failure);
                }
            }
        }
        Err(Failure::Gap)
    }

    /// Waits for changes, or for the next deadline.
    async fn follow_on(&mut self, feed: &Feed) -> ValkeyResult<()> {
        let Some(following) = &mut self.followed else { return self.list(feed).await };
        let due = following.due;
        let is_due = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            message = following.changes.messages.recv() => {
                // `None`: the connection has ended, or this reader was too slow.
                let message = message.ok_or(Failure::Gap)?;
                let is_new = following.take(&message)?;
                if is_new | following.drain()? {
                    self.publish(feed)?;
                }
                Ok(())
            }
            () = is_due => self.poll(feed).await,
            () = MemberScan::changed(self.scan.as_mut()) => self.follow_foreign(feed).await,
        }
    }

    /// Has the server evict members that are due, and proves what is shown.
    async fn poll(&mut self, feed: &Feed) -> ValkeyResult<()> {
        self.follow_foreign(feed).await?;
        let Some(following) = &mut self.followed else { return self.list(feed).await };
        // Calls have left a connection that is not usable any more: the primary may be elsewhere.
        if !following.connection.is_usable() || following.listed.elapsed() >= RELIST_EVERY {
            return self.list(feed).await;
        }
        let limit = feed.pace().unwrap_or_default().clamp(PROOF_LIMITS.0, PROOF_LIMITS.1);
        let proven = self.client.clock.now();
        let asked = ask(&self.client, &self.client.scripts.poll, feed.group(), &following.connection);
        let late = || Failure::TimedOut { place: following.connection.context.place.clone(), after: limit };
        let answer = match timeout(limit, asked).await {
            Ok(answer) => answer?,
            Err(_) => return Err(late()),
        };
        following.due = due(&answer);
        // All changes that were published before the answer are there already.
        let is_new = following.drain()?;
        if !following.mirror.has_reached(&answer.era, answer.revision) {
            return Err(Failure::Gap);
        }
        if is_new {
            self.publish(feed)?;
        }
        feed.prove(proven);
        Ok(())
    }

    /// Shows what the changes have brought, unless a call has shown something later: then that is on its way.
    fn publish(&self, feed: &Feed) -> ValkeyResult<()> {
        let Some(following) = &self.followed else { return Ok(()) };
        let revision = following.mirror.revision();
        if revision < self.client.highest(feed.group()) {
            return Err(Failure::Gap);
        }
        self.client.show(feed.group(), revision);
        feed.show(following.mirror.view(&self.foreign), None);
        Ok(())
    }

    /// The contract's answer. Where changes were missed, nothing is wrong: a list says what they were.
    async fn settled(&mut self, answer: ValkeyResult<()>, feed: &Feed) -> Result<()> {
        let answer = match answer {
            Err(Failure::Gap) => self.list(feed).await,
            other => other,
        };
        answer.map_err(|failure| {
            if let Some(following) = self.followed.take()
                && failure.is_of_connection()
            {
                self.client.forget(&following.connection);
            }
            failure.during("watch")
        })
    }
}

impl GroupReader<shardwise_core::View> for ValkeyReader {
    const NEXT_PROVES: bool = false;

    async fn open(&mut self, feed: &Feed) -> Result<()> {
        let answer = self.list(feed).await;
        self.settled(answer, feed).await
    }

    async fn next(&mut self, feed: &Feed) -> Result<()> {
        let answer = self.follow_on(feed).await;
        self.settled(answer, feed).await
    }

    async fn prove(&mut self, feed: &Feed) -> Result<()> {
        let answer = self.poll(feed).await;
        self.settled(answer, feed).await
    }
}

/// Runs a script without arguments over that connection.
async fn ask(client: &Client, script: &LuaScript, group: &GroupName, connection: &LiveConnection) -> ValkeyResult<GroupAnswer> {
    let call = client.call(script, group, MakesGroup::No, []);
    read(connection, connection.run(&call).await?)
}

/// When the next record is due, a moment later, so that it is by then.
fn due(answer: &GroupAnswer) -> Option<Instant> {
    answer.due_us.map(|due_us| Instant::now() + Duration::from_micros(due_us) + Duration::from_millis(1))
}

impl Following {
    /// Subscribes to the changes and lists the group. A failure comes with its connection.
    async fn open(
        client: &Client,
        group: &GroupName,
        connection: Arc<LiveConnection>,
    ) -> std::result::Result<Self, (Arc<LiveConnection>, Failure)> {
        match timeout(PROOF_LIMITS.1, Self::try_open(client, group, &connection)).await {
            Ok(Ok(following)) => Ok(following),
            Ok(Err(failure)) => Err((connection, failure)),
            Err(_) => {
                let place = connection.context.place.clone();
                Err((connection, Failure::TimedOut { place, after: PROOF_LIMITS.1 }))
            }
        }
    }

    async fn try_open(client: &Client, group: &GroupName, connection: &Arc<LiveConnection>) -> ValkeyResult<Self> {
        let changes = connection.subscribe(&client.channel(group)).await?;
        let answer = ask(client, &client.scripts.list, group, connection).await?;
        let (due, era, revision) = (due(&answer), answer.era.clone(), answer.revision);
        let mirror = MemberMirror::of_list(era, revision, &answer.records())?;
        Ok(Self { connection: Arc::clone(connection), changes, mirror, listed: Instant::now(), due })
    }

    /// Takes one message; whether it has changed anything.
    fn take(&mut self, message: &[u8]) -> ValkeyResult<bool> {
        match self.mirror.apply(message)? {
            ChangeOutcome::Applied => {
                // A member that has come may be the next that is due. The server knows when, but no sooner than this.
                let soon = Instant::now() + TTL_MIN;
                self.due = Some(self.due.map_or(soon, |due| due.min(soon)));
                Ok(true)
            }
            ChangeOutcome::Known => Ok(false),
            ChangeOutcome::Missed => Err(Failure::Gap),
        }
    }

    /// Takes all messages that have arrived.
    fn drain(&mut self) -> ValkeyResult<bool> {
        let mut is_new = false;
        while let Ok(message) = self.changes.messages.try_recv() {
            is_new |= self.take(&message)?;
        }
        Ok(is_new)
    }
}
