//! A Kafka broker with TLS and a login that is killed every few seconds, whose topic is copied into a file like that of the file sink.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Message as _;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaErrorCode;
use shardwise_outbox::sink::{KafkaConfig, KafkaSink, Template};
use shardwise_outbox::{ErrorKind, Sink as _};
use shardwise_testkit::{Authority, Nisshi, NisshiOptions};
use sqlx::Connection as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use tempfile::TempDir;
use tokio::runtime::{Handle, Runtime};

use super::{Copy, Destination};

const TOPIC: &str = "soak";
const PARTITIONS: u32 = 4;
const USER: &str = "publisher";
const PASSWORD: &str = "hush-soak";
const KILLED_EVERY: Duration = Duration::from_secs(7);
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

pub(crate) struct Kafka {
    server: Arc<Nisshi>,
    authority: Authority,
    /// With the file of the password.
    folder: TempDir,
    copied: Arc<AtomicI64>,
    calm: Arc<AtomicBool>,
}

impl Kafka {
    pub(crate) async fn start() -> Self {
        let (authority, folder) = (Authority::new().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(folder.path().join("password"), PASSWORD).unwrap();
        let options = NisshiOptions::default().with_topic(TOPIC, PARTITIONS).with_tls(&authority.server().unwrap());
        let server = Nisshi::start(options.with_user(USER, PASSWORD)).await.unwrap();
        index_headers(&server).await;
        Self { server: Arc::new(server), authority, folder, copied: Arc::default(), calm: Arc::default() }
    }

    fn address(&self) -> String {
        format!("kafkas://{USER}@{}", self.server.brokers())
    }

    fn consumer(&self) -> BaseConsumer {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.server.brokers().to_string()).set("group.id", "soak").set("enable.auto.commit", "false");
        config.set("security.protocol", "sasl_ssl").set("ssl.ca.location", self.authority.file().to_str().unwrap());
        config.set("sasl.mechanism", "SCRAM-SHA-512").set("sasl.username", USER).set("sasl.password", PASSWORD);
        config.set("reconnect.backoff.max.ms", "500").set("isolation.level", "read_uncommitted");
        // What the broker cannot read within this time it reads event by event, each time with a look at all that wait.
        config.set("fetch.wait.max.ms", "500");
        // The next request waits for this long while there are events to copy; else requests would keep the broker busy.
        config.set("queued.min.messages", "1").set("fetch.queue.backoff.ms", "20");
        // By default it would go on at the end, and what is between would seem lost by the sink.
        config.set("auto.offset.reset", "error");
        config.create().unwrap()
    }
}

/// The broker looks for the headers of each event that it hands out, and without an index in those of all events.
async fn index_headers(server: &Nisshi) {
    let options = SqliteConnectOptions::new().filename(server.file());
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    sqlx::query("CREATE INDEX header_of_record ON header (topition, offset_id)").execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

impl Destination for Kafka {
    fn settings(&self) -> String {
        format!(
            "sink = \"{}\"\nsink_to = \"{TOPIC}\"\nsink_format = \"structured\"\nsink_timeout = \"2s\"\nsink_ca_file = \"{}\"\n\
             sink_password_file = \"{}\"\n",
            self.address(),
            self.authority.file().display(),
            self.folder.path().join("password").display()
        )
    }

    fn copy_to(&self, _: &Runtime, path: PathBuf) {
        let mut copy = Copy::create(path);
        let (consumer, copied) = (self.consumer(), Arc::clone(&self.copied));
        let mut assignment = TopicPartitionList::new();
        for partition in 0..i32::try_from(PARTITIONS).unwrap() {
            assignment.add_partition_offset(TOPIC, partition, Offset::Beginning).unwrap();
        }
        consumer.assign(&assignment).unwrap();
        std::thread::spawn(move || {
            loop {
                match consumer.poll(Duration::from_millis(100)) {
                    Some(Ok(message)) => {
                        copy.append(message.payload().unwrap());
                        copied.fetch_add(1, Ordering::SeqCst);
                    }
                    // Another failure is a broker that was killed; the consumer connects again.
                    Some(Err(error)) => {
                        let code = error.rdkafka_error_code();
                        assert_ne!(code, Some(RDKafkaErrorCode::AutoOffsetReset), "the broker has lost messages: {error}");
                    }
                    None => {}
                }
            }
        });
    }

    fn kill_often(&self, runtime: Handle) -> Option<JoinHandle<u64>> {
        let (server, calm) = (Arc::clone(&self.server), Arc::clone(&self.calm));
        Some(std::thread::spawn(move || {
            let mut kills = 0;
            loop {
                std::thread::sleep(KILLED_EVERY);
                if calm.load(Ordering::SeqCst) {
                    return kills;
                }
                runtime.block_on(server.restart()).unwrap();
                kills += 1;
            }
        }))
    }

    fn be_calm(&self) {
        self.calm.store(true, Ordering::SeqCst);
    }

    fn is_copied(&self, _: &Runtime) -> bool {
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

/// The mock cluster of the other tests has neither TLS nor users.
#[test]
#[ignore = "compiles a broker, which takes many minutes: cargo xtask soak outbox-kafka"]
fn a_wrong_password_and_an_unknown_authority_are_denied_by_a_real_broker() {
    Runtime::new().unwrap().block_on(async {
        let (kafka, stranger) = (Kafka::start().await, Authority::new().unwrap());
        let sink = |password: &str, ca: PathBuf| {
            let mut config = KafkaConfig::from_url(&kafka.address(), "/soak").unwrap().password(password);
            config.topic = Template::parse(TOPIC).unwrap();
            config.tls.ca = Some(ca);
            KafkaSink::new(config).unwrap()
        };
        sink(PASSWORD, kafka.authority.file()).check().await.unwrap();
        let wrong = [("not-hush", kafka.authority.file(), "does not accept this user"), (PASSWORD, stranger.file(), "correct the address")];
        for (password, ca, expected) in wrong {
            let error = sink(password, ca).check().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            assert!(error.to_string().contains(expected), "{error}");
        }
    });
}
