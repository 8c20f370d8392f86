//! One task per held slot, under exclusive ownership.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::Arc;

use shardwise_core::{Epoch, Ownership, Resource};
use tokio::sync::watch;
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;

use super::enter::enter_claim;
use super::run::Run;
use crate::membership::OwnershipContext;
use crate::service::ShardingService;

impl ShardingService {
    /// Runs `work(slot, epoch, cancel)` in a separate task for each slot that this worker holds. The task starts when the slot is
    /// claimed; `cancel` is cancelled when the slot must be handed over or is lost. The slot moves once the task has ended. After
    /// `drain_timeout` the task is dropped where it awaits.
    ///
    /// Work that ends by itself is not started again before the slot is held under another epoch. A panic is logged and counts as an end.
    /// Under eventual ownership no slot is held, and nothing ever runs.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn slots<F, W>(&self, work: F) -> Run
    where
        F: Fn(u32, Epoch, CancellationToken) -> W + Send + Sync + 'static,
        W: Future<Output = ()> + Send + 'static,
    {
        let runner = |stop| SlotsRunner {
            context: Arc::clone(&self.membership().ownership_context),
            ownership: self.membership().changes(),
            stop,
            work: Arc::new(work),
            tasks: JoinSet::new(),
            slots: HashMap::new(),
            begun: HashMap::new(),
        };
        Run::spawn(|stop| runner(stop).run())
    }
}

struct SlotsRunner<F> {
    context: Arc<OwnershipContext>,
    ownership: watch::Receiver<Arc<Ownership>>,
    stop: CancellationToken,
    work: Arc<F>,
    /// Each returns whether it was asked to finish.
    tasks: JoinSet<bool>,
    /// The slot of each task.
    slots: HashMap<Id, u32>,
    /// The epoch under which work was last started in each slot that is held.
    begun: HashMap<u32, Epoch>,
}

impl<F, W> SlotsRunner<F>
where
    F: Fn(u32, Epoch, CancellationToken) -> W + Send + Sync + 'static,
    W: Future<Output = ()> + Send + 'static,
{
    async fn run(mut self) {
        self.settle();
        loop {
            tokio::select! {
                () = self.stop.cancelled() => break,
                () = self.context.gone.cancelled() => break,
                Some(ended) = self.tasks.join_next_with_id() => match ended {
                    Ok((id, asked)) => self.ended(id, asked),
                    Err(error) => {
                        tracing::error!("work in a held slot panicked; it is begun again when the slot is lost and regained");
                        self.ended(error.id(), false);
                    }
                },
                changed = self.ownership.changed() => match changed {
                    Ok(()) => self.settle(),
                    Err(_) => break,
                },
            }
        }
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }

    fn ended(&mut self, id: Id, asked: bool) {
        let Some(slot) = self.slots.remove(&id) else { return };
        if asked {
            // If the slot was kept after all, it is held under the same epoch.
            self.begun.remove(&slot);
        }
        self.settle();
    }

    /// Starts work in slots that are held and idle.
    fn settle(&mut self) {
        let ownership = Arc::clone(&self.ownership.borrow_and_update());
        let held: HashMap<u32, Epoch> = ownership.fences().map(|fence| (fence.slot, fence.epoch)).collect();
        self.begun.retain(|slot, epoch| held.get(slot) == Some(epoch));
        // One process never works twice in one slot.
        let busy: HashSet<u32> = self.slots.values().copied().collect();
        let new: Vec<u32> = held.into_keys().filter(|slot| !busy.contains(slot) && !self.begun.contains_key(slot)).collect();
        for slot in new {
            self.begin(slot);
        }
    }

    fn begin(&mut self, slot: u32) {
        // Lost again by now; the next snapshot reports it.
        let Ok(guard) = enter_claim(&self.context, &Resource::Slot(slot)) else { return };
        let Some(fence) = guard.fence() else { return };
        let (work, cancel, stop) = (Arc::clone(&self.work), CancellationToken::new(), self.stop.clone());
        let task = self.tasks.spawn(self.context.in_flight.track_future(async move {
            let its_cancel = cancel.clone();
            let work = async move { work(fence.slot, fence.epoch, its_cancel).await };
            let ends = async {
                tokio::select! {
                    () = guard.finish() => cancel.cancel(),
                    () = stop.cancelled() => cancel.cancel(),
                }
                guard.lost().await;
            };
            tokio::select! {
                () = work => {}
                () = ends => {}
            }
            // Asked through the guard, not because the whole run is stopped.
            guard.is_asked_to_finish()
        }));
        self.slots.insert(task.id(), slot);
        self.begun.insert(slot, fence.epoch);
    }
}
