//! Orders in PostgreSQL: the order and its events commit together, publishers send the events on, and a consumer books each of them once.
//!
//! `DATABASE_URL=postgres://user:password@127.0.0.1/database cargo run -p shardwise-examples --example orders_postgres`. It creates the
//! outbox's tables and two others, places ten orders, and leaves.

#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::sync::Arc;
use std::time::Duration;

use shardwise::ShardingFactory;
use shardwise_outbox::sink::{ReadEvent, read_events};
use shardwise_outbox::{FileSink, NewEvent, OutboxPublisher, PostgresConfig, PostgresStore, Store, inbox, postgres};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

const ORDERS: i64 = 10;
const TABLES: &str =
    "CREATE TABLE IF NOT EXISTS shardwise_example_order (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, total BIGINT NOT NULL);
    CREATE TABLE IF NOT EXISTS shardwise_example_booking (event TEXT PRIMARY KEY, what TEXT NOT NULL)";

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Result {
    let address = std::env::var("DATABASE_URL");
    let address = address.map_err(|_| "set DATABASE_URL to a database, such as postgres://user:password@127.0.0.1/database")?;
    let store = PostgresStore::init(PostgresConfig::from_url(&address)?).await?;
    let pool = PgPool::connect(&address).await?;
    sqlx::raw_sql(TABLES).execute(&pool).await?;
    inbox::postgres::create_table(&mut *pool.acquire().await?).await?;

    // The publisher. Run it in as many processes and on as many machines as you like: they share the work.
    let serves = shardwise_outbox::serves(&store, "orders").await?;
    let sharding = ShardingFactory::load()?.create_serving("outbox_publishers", serves)?;
    sharding.register_self().await?;
    let dir = tempfile::tempdir()?;
    let events = dir.path().join("events.jsonl");
    let sink = FileSink::new(&events, "/examples/orders");
    let publisher = OutboxPublisher::new(Arc::new(store.clone()), Arc::new(sink), Arc::new(sharding.clone()))?;
    // Writers in this process can notify the publisher of new events; it finds others by polling.
    let nudge = publisher.nudge_handle();
    let shutdown = CancellationToken::new();
    let publishing = tokio::spawn(publisher.run(shutdown.clone()));

    for _ in 0..ORDERS {
        place_order(&pool).await?;
        nudge.nudge();
    }

    while store.status().await?.pending > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    shutdown.cancel();
    // At the same time, so that other publishers get each slot as soon as it is released.
    let (published, left) = tokio::join!(publishing, sharding.deregister_self());
    published??;
    left?;

    let mut booked = 0;
    // Every event arrives twice, as after a crash.
    for event in read_events(&events)?.chain(read_events(&events)?) {
        booked += u32::from(book(&pool, &event?).await?);
    }
    println!("{ORDERS} orders placed, {booked} events booked, each once");
    Ok(())
}

/// The order and its events commit together or not at all. Several aggregates in one transaction would be written in sorted order.
async fn place_order(pool: &PgPool) -> Result {
    let mut tx = pool.begin().await?;
    let order = "INSERT INTO shardwise_example_order (total) VALUES (100) RETURNING id";
    let order: i64 = sqlx::query_scalar(order).fetch_one(&mut *tx).await?;
    let order = order.to_string();
    postgres::enqueue(&mut tx, NewEvent::new("order", &order, "OrderPlaced", r#"{"total":100}"#)).await?;
    postgres::enqueue(&mut tx, NewEvent::new("order", &order, "OrderPaid", "{}")).await?;
    tx.commit().await?;
    Ok(())
}

/// The consumer: it commits the event's id together with the event's effect. Returns whether the event was new.
async fn book(pool: &PgPool, event: &ReadEvent) -> Result<bool> {
    let mut tx = pool.begin().await?;
    if inbox::postgres::seen(&mut tx, "bookings", &event.id).await? {
        return Ok(false);
    }
    let book = "INSERT INTO shardwise_example_booking (event, what) VALUES ($1, $2)";
    sqlx::query(book).bind(&event.id).bind(format!("{} {}", event.key, event.event_type)).execute(&mut *tx).await?;
    tx.commit().await?;
    println!("{} {} with sequence {}", event.key, event.event_type, event.sequence);
    Ok(true)
}
