//! CloudEvents on standard output, one JSON line each.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use async_trait::async_trait;

use super::{Accepted, Refusal, Sink, encode};
use crate::Delivery;

/// Writes events to standard output, or to another stream. Accepted means handed to the operating system, not flushed to a disk.
#[derive(Clone)]
pub struct StdoutSink {
    name: &'static str,
    source: String,
    stream: Arc<Mutex<Box<dyn Write + Send>>>,
}

impl StdoutSink {
    /// Standard output; `source` is the CloudEvents attribute, say `/outbox/orders`.
    pub fn new(source: impl Into<String>) -> Self {
        Self { name: "stdout", ..Self::to(io::stdout(), source) }
    }

    /// Any other stream.
    pub fn to(stream: impl Write + Send + 'static, source: impl Into<String>) -> Self {
        Self { name: "stream", source: source.into(), stream: Arc::new(Mutex::new(Box::new(stream))) }
    }

    fn write(&self, batch: &[Delivery]) -> Accepted {
        let mut stream = match self.stream.try_lock() {
            Ok(stream) => stream,
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => {
                return Accepted::up_to(0, Refusal::retryable(format!("{}: nobody reads it; an earlier write waits", self.name)));
            }
        };
        let mut lines = Vec::with_capacity(batch.iter().map(|event| event.bytes() + 300).sum());
        batch.iter().for_each(|event| encode(event, &self.source, &mut lines));
        match stream.write_all(&lines).and_then(|()| stream.flush()) {
            Ok(()) => Accepted::all(batch),
            // How much arrived is unknown: the batch is repeated as a whole.
            Err(error) => Accepted::up_to(0, Refusal::retryable(format!("{}: {error}", self.name))),
        }
    }
}

impl fmt::Debug for StdoutSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StdoutSink").field("name", &self.name).field("source", &self.source).finish_non_exhaustive()
    }
}

#[async_trait]
impl Sink for StdoutSink {
    fn name(&self) -> &str {
        self.name
    }

    async fn deliver(&self, batch: Arc<[Delivery]>) -> Accepted {
        let sink = self.clone();
        match tokio::task::spawn_blocking(move || sink.write(&batch)).await {
            Ok(accepted) => accepted,
            Err(_) => Accepted::up_to(0, Refusal::retryable(format!("{}: the write did not finish", self.name))),
        }
    }
}
