//! One task per owned key: started when the key is gained, cancelled when it is lost.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;

use shardwise_core::{Ownership, Rebalance, ShardKey};
use tokio::sync::watch;
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;

use super::enter::enter;
use super::run::Run;
use crate::membership::{OwnershipContext, Rebalances};
use crate::service::ShardingService;

impl ShardingService {
    /// Runs `work(key, cancel)` in a separate task for each key that is mine. The task starts when the key is gained; `cancel` is
    /// cancelled when it is lost. A key that is regained while its last task is still finishing waits for it, so that one process never
    /// works twice on one key.
    ///
    /// Work that ends by itself is not started again until the key is lost and regained. A panic in it is logged and counts as an end. A
    /// leaving service waits for cancelled work up to the policy's `drain_timeout`. [`OwnedRun::set_keys`] changes the keys.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn run_owned<K, F, W>(&self, keys: impl IntoIterator<Item = K>, work: F) -> OwnedRun<K>
    where
        K: ShardKey + Clone + Eq + Hash + Send + Sync + 'static,
        F: Fn(K, CancellationToken) -> W + Send + Sync + 'static,
        W: Future<Output = ()> + Send + 'static,
    {
        let keys = watch::Sender::new(Arc::new(keys.into_iter().collect::<HashSet<K>>()));
        let runner = |stop| OwnedRunner {
            rebalances: self.rebalances(),
            ownership: self.membership().changes(),
            context: Arc::clone(&self.membership().ownership_context),
            wanted: keys.subscribe(),
            stop,
            work: Arc::new(work),
            tasks: JoinSet::new(),
            keys_of: HashMap::new(),
            runs: HashMap::new(),
        };
        let run = Run::spawn(|stop| runner(stop).run());
        OwnedRun { keys, run }
    }
}

/// The tasks of one [`ShardingService::run_owned`]; dropping it cancels them.
pub struct OwnedRun<K> {
    keys: watch::Sender<Arc<HashSet<K>>>,
    run: Run,
}

impl<K: Eq + Hash> OwnedRun<K> {
    /// Replaces the keys: cancels work on removed keys, and starts work on new ones that are mine.
    pub fn set_keys(&self, keys: impl IntoIterator<Item = K>) {
        self.keys.send_replace(Arc::new(keys.into_iter().collect()));
    }

    /// Cancels all work and waits until it has finished.
    pub async fn stop(self) {
        self.run.stop().await;
    }
}

struct OwnedRunner<K, F> {
    rebalances: Rebalances,
    /// Not the service itself, which must be able to end while work runs.
    ownership: watch::Receiver<Arc<Ownership>>,
    context: Arc<OwnershipContext>,
    wanted: watch::Receiver<Arc<HashSet<K>>>,
    stop: CancellationToken,
    work: Arc<F>,
    tasks: JoinSet<()>,
    keys_of: HashMap<Id, K>,
    /// Each is running, or ended by itself while the key was held; or it is cancelled and still finishing.
    runs: HashMap<K, CancellationToken>,
}

impl<K, F, W> OwnedRunner<K, F>
where
    K: ShardKey + Clone + Eq + Hash + Send + Sync + 'static,
    F: Fn(K, CancellationToken) -> W + Send + Sync + 'static,
    W: Future<Output = ()> + Send + 'static,
{
    async fn run(mut self) {
        self.settle(None);
        loop {
            tokio::select! {
                () = self.stop.cancelled() => break,
                () = self.context.gone.cancelled() => break,
                Some(ended) = self.tasks.join_next_with_id() => self.ended(ended.map_or_else(|e| (e.id(), Some(e)), |(id, ())| (id, None))),
                rebalance = self.rebalances.recv() => match rebalance {
                    Some(rebalance) => self.settle(Some(&rebalance)),
                    None => break,
                },
                changed = self.wanted.changed() => match changed {
                    Ok(()) => self.settle(None),
                    Err(_) => break,
                },
            }
        }
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }

    fn ended(&mut self, (id, error): (Id, Option<tokio::task::JoinError>)) {
        if error.is_some_and(|error| error.is_panic()) {
            tracing::error!("work on an owned key panicked; it is started again when the key is lost and regained");
        }
        let Some(key) = self.keys_of.remove(&id) else { return };
        if self.runs.get(&key).is_some_and(CancellationToken::is_cancelled) {
            self.runs.remove(&key);
            let wanted = self.wanted.borrow().contains(&key);
            if wanted && self.ownership.borrow().owns_at(&key, self.context.clock.now()) {
                self.start(key);
            }
        }
    }

    /// Cancels work on keys that are lost, or were for a while, and starts work on keys that are mine and idle.
    fn settle(&mut self, rebalance: Option<&Rebalance>) {
        let wanted = Arc::clone(&self.wanted.borrow_and_update());
        let (ownership, now) = (Arc::clone(&self.ownership.borrow()), self.context.clock.now());
        for (key, cancel) in &self.runs {
            let lost = rebalance.is_some_and(|rebalance| rebalance.loses(key));
            if lost || !wanted.contains(key) || !ownership.owns_at(key, now) {
                cancel.cancel();
            }
        }
        // Work that had ended by itself has no task any more that could report its end.
        let tasks: HashSet<&K> = self.keys_of.values().collect();
        self.runs.retain(|key, cancel| !cancel.is_cancelled() || tasks.contains(key));
        let idle: Vec<K> = wanted.iter().filter(|key| ownership.owns_at(*key, now) && !self.runs.contains_key(*key)).cloned().collect();
        for key in idle {
            self.start(key);
        }
    }

    fn start(&mut self, key: K) {
        // A stop cancels the work of every key, which must not look like a key that was lost and regained.
        if self.stop.is_cancelled() {
            return;
        }
        // Lost again by now; the next rebalance reports it.
        let Ok(guard) = enter(&self.context, &key) else { return };
        let cancel = self.stop.child_token();
        // Another token for the work: what it does with it says nothing about the key.
        let (work, its_key, its_cancel) = (Arc::clone(&self.work), key.clone(), cancel.child_token());
        // The user's closure runs inside the task, so that a panic in it ends only that task.
        let task = self.tasks.spawn(self.context.in_flight.track_future(async move {
            let _guard = guard;
            work(its_key, its_cancel).await;
        }));
        self.keys_of.insert(task.id(), key.clone());
        self.runs.insert(key, cancel);
    }
}
