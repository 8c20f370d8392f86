//! One worker of a test, which can be paused and killed.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use shardwise_core::{Member, Ownership, Policy, ServiceState, SlotSet, Timing};
use shardwise_discovery::{Clock, Discovery};
use tokio::task::AbortHandle;

use crate::error::locked;
use crate::service::{ShardingService, Spawn};
use crate::settings::PolicySettings;

/// A worker over a test's backend and clock, which can be paused and killed.
pub struct TestWorker {
    service: ShardingService,
    gate: Gate,
}

impl TestWorker {
    /// A worker with this record that has not joined yet.
    pub fn new(policy: Policy, timing: Timing, member: Member, backend: Arc<dyn Discovery>, clock: Clock) -> Self {
        Self::with_settings(&PolicySettings { timing, ..PolicySettings::new(policy) }, member, backend, clock)
    }

    /// The same with all settings of a policy, but for its discovery.
    pub fn with_settings(settings: &PolicySettings, member: Member, backend: Arc<dyn Discovery>, clock: Clock) -> Self {
        let gate = Gate::default();
        Self { service: ShardingService::joining(gate.spawner(), settings, member, backend, clock, None), gate }
    }

    /// Its service.
    pub const fn service(&self) -> &ShardingService {
        &self.service
    }

    /// Dies as by SIGKILL: its driver and its work in `run_owned`, `slots` and singletons end, and nothing is deregistered. Tasks that
    /// your test started itself continue; its service owns nothing.
    pub fn kill(&self) {
        self.gate.kill();
        let membership = self.service.membership();
        let (nothing, view) = (SlotSet::empty(self.service.ownership().slots().slots()), self.service.members());
        membership.publish(Arc::new(Ownership::fixed(ServiceState::Left, nothing, view, membership.clock.now())));
        membership.gone.cancel();
    }

    /// Stops as by SIGSTOP: its driver does nothing and does not notice that time passes. Its answers to your test are those that it
    /// would give at its first instruction after [`TestWorker::resume`].
    pub fn pause(&self) {
        self.gate.set_paused(true);
    }

    /// Continues.
    pub fn resume(&self) {
        self.gate.set_paused(false);
    }
}

/// Blocks a driver while its worker is paused, and ends it when the worker is killed.
#[derive(Clone, Default)]
struct Gate(Arc<Mutex<GateState>>);

#[derive(Default)]
struct GateState {
    paused: bool,
    waker: Option<Waker>,
    task: Option<AbortHandle>,
}

impl Gate {
    fn with<T>(&self, f: impl FnOnce(&mut GateState) -> T) -> T {
        f(&mut locked(&self.0))
    }

    fn spawner(&self) -> Spawn {
        let (gate, inside) = (self.clone(), self.clone());
        Box::new(move |mut driver| {
            let gated = poll_fn(move |context| {
                let paused = inside.with(|state| {
                    state.waker = Some(context.waker().clone());
                    state.paused
                });
                if paused { Poll::Pending } else { driver.as_mut().poll(context) }
            });
            let task = tokio::spawn(gated).abort_handle();
            gate.with(|state| state.task = Some(task));
        })
    }

    fn set_paused(&self, paused: bool) {
        let waker = self.with(|state| {
            state.paused = paused;
            state.waker.take()
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn kill(&self) {
        if let Some(task) = self.with(|state| state.task.take()) {
            task.abort();
        }
    }
}
