//! A business row and its event in one transaction, and a publisher in the same program that sends the event on.
//!
//! `cargo run -p shardwise-examples --example outbox_embedded`. It places ten orders, waits until all events are in the file, and leaves.

#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::sync::Arc;
use std::time::Duration;

use shardwise::ShardingFactory;
use shardwise_outbox::sink::read_events;
use shardwise_outbox::{FileSink, NewEvent, OutboxPublisher, SqliteStore, Store, sqlite};
use tokio_util::sync::CancellationToken;

const ORDERS: i64 = 10;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Result {
    let dir = tempfile::tempdir()?;
    let store = SqliteStore::init(dir.path().join("shop.db")).await?;

    // The publisher. Start this program in as many terminals as you like: those that share a store share the work.
    let serves = shardwise_outbox::serves(&store, "orders").await?;
    let sharding = ShardingFactory::load()?.create_serving("outbox_publishers", serves)?;
    sharding.register_self().await?;
    let events = dir.path().join("events.jsonl");
    let sink = FileSink::new(&events, "/examples/orders");
    let publisher = OutboxPublisher::new(Arc::new(store.clone()), Arc::new(sink), Arc::new(sharding.clone()))?;
    let shutdown = CancellationToken::new();
    let publishing = tokio::spawn(publisher.run(shutdown.clone()));

    // The application. It could use its own pool; the outbox only needs the transaction.
    place_orders(&store).await?;

    while store.status().await?.pending > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    shutdown.cancel();
    publishing.await??;
    sharding.deregister_self().await?;

    for event in read_events(&events)? {
        let event = event?;
        println!("{} {} number {} of its order", event.key, event.event_type, event.sequence);
    }
    Ok(())
}

/// Each order and its events commit together or not at all.
async fn place_orders(store: &SqliteStore) -> Result {
    let mut tx = store.begin().await?;
    sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)").execute(&mut *tx).await?;
    store.commit(tx).await?;
    for id in 1..=ORDERS {
        let mut tx = store.begin().await?;
        sqlx::query("INSERT INTO orders (id, total) VALUES (?, ?)").bind(id).bind(id * 100).execute(&mut *tx).await?;
        let (order, total) = (id.to_string(), id * 100);
        sqlite::enqueue(&mut tx, NewEvent::new("order", &order, "OrderPlaced", format!(r#"{{"total":{total}}}"#))).await?;
        sqlite::enqueue(&mut tx, NewEvent::new("order", &order, "OrderPaid", "{}")).await?;
        if id == 7 {
            // Events of order 7 are never published.
            tx.rollback().await?;
        } else {
            store.commit(tx).await?;
        }
    }
    Ok(())
}
