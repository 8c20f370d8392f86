//! The course of the demo: publishers share the outbox, one is killed, one joins, and every delivery is checked.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use shardwise::{InstanceId, PlacementParams, SlotOwners, Weight};
use shardwise_outbox::{SlotHolder, SqliteStore};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::ledger::Ledger;
use super::show::DemoDisplay;
use super::stage::DemoStage;
use super::tail::FileTail;
use super::writer::EventWriter;
use crate::exit::{CliFailure, Code, Result};

/// How often the fence and the file are checked; also the precision of the measured times.
const POLL_EVERY: Duration = Duration::from_millis(20);
/// The time limit, beyond the TTL, of anything that should take a TTL.
const PATIENCE: Duration = Duration::from_mins(1);

pub(super) struct DemoRun {
    pub(super) stage: DemoStage,
    pub(super) store: SqliteStore,
    pub(super) ledger: Ledger,
    writer: EventWriter,
    tail: FileTail,
    show: DemoDisplay,
    placement: PlacementParams,
    ttl: Duration,
    /// The holder of each slot by the fence, at the last check.
    fence: Vec<Option<String>>,
    /// Publishers by incarnation, including dead ones.
    names: HashMap<String, String>,
    kill: FleetChange,
    join: FleetChange,
    /// When the last change of the fleet began or settled, or the last event was written.
    progressed: Instant,
}

/// A change of the fleet: not begun, begun and waiting for these slots, or done.
#[derive(PartialEq, Eq)]
enum FleetChange {
    Ahead,
    Begun { at: Instant, worker: String, slots: BTreeSet<u32> },
    Done(Duration),
}

pub(super) struct DemoTimings {
    pub(super) takeover: Duration,
    pub(super) handover: Duration,
    pub(super) elapsed: Duration,
}

impl DemoRun {
    pub(super) fn new(
        stage: DemoStage,
        store: SqliteStore,
        writer: EventWriter,
        show: DemoDisplay,
        placement: PlacementParams,
        ttl: Duration,
    ) -> Self {
        Self {
            tail: FileTail::of(stage.delivered_file()),
            stage,
            store,
            ledger: Ledger::default(),
            writer,
            show,
            placement,
            ttl,
            fence: vec![None; placement.slots as usize],
            names: HashMap::new(),
            kill: FleetChange::Ahead,
            join: FleetChange::Ahead,
            progressed: Instant::now(),
        }
    }

    /// Runs the demo; the workers have stopped when it returns.
    pub(super) async fn run(&mut self, workers: usize, shutdown: &CancellationToken) -> Result<DemoTimings> {
        for _ in 0..workers {
            let name = self.stage.start_worker()?;
            self.show.worker(&name);
        }
        self.until("every slot is held", shutdown, |run| run.fence.iter().all(Option::is_some)).await?;
        // Only for appearance: at the start every worker should have its share.
        let (owners, patient) = (self.owners()?, Instant::now() + self.ttl);
        self.until("every publisher has its share", shutdown, |run| {
            let placed = |slot: u32| owners.owner_of_slot(slot).map(InstanceId::as_str);
            Instant::now() > patient || (0u32..).zip(&run.fence).all(|(slot, holder)| holder.as_deref() == placed(slot))
        })
        .await?;
        self.show.line(format_args!("{workers} publishers share {} slots: {}", self.placement.slots, self.shares_line()));
        self.writer.start();
        let started = Instant::now();
        let is_written = |run: &Self| run.is_settled() && run.writer.written >= run.writer.planned;
        self.until("both changes have settled", shutdown, is_written).await?;
        self.until("everything is delivered", shutdown, |run| run.ledger.lost() == 0).await.or_else(|failure| {
            // Lost events are reported by the verdict and are not a failure here.
            if shutdown.is_cancelled() { Err(failure) } else { Ok(()) }
        })?;
        let elapsed = started.elapsed();
        self.stage.stop_all().await?;
        self.read_delivered()?;
        let (FleetChange::Done(takeover), FleetChange::Done(handover)) = (&self.kill, &self.join) else {
            return Err(CliFailure::new(Code::Unavailable, "the demo ended before both changes had settled"));
        };
        Ok(DemoTimings { takeover: *takeover, handover: *handover, elapsed })
    }

