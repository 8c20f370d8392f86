//! Where the events go, and how what arrives there comes into a file like that of the file sink.

mod jetstream;
mod kafka;
mod rabbitmq;
mod redis;
mod webhook;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Handle, Runtime};

/// The time limit until what has arrived is in the file.
pub(crate) const COPIED_WITHIN: Duration = Duration::from_mins(2);

/// A server that events are sent to.
pub(crate) trait Destination {
    /// Its lines of an outbox's settings.
    fn settings(&self) -> String;

    /// From now on appends each event that arrives to this file, as a line; those of an aggregate in their order.
    fn copy_to(&self, runtime: &Runtime, path: PathBuf);

    /// Whether all that has arrived is in the file.
    fn is_copied(&self, runtime: &Runtime) -> bool;

    /// Whether it drops repeated events.
    fn drops_repeats(&self) -> bool {
        false
    }

    /// Kills the server and starts it again every few seconds, until [`Self::be_calm`]; the thread returns how often. `None` if it is
    /// never killed.
    fn kill_often(&self, _: Handle) -> Option<JoinHandle<u64>> {
        None
    }

    fn be_calm(&self) {}
}

/// The destination of that name; the file sink needs none.
pub(crate) async fn start(sink: &str) -> Option<Box<dyn Destination>> {
    Some(match sink {
        "file" => return None,
        "JetStream" => Box::new(jetstream::JetStream::start().await),
        "Kafka" => Box::new(kafka::Kafka::start().await),
        "RabbitMQ" => Box::new(rabbitmq::Queue::start().await),
        "Redis" => Box::new(redis::RedisStream::start().await),
        "webhook" => Box::new(webhook::Webhook::start().await),
        other => panic!("no sink is called {other}"),
    })
}

/// The file of copied events.
struct Copy(File);

impl Copy {
    fn create(path: impl AsRef<Path>) -> Self {
        Self(File::create(path).unwrap())
    }

    /// One write for each event, because another thread reads the file meanwhile.
    fn append(&mut self, event: &[u8]) {
        self.0.write_all(&[event, b"\n"].concat()).unwrap();
    }
}
