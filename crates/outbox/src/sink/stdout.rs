//! `CloudEvents` on standard output, one JSON line each.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::{Acceptance, Refusal, Sink, Turns, encode};
use crate::Delivery;

/// Writes events to standard output, or to another stream. Accepted means handed to the operating system, not flushed to a disk.
#[derive(Clone)]
pub struct StdoutSink {
    name: &'static str,
    source: String,
    stream: Arc<Mutex<Box<dyn Write + Send>>>,
    turns: Turns,
}

impl StdoutSink {
    /// Writes to standard output; `source` is the `CloudEvents` attribute, such as `/outbox/orders`.
    pub fn new(source: impl Into<String>) -> Self {
        Self { name: "stdout", ..Self::to(io::stdout(), source) }
    }

    /// Writes to any other stream.
    pub fn to(stream: impl Write + Send + 'static, source: impl Into<String>) -> Self {
        Self { name: "stream", source: source.into(), stream: Arc::new(Mutex::new(Box::new(stream))), turns: Turns::default() }
    }

    fn write(&self, batch: &[Delivery]) -> Acceptance {
        let mut lines = Vec::with_capacity(batch.iter().map(|event| event.bytes() + 300).sum());
        for event in batch {
            encode(event, &self.source, &mut lines);
        }
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        match stream.write_all(&lines).and_then(|()| stream.flush()) {
            Ok(()) => Acceptance::all(batch),
            // How much arrived is unknown, so the whole batch is repeated.
            Err(error) => Acceptance::up_to(0, Refusal::retryable(format!("{}: {error}", self.name))),
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

    async fn deliver(&self, batch: Arc<[Delivery]>) -> Acceptance {
        let sink = self.clone();
        self.turns.write(self.name, move || sink.write(&batch)).await
    }
}
