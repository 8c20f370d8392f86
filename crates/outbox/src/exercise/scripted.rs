//! A sink that follows a script and remembers what it received.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use crate::Delivery;
use crate::sink::{Acceptance, Refusal, Sink, SinkLimits};

/// The reply of a [`ScriptedSink`] to one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptedReply {
    /// Accepts the event.
    Accept,
    /// Refuses the event.
    Refuse(Refusal),
    /// Never answers. The events before it in the batch have still arrived.
    Hang,
}

type Script = dyn Fn(&Delivery) -> ScriptedReply + Send + Sync;

/// A sink that asks a closure about each event. Clones share the script and the received events.
#[derive(Clone)]
pub struct ScriptedSink {
    limits: SinkLimits,
    script: Arc<Script>,
    arrived: Arc<Mutex<Vec<Delivery>>>,
    tried: Arc<Mutex<Vec<Delivery>>>,
}

impl ScriptedSink {
    /// A sink that accepts what `script` accepts.
    pub fn new(script: impl Fn(&Delivery) -> ScriptedReply + Send + Sync + 'static) -> Self {
        Self { limits: SinkLimits::default(), script: Arc::new(script), arrived: Arc::default(), tried: Arc::default() }
    }

    /// A sink that accepts every event.
    pub fn accepting() -> Self {
        Self::new(|_| ScriptedReply::Accept)
    }

    /// The same sink with other limits.
    #[must_use]
    pub fn with_limits(self, limits: SinkLimits) -> Self {
        Self { limits, ..self }
    }

    /// The accepted events, in order, repetitions included.
    pub fn arrived(&self) -> Vec<Delivery> {
        self.arrived.lock().unwrap().clone()
    }

    /// Every event that was offered, accepted or not.
    pub fn tried(&self) -> Vec<Delivery> {
        self.tried.lock().unwrap().clone()
    }

    /// The answer, unless every event of the batch is accepted.
    fn answer(&self, batch: &[Delivery]) -> Option<Acceptance> {
        for (index, event) in batch.iter().enumerate() {
            self.tried.lock().unwrap().push(event.clone());
            match (self.script)(event) {
                ScriptedReply::Accept => self.arrived.lock().unwrap().push(event.clone()),
                ScriptedReply::Refuse(refusal) => return Some(Acceptance::up_to(index, refusal)),
                ScriptedReply::Hang => return None,
            }
        }
        Some(Acceptance::all(batch))
    }
}

impl std::fmt::Debug for ScriptedSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScriptedSink").field("limits", &self.limits).finish_non_exhaustive()
    }
}

#[async_trait]
impl Sink for ScriptedSink {
    fn name(&self) -> &'static str {
        "script"
    }

    fn limits(&self) -> SinkLimits {
        self.limits
    }

    async fn deliver(&self, batch: Arc<[Delivery]>) -> Acceptance {
        match self.answer(&batch) {
            Some(accepted) => accepted,
            None => std::future::pending().await,
        }
    }
}
