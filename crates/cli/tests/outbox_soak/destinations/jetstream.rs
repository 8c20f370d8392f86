//! A stream that drops duplicates, copied into a file like that of the file sink.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::pull::OrderedConfig;
use async_nats::jetstream::stream::{Config, Stream};
use futures::StreamExt as _;
use shardwise_testkit::{Nats, NatsOptions};
use tokio::runtime::Runtime;

use super::{Copy, Destination};

const STREAM: &str = "soak";

pub(crate) struct JetStream {
    server: Nats,
    stream: Stream,
    copied: Arc<AtomicU64>,
}

impl JetStream {
    pub(crate) async fn start() -> Self {
        let server = Nats::start(NatsOptions::default()).await.unwrap();
        let client = async_nats::ConnectOptions::new().retry_on_initial_connect().connect(server.address()).await.unwrap();
        let settings = Config {
            name: STREAM.into(),
            subjects: vec![format!("{STREAM}.>")],
            // Longer than any run: repeated events are dropped, however late.
            duplicate_window: Duration::from_hours(2),
            ..Config::default()
        };
        let mut context = async_nats::jetstream::new(client);
        // The default is five seconds, and the machine is busy.
        context.set_timeout(Duration::from_mins(1));
        let stream = context.create_stream(settings).await.unwrap();
        Self { server, stream, copied: Arc::default() }
    }
}

impl Destination for JetStream {
    fn settings(&self) -> String {
        format!(
            "sink = \"{}\"\nsink_stream = \"{STREAM}\"\nsink_to = \"{STREAM}.{{aggregatetype}}.{{aggregateid}}\"\nsink_format = \"structured\"\n",
            self.server.address()
        )
    }

    fn copy_to(&self, runtime: &Runtime, path: PathBuf) {
        let mut copy = Copy::create(path);
        let (stream, copied) = (self.stream.clone(), Arc::clone(&self.copied));
        runtime.spawn(async move {
            let consumer = stream.create_consumer(OrderedConfig::default()).await.unwrap();
            let mut messages = consumer.messages().await.unwrap();
            while let Some(message) = messages.next().await {
                copy.append(&message.unwrap().payload);
                copied.fetch_add(1, Ordering::SeqCst);
            }
        });
    }

    fn is_copied(&self, runtime: &Runtime) -> bool {
        let messages = runtime.block_on(self.stream.get_info()).unwrap().state.messages;
        self.copied.load(Ordering::SeqCst) >= messages
    }

    fn drops_repeats(&self) -> bool {
        true
    }
}
