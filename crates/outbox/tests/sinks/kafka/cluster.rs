//! librdkafka's mock cluster, and a consumer of it. It keeps the order of what it accepts, and drops no repetitions of an idempotent
//! producer.
#![allow(dead_code, reason = "the benchmark uses a part of it")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::net::TcpSocket;

/// The time limit of reading a topic.
const READ_WITHIN: Duration = Duration::from_mins(1);
const PORT_WITHIN: Duration = Duration::from_mins(1);

pub(crate) type Mock = MockCluster<'static, DefaultProducerContext>;
type Order = Box<dyn FnOnce(&Mock) + Send>;

/// A mock cluster on a thread of its own, because it cannot move between threads.
pub(crate) struct Cluster {
    orders: mpsc::Sender<Order>,
    /// `host:port,host:port`.
    pub(crate) brokers: String,
}

impl Cluster {
    pub(crate) fn start(brokers: i32) -> Self {
        let (orders, received) = mpsc::channel::<Order>();
        let (started, address) = mpsc::channel();
        std::thread::spawn(move || {
            let mock = MockCluster::new(brokers).unwrap();
            started.send(mock.bootstrap_servers()).unwrap();
            for order in received {
                order(&mock);
            }
        });
        Self { orders, brokers: address.recv().unwrap() }
    }

    /// Does something to the cluster, and waits until it is done.
    pub(crate) fn run<T: Send + 'static>(&self, order: impl FnOnce(&Mock) -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        self.orders.send(Box::new(move |mock: &Mock| drop(done.send(order(mock))))).unwrap();
        result.recv().unwrap()
    }

    /// Takes that broker down, all with -1, until it is brought back with what this returns.
    pub(crate) fn down(&self, broker: i32) -> DownBrokers {
        self.run(move |mock| mock.broker_down(broker)).unwrap();
        let numbered = self.brokers.split(',').zip(1..).filter(|(_, number)| broker == -1 || broker == *number);
        DownBrokers { broker, ports: numbered.map(|(address, _)| held(address.parse().unwrap())).collect() }
    }

    pub(crate) fn up(&self, DownBrokers { broker, ports }: DownBrokers) {
        self.run(move |mock| {
            drop(ports);
            mock.broker_up(broker)
        })
        .unwrap();
    }

    pub(crate) fn create_topic(&self, topic: &str, partitions: i32) {
        let topic = topic.to_owned();
        self.run(move |mock| mock.create_topic(&topic, partitions, 1)).unwrap();
    }
}

/// Brokers that are down. Their ports are held: a connection of another process may get a port that is free, and a broker that cannot
/// listen at its port again ends the whole process.
pub(crate) struct DownBrokers {
    broker: i32,
    ports: Vec<TcpSocket>,
}

/// Binds to that address and does not listen, so connections are refused.
fn held(address: SocketAddr) -> TcpSocket {
    let begun = Instant::now();
    loop {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        match socket.bind(address) {
            Ok(()) => return socket,
            Err(error) => assert!(begun.elapsed() < PORT_WITHIN, "{address} of a broker is not free within {PORT_WITHIN:?}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A message as a consumer sees it.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) partition: i32,
    pub(crate) key: String,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: BTreeMap<String, String>,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.headers)).as_str()
    }
}

/// Every message in the topic, one partition after the other.
pub(crate) fn received(brokers: &str, topic: &str, partitions: i32) -> Vec<Received> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("group.id", "test").set("enable.auto.commit", "false").set("fetch.wait.max.ms", "50");
    let consumer: BaseConsumer = config.create().unwrap();
    let begun = Instant::now();
    let mut all = Vec::new();
    for partition in 0..partitions {
        let (low, high) = consumer.fetch_watermarks(topic, partition, READ_WITHIN).unwrap();
        assert_eq!(low, 0, "the cluster has dropped the beginning of the topic");
        let mut assignment = TopicPartitionList::new();
        assignment.add_partition_offset(topic, partition, Offset::Offset(low)).unwrap();
        consumer.assign(&assignment).unwrap();
        let mut next = low;
        while next < high {
            assert!(begun.elapsed() < READ_WITHIN, "{next} of {high} messages after {READ_WITHIN:?}");
            // A failure is a connection that ended; the consumer makes another one.
            let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) else { continue };
            next = message.offset() + 1;
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let headers = message.headers().map(|headers| {
                headers.iter().map(|header| (header.key.to_owned(), text(header.value.unwrap()))).collect::<BTreeMap<_, _>>()
            });
            all.push(Received {
                partition,
                key: text(message.key().unwrap()),
                value: message.payload().map(<[u8]>::to_vec),
                headers: headers.unwrap_or_default(),
            });
        }
    }
    all
}
