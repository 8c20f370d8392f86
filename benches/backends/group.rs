//! A group of many members in several processes, all of which follow it, and how soon the others see the changes of one member.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::BoxStream;
use shardwise_core::{ClaimStore, GroupName, InstanceId, Member, Resource};
use shardwise_discovery::{AcquireOutcome, ClaimsEvent, Discovery, RecordId, Registration, Result, WatchEvent};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::PATIENCE;
use crate::server::Server;

pub(crate) const TTL: Duration = Duration::from_secs(10);
/// Like the library with this TTL.
const RENEW_EVERY: Duration = Duration::from_millis(3_333);
const PROVE_EVERY: Duration = Duration::from_millis(2_500);
const PROCESSES: usize = 16;
/// Changes that do not count: the watches may still be opening.
const WARM_UP: u32 = 10;
/// In the metadata of the member that changes: the number of its change.
const CHANGE: &str = "change";

pub(crate) struct Group {
    name: GroupName,
    processes: Vec<Arc<dyn Discovery>>,
    /// The member that changes, of the first process.
    writer: Registration,
    renewing: JoinSet<()>,
}

impl Group {
    /// Registers the members, which renew from then on, and follows them in every process.
    pub(crate) async fn start(server: &Server, members: u32) -> (Self, Observers) {
        let name = GroupName::new(format!("{members} members")).unwrap();
        let processes: Vec<_> = (0..PROCESSES).map(|_| server.open()).collect();
        let (mut registered, mut renewing) = (Vec::new(), JoinSet::new());
        for (number, process) in (0..members).zip(processes.iter().cycle()) {
            let member = crate::register(&**process, &name, &format!("m{number:03}"), TTL).await;
            // Spread evenly, as in processes that started at different times.
            let first = RENEW_EVERY.mul_f64(f64::from(number) / f64::from(members));
            renewing.spawn(renew(Arc::clone(process), member.record_id(), first));
            registered.push(member);
        }
        let group = Self { name, processes, writer: registered.swap_remove(0), renewing };
        let records = Observers::of(group.processes.iter().map(|process| {
            let writer = group.writer.member.instance_id.clone();
            process.watch(&group.name, PROVE_EVERY).filter_map(move |event| ready(change_in(event, &writer))).boxed()
        }));
        (group, records)
    }

    pub(crate) async fn change_record(&self, number: u32) {
        let metadata = BTreeMap::from([(CHANGE.to_owned(), number.to_string())]);
        let member = Member { metadata, ..self.writer.member.clone() };
        self.processes[0].update(&Registration { member, ..self.writer.clone() }).await.unwrap();
    }

    /// Follows the claims in every process; `None` if the backend has none.
    pub(crate) async fn watch_claims(&self) -> Option<(ClaimStore, Observers)> {
        let store = self.processes[0].as_claims()?.claim_store(&self.name, 0).await.unwrap();
        let claims = self.processes.iter().filter_map(|process| process.as_claims());
        let watches = claims.map(|claims| claims.watch_claims(&self.name, PROVE_EVERY).filter_map(|event| ready(claim_in(event))).boxed());
        Some((store, Observers::of(watches)))
    }

    /// Claims the slot with that number.
    pub(crate) async fn claim(&self, store: &ClaimStore, number: u32) {
        let claims = self.processes[0].as_claims().unwrap();
        let outcomes = claims.acquire(&self.writer.record_id(), store, &[Resource::Slot(number)]).await.unwrap();
        assert!(matches!(outcomes[..], [(_, AcquireOutcome::Granted(_))]), "{outcomes:?}");
    }

    /// Checks that no member was lost.
    pub(crate) async fn check(&mut self, members: u32) {
        assert!(self.renewing.try_join_next().is_none(), "a member could not renew");
        assert_eq!(self.processes[1].members(&self.name).await.unwrap().view.members().len(), members as usize);
    }
}

async fn renew(process: Arc<dyn Discovery>, record_id: RecordId, first: Duration) {
    sleep(first).await;
    loop {
        if let Err(error) = process.renew(&record_id, TTL).await {
            println!("{} has not renewed: {error}", record_id.instance_id);
            assert!(error.is_retryable());
        }
        sleep(RENEW_EVERY).await;
    }
}

fn change_in(event: Result<WatchEvent>, writer: &InstanceId) -> Option<u32> {
    let Ok(WatchEvent::View(snapshot)) = event else { return None };
    snapshot.view.member(writer)?.metadata.get(CHANGE)?.parse().ok()
}

/// The highest slot among those that are shown as held: later ones are higher.
fn claim_in(event: Result<ClaimsEvent>) -> Option<u32> {
    let held: Vec<_> = match event.ok()? {
        ClaimsEvent::All { claims, .. } => claims.into_iter().map(|(resource, _)| resource).collect(),
        ClaimsEvent::Changed { changes, .. } => {
            changes.into_iter().filter(|change| change.claim.is_some()).map(|change| change.resource).collect()
        }
        _ => return None,
    };
    let slot = |resource: &Resource| if let Resource::Slot(slot) = resource { Some(*slot) } else { None };
    held.iter().filter_map(slot).max()
}

/// Which changes the other processes saw, and when.
pub(crate) struct Observers {
    shown: Receiver<(u32, Instant)>,
    /// Aborted when this is dropped.
    _watching: JoinSet<()>,
}

impl Observers {
    /// Follows the changes that each process sees; the first is the writer's own and does not count.
    fn of(processes: impl Iterator<Item = BoxStream<'static, u32>>) -> Self {
        let ((sender, shown), mut watching) = (channel(PROCESSES), JoinSet::new());
        for (process, mut changes) in processes.enumerate() {
            let sender = sender.clone();
            watching.spawn(async move {
                let mut last = 0;
                while let Some(change) = changes.next().await {
                    let is_new = change > last;
                    last = last.max(change);
                    if is_new && process > 0 && sender.send((change, Instant::now())).await.is_err() {
                        return;
                    }
                }
            });
        }
        Self { shown, _watching: watching }
    }

    /// Makes changes one after the other; returns, for each and each other process, how long it took until that process saw it.
    pub(crate) async fn times(&mut self, changes: u32, make: impl AsyncFn(u32)) -> Vec<Duration> {
        let mut took = Vec::new();
        for number in 1..=WARM_UP + changes {
            // Pauses of 20 to 59 ms, so that changes do not keep step with polls and renewals.
            sleep(Duration::from_millis(u64::from(20 + number * 7 % 40))).await;
            let begun = Instant::now();
            make(number).await;
            for _ in 1..PROCESSES {
                let shown = timeout(PATIENCE, self.shown.recv()).await;
                let (change, at) = shown.unwrap_or_else(|_| panic!("change {number} is not seen within {PATIENCE:?}")).unwrap();
                assert_eq!(change, number, "each is seen before the next is made");
                if number > WARM_UP {
                    took.push(at.duration_since(begun));
                }
            }
        }
        took
    }
}
