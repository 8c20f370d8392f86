//! A bare rdkafka producer, with the guarantees of our sink: idempotent, acknowledged by all replicas, by key. It reads rows of our table
//! in order, marks nothing, and has no fence.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::{ClientConfig, ClientContext};
use sqlx::{Connection as _, PgConnection};

/// The topic into which everybody produces.
pub(crate) const TOPIC: &str = "bench";
/// Its partitions.
pub(crate) const PARTITIONS: i32 = 4;
/// For everything to be acknowledged.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_mins(2);

/// Position, id, aggregateid, type and payload.
type Row = (i64, String, String, String, String);

/// Counts what was acknowledged.
struct Acknowledged(AtomicU64);

impl ClientContext for Acknowledged {}

impl ProducerContext for Acknowledged {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        self.0.fetch_add(u64::from(result.is_ok()), Ordering::Relaxed);
    }
}

/// Seconds for the events of a full database. The rows are read before the clock starts if `read_first`.
pub(crate) async fn produce(url: &str, brokers: &str, events: u64, read_first: bool) -> f64 {
    let producer = connected(brokers).await;
    let mut conn = PgConnection::connect(url).await.unwrap();
    let (mut position, mut sent, mut rows) = (0, 0, Vec::new());
    if read_first {
        while (rows.len() as u64) < events {
            rows.extend(page(&mut conn, &mut position).await);
        }
    }
    let begun = Instant::now();
    while sent < events {
        let next = if read_first { std::mem::take(&mut rows) } else { page(&mut conn, &mut position).await };
        sent += next.len() as u64;
        for (_, id, key, kind, payload) in &next {
            send(&producer, id, key, kind, payload).await;
        }
    }
    while producer.context().0.load(Ordering::Relaxed) < events {
        assert!(begun.elapsed() < ACKNOWLEDGED_WITHIN, "not all is acknowledged within {ACKNOWLEDGED_WITHIN:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = begun.elapsed().as_secs_f64();
    tokio::task::spawn_blocking(move || drop(producer)).await.unwrap();
    took
}

async fn connected(brokers: &str) -> ThreadedProducer<Acknowledged> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("enable.idempotence", "true").set("acks", "all").set("partitioner", "murmur2_random");
    config.set("linger.ms", "2").set("queue.buffering.max.messages", "1000000");
    let make = move || {
        let producer: ThreadedProducer<Acknowledged> = config.create_with_context(Acknowledged(AtomicU64::new(0))).unwrap();
        producer.client().fetch_metadata(Some(TOPIC), Duration::from_secs(10)).unwrap();
        producer
    };
    tokio::task::spawn_blocking(make).await.unwrap()
}

async fn page(conn: &mut PgConnection, position: &mut i64) -> Vec<Row> {
    let read = "SELECT position, id, aggregateid, type, payload FROM outbox WHERE position > $1 ORDER BY position LIMIT 1000";
    let rows: Vec<Row> = sqlx::query_as(read).bind(*position).fetch_all(conn).await.unwrap();
    *position = rows.last().unwrap().0;
    rows
}

async fn send(producer: &ThreadedProducer<Acknowledged>, id: &str, key: &str, kind: &str, payload: &str) {
    let header = |key, value| Header { key, value: Some(value) };
    let headers = OwnedHeaders::new_with_capacity(2).insert(header("ce_id", id)).insert(header("ce_type", kind));
    let mut record = BaseRecord::to(TOPIC).key(key).payload(payload).headers(headers);
    while let Err((_, full)) = producer.send(record) {
        record = full;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
