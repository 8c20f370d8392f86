//! Our publisher, one process each, with a sink that accepts everything at once, one that accepts everything except poison, `JetStream`,
//! or Kafka.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use shardwise::Sharding as _;
use shardwise_outbox::sink::{Acceptance, KafkaConfig, KafkaSink, NatsConfig, NatsSink, Refusal, Template};
use shardwise_outbox::{Delivery, OutboxPublisher, PostgresConfig, PostgresStore, PublisherOptions, Sink};
use sqlx::{Connection as _, PgConnection};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::bare_kafka;
use crate::shared::share::Share;

/// The variable that makes this program a publisher: the address of its database, its number, the number of publishers, and the sink.
const PUBLISHER: &str = "SHARDWISE_OUTBOX_PUBLISHER";

pub(crate) fn is_publisher() -> bool {
    std::env::var_os(PUBLISHER).is_some()
}

/// Accepts everything at once.
struct NoSink;

#[async_trait]
impl Sink for NoSink {
    fn name(&self) -> &'static str {
        "nowhere"
    }

    async fn deliver(&self, batch: Arc<[Delivery]>) -> Acceptance {
        Acceptance::all(&batch)
    }
}

/// One in this many aggregates has only events that are always refused.
pub(crate) const POISON_ONE_IN: u64 = 100;

/// Accepts everything at once except poison, which is refused as retryable.
struct PoisonedSink;

#[async_trait]
impl Sink for PoisonedSink {
    fn name(&self) -> &'static str {
        "poisoned"
    }

    async fn deliver(&self, batch: Arc<[Delivery]>) -> Acceptance {
        let poison = batch.iter().filter(|event| event.aggregate_id.parse::<u64>().unwrap() % POISON_ONE_IN == 0);
        let apart = poison.map(|event| (event.aggregate, (0, Some(Refusal::retryable("cannot digest")))));
        let apart: BTreeMap<_, _> = apart.collect();
        Acceptance::all_but(&batch, apart)
    }
}

/// The publisher's process: prints "ready" once it is registered, receives its slots at a byte on stdin, prints the number of delivered
/// and marked events whenever it changes, and ends when stdin does.
pub(crate) async fn publisher() {
    let arguments = std::env::var(PUBLISHER).unwrap();
    let [number, of, sink, url] = arguments.splitn(4, ' ').collect::<Vec<_>>().try_into().unwrap();
    let store = PostgresStore::open(PostgresConfig::from_url(url).unwrap()).await.unwrap();
    let share = Share::new(number.parse().unwrap(), of.parse().unwrap());
    // Marked rows stay, as they do by default.
    let options = PublisherOptions::default();
    let sink: Arc<dyn Sink> = match sink {
        "nowhere" => Arc::new(NoSink),
        "poisoned" => Arc::new(PoisonedSink),
        brokers if brokers.starts_with("kafka://") => {
            let mut config = KafkaConfig::from_url(brokers, "/bench").unwrap();
            config.topic = Template::parse(bare_kafka::TOPIC).unwrap();
            Arc::new(KafkaSink::new(config).unwrap())
        }
        address => {
            let mut config = NatsConfig::from_url(address, "/bench").unwrap();
            config.create = true;
            Arc::new(NatsSink::new(config).unwrap())
        }
    };
    let publisher = OutboxPublisher::new(Arc::new(store), sink, Arc::new(share.clone())).unwrap().options(options).unwrap();
    let (stats, shutdown) = (publisher.stats(), CancellationToken::new());
    let task = tokio::spawn(publisher.run(shutdown.clone()));
    // Connect before the clock starts, as the other contestants do.
    let mut conn = PgConnection::connect(url).await.unwrap();
    let registered = || {
        sqlx::query_scalar::<_, bool>("SELECT EXISTS (SELECT 1 FROM outbox_publisher WHERE publisher = $1)")
            .bind(share.instance_id().as_str())
    };
    while !registered().fetch_one(&mut conn).await.unwrap() {
        assert!(!task.is_finished(), "it ended before it was registered");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    conn.close().await.unwrap();
    println!("ready");
    let mut stdin = tokio::io::stdin();
    stdin.read_u8().await.unwrap();
    share.begin();
    let stop = shutdown.clone();
    tokio::spawn(async move {
        let _ = stdin.read_u8().await;
        stop.cancel();
    });
    let mut delivered = 0;
    while !task.is_finished() {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let now = stats.snapshot().delivered;
        if now != delivered {
            delivered = now;
            println!("{delivered}");
        }
    }
    task.await.unwrap().unwrap();
}

struct Process {
    child: Child,
    lines: tokio::io::Lines<BufReader<ChildStdout>>,
}

async fn start(url: &str, sink: &str, number: u32, of: u32) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(PUBLISHER, format!("{number} {of} {sink} {url}")).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("ready"));
    Process { child, lines }
}

/// Seconds from the moment when the publishers receive their slots to the last event marked.
pub(crate) async fn drain(url: &str, sink: &str, publishers: u32, events: u64) -> f64 {
    let mut processes = Vec::new();
    for number in 0..publishers {
        processes.push(start(url, sink, number, publishers).await);
    }
    let begun = Instant::now();
    for process in &mut processes {
        process.child.stdin.as_mut().unwrap().write_all(b"!").await.unwrap();
    }
    let counts: Vec<_> = processes.iter().map(|_| watch::Sender::new(0)).collect();
    let (mut children, mut readers) = (Vec::new(), tokio::task::JoinSet::new());
    for (Process { child, mut lines }, count) in processes.into_iter().zip(counts.iter().cloned()) {
        children.push(child);
        readers.spawn(async move {
            while let Some(line) = lines.next_line().await.unwrap() {
                count.send_replace(line.parse::<u64>().unwrap());
            }
        });
    }
    while counts.iter().map(|count| *count.borrow()).sum::<u64>() < events {
        assert_eq!(readers.len(), publishers as usize);
        assert!(readers.try_join_next().is_none(), "a publisher ended by itself");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = begun.elapsed().as_secs_f64();
    for mut child in children {
        drop(child.stdin.take());
        assert!(child.wait().await.unwrap().success());
    }
    took
}