    /// Checks, writes due events, and calls `done` until it returns true. The time limit begins anew with each planned event and each
    /// change.
    async fn until(&mut self, what: &str, shutdown: &CancellationToken, done: impl Fn(&Self) -> bool) -> Result<()> {
        let mut tick = tokio::time::interval(POLL_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.progressed = Instant::now();
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = shutdown.cancelled() => return Err(CliFailure::new(Code::No, "interrupted")),
            }
            self.stage.check()?;
            self.poll().await?;
            let (before, go_on) = (self.writer.written, !self.is_settled());
            self.writer.write_due(&self.store, &mut self.ledger, go_on).await?;
            // What exceeds the plan only waits for a change to settle.
            if self.writer.written != before && before < self.writer.planned {
                self.progressed = Instant::now();
            }
            self.read_delivered()?;
            self.act().await?;
            self.show.update(&self.shares(), self.ledger.delivered, self.writer.planned);
            if done(self) {
                return Ok(());
            }
            if self.progressed.elapsed() > self.ttl + PATIENCE {
                let late = format!("not within {:?}: {what}; try fewer --workers or a longer --ttl", self.ttl + PATIENCE);
                return Err(CliFailure::new(Code::No, late));
            }
        }
    }

    /// Whether both changes have settled.
    fn is_settled(&self) -> bool {
        matches!((&self.kill, &self.join), (FleetChange::Done(_), FleetChange::Done(_)))
    }

    /// Kills a worker at a third of the events, starts another at two thirds, and notices when each change has settled.
    async fn act(&mut self) -> Result<()> {
        let (written, planned) = (self.writer.written, self.writer.planned);
        if self.kill == FleetChange::Ahead && written * 3 >= planned && written > 0 {
            let victim = self.stage.workers().next().map(str::to_owned).unwrap_or_default();
            let slots: BTreeSet<u32> = (0u32..).zip(&self.fence).filter(|(_, h)| h.as_deref() == Some(&*victim)).map(|(s, _)| s).collect();
            self.show.line(format_args!("{victim} gets SIGKILL; it held {} slots", slots.len()));
            self.progressed = Instant::now();
            self.kill = FleetChange::Begun { at: self.progressed, worker: victim.clone(), slots };
            self.stage.kill(&victim).await?;
            self.show.killed(&victim);
        }
        // Not before the takeover is over: the new worker would wait for the killed worker's slots too, which would not be a handover.
        let taken_over =
            matches!(self.kill, FleetChange::Done(_)) || (self.kill != FleetChange::Ahead && self.stage.workers().next().is_none());
        if self.join == FleetChange::Ahead && written * 3 >= planned * 2 && taken_over {
            self.progressed = Instant::now();
            let newcomer = self.stage.start_worker()?;
            self.show.worker(&newcomer);
            self.show.line(format_args!("{newcomer} joins"));
            let slots = self.owners()?.slots_of(&member(&newcomer)?).iter().collect();
            self.join = FleetChange::Begun { at: self.progressed, worker: newcomer, slots };
        }
        let held_by = |slot: &u32| self.fence.get(*slot as usize).and_then(Option::as_deref);
        if let FleetChange::Begun { at, worker, slots } = &self.kill
            && slots.iter().all(|slot| held_by(slot).is_some_and(|holder| holder != worker))
        {
            let (took, slots, shares) = (at.elapsed(), slots.len(), self.shares_line());
            self.show.line(format_args!("{worker}'s {slots} slots taken over after {} ms: {shares}", took.as_millis()));
            self.kill = FleetChange::Done(took);
            self.progressed = Instant::now();
        }
        if let FleetChange::Begun { at, worker, slots } = &self.join
            && slots.iter().all(|slot| held_by(slot) == Some(&**worker))
        {
            let (took, slots, shares) = (at.elapsed(), slots.len(), self.shares_line());
            self.show.line(format_args!("{worker} holds its {slots} slots {} ms after its start: {shares}", took.as_millis()));
            self.join = FleetChange::Done(took);
            self.progressed = Instant::now();
        }
        Ok(())
    }

    /// The placement of the running workers.
    fn owners(&self) -> Result<SlotOwners> {
        let members = self.stage.workers().map(|name| Ok((member(name)?, Weight::ONE))).collect::<Result<Vec<_>>>()?;
        Ok(SlotOwners::place(members, self.placement))
    }

    async fn poll(&mut self) -> Result<()> {
        for SlotHolder { slot, incarnation, publisher, .. } in self.store.holders().await? {
            let name = incarnation.and_then(|incarnation| match publisher {
                Some(name) => Some(self.names.entry(incarnation).or_insert(name).clone()),
                None => self.names.get(&incarnation).cloned(),
            });
            if let Some(holder) = self.fence.get_mut(slot as usize) {
                *holder = name;
            }
        }
        Ok(())
    }

    fn read_delivered(&mut self) -> Result<()> {
        let read = self.tail.read(|event| {
            self.ledger.delivered(&event.id);
            if let Some(Some(holder)) = self.fence.get(event.slot as usize) {
                self.show.delivered_by(holder);
            }
        });
        read.map_err(|error| CliFailure::io("read the delivered file", &error))
    }

    fn shares(&self) -> BTreeMap<String, u32> {
        self.fence.iter().flatten().fold(BTreeMap::new(), |mut shares, holder| {
            *shares.entry(holder.clone()).or_default() += 1;
            shares
        })
    }

    fn shares_line(&self) -> String {
        self.shares().iter().map(|(name, slots)| format!("{name} {slots}")).collect::<Vec<_>>().join(", ")
    }
}

fn member(worker: &str) -> Result<InstanceId> {
    InstanceId::new(worker).map_err(|error| CliFailure::usage(error.to_string()))
}
