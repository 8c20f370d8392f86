//! A Kafka broker that is killed every few seconds, whose topic is copied into a file like that of the file sink.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Message as _;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use shardwise_testkit::{Tansu, TansuOptions};
use tokio::runtime::Handle;

const TOPIC: &str = "soak";
const PARTITIONS: u32 = 4;
const KILLED_EVERY: Duration = Duration::from_secs(7);
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

pub(crate) struct Kafka {
    server: Arc<Tansu>,
    brokers: String,
    copied: Arc<AtomicI64>,
    calm: Arc<AtomicBool>,
}

impl Kafka {
    pub(crate) async fn start() -> Self {
        let server = Tansu::start(TansuOptions::default().with_topic(TOPIC, PARTITIONS)).await.unwrap();
        let brokers = server.socket_addr().to_string();
        Self { server: Arc::new(server), brokers, copied: Arc::default(), calm: Arc::default() }
    }

    pub(crate) fn settings(&self) -> String {
        format!("sink = \"kafka://{}\"\nsink_to = \"{TOPIC}\"\nsink_format = \"structured\"\nsink_timeout = \"2s\"\n", self.brokers)
    }

    fn consumer(&self) -> BaseConsumer {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers).set("group.id", "soak").set("enable.auto.commit", "false");
        config.set("reconnect.backoff.max.ms", "500").set("fetch.wait.max.ms", "20");
        config.create().unwrap()
    }

    /// Appends each message of the topic to a file, as a line; those of one partition in order.
    pub(crate) fn copy_to(&self, path: PathBuf) {
        let mut file = std::fs::File::create(path).unwrap();
        let (consumer, copied) = (self.consumer(), Arc::clone(&self.copied));
        let mut assignment = TopicPartitionList::new();
        for partition in 0..i32::try_from(PARTITIONS).unwrap() {
            assignment.add_partition_offset(TOPIC, partition, Offset::Beginning).unwrap();
        }
        consumer.assign(&assignment).unwrap();
        std::thread::spawn(move || {
            loop {
                // A failure is a broker that was killed; the consumer connects again.
                let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) else { continue };
                let mut line = message.payload().unwrap().to_vec();
                line.push(b'\n');
                file.write_all(&line).unwrap();
                copied.fetch_add(1, Ordering::SeqCst);
            }
        });
    }

    /// Kills the broker and starts it again, until [`Self::be_calm`]. Returns how often, once it has ended.
    pub(crate) fn kill_often(&self, runtime: Handle) -> JoinHandle<u64> {
        let (server, calm) = (Arc::clone(&self.server), Arc::clone(&self.calm));
        std::thread::spawn(move || {
            let mut kills = 0;
            loop {
                std::thread::sleep(KILLED_EVERY);
                if calm.load(Ordering::SeqCst) {
                    return kills;
                }
                runtime.block_on(server.restart()).unwrap();
                kills += 1;
            }
        })
    }

    pub(crate) fn be_calm(&self) {
        self.calm.store(true, Ordering::SeqCst);
    }

    /// Whether all messages of the topic are in the file.
    pub(crate) fn is_copied(&self) -> bool {
        let consumer = self.consumer();
        let mut all = 0;
        for partition in 0..i32::try_from(PARTITIONS).unwrap() {
            // A broker that has just started may not answer yet.
            let Ok((low, high)) = consumer.fetch_watermarks(TOPIC, partition, ANSWER_WITHIN) else { return false };
            all += high - low;
        }
        self.copied.load(Ordering::SeqCst) >= all
    }
}
