//! The instructions for other programs in the documentation work.

use std::time::Duration;

use shardwise_outbox::NewEvent;
use shardwise_outbox::inbox::postgres::{TABLE, create_table, forget, seen};
use sqlx::Connection;

use crate::common::Outbox;
use crate::publishing::delivered;
use crate::shared::eventually;

fn sql_of(document: &'static str) -> Vec<&'static str> {
    document.split("```sql\n").skip(1).map(|rest| rest.split_once("```").unwrap().0).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_ones_own_becomes_this_outbox_without_losing_or_repeating() {
    let outbox = Outbox::new().await;
    let [table, switch, end] = sql_of(include_str!("../../adoption.md")).try_into().unwrap();
    outbox.execute(table).await;
    let write = async |numbers: std::ops::Range<u32>| {
        for n in numbers {
            let row = format!("('order', '{}', 'Changed', '{{\"n\":{n}}}')", n % 3);
            outbox.execute(&format!("INSERT INTO my_outbox (topic, entity_id, name, body) VALUES {row}")).await;
        }
    };
    write(0..9).await;
    outbox.execute("UPDATE my_outbox SET sent_at = now() WHERE id <= 3").await;
    outbox.execute(switch).await;
    write(9..12).await;
    outbox.execute(switch).await;
    write(12..15).await;
    let arrived = delivered(&outbox).await;
    let numbers: Vec<Vec<String>> = (0..3)
        .map(|entity| {
            let of_it = arrived.iter().filter(|event| event.aggregate_id == entity.to_string());
            assert!(of_it.clone().is_sorted_by(|one, next| one.sequence < next.sequence), "{arrived:?}");
            of_it.map(|event| format!("{:?}", event.payload)).collect()
        })
        .collect();
    for (entity, numbers) in (0u32..).zip(numbers) {
        let expected: Vec<String> = (1..5).map(|round| format!("Text(\"{{\\\"n\\\": {}}}\")", entity + 3 * round)).collect();
        assert_eq!(numbers, expected, "{entity}");
    }
    outbox.execute(end).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inbox_sees_each_event_once_in_the_consumers_own_transaction() {
    let outbox = Outbox::new().await;
    let (mut one, mut two) = (outbox.connection().await, outbox.connection().await);
    create_table(&mut one).await.unwrap();
    create_table(&mut one).await.unwrap();
    let mut tx = one.begin().await.unwrap();
    assert!(!seen(&mut tx, "billing", "e-1").await.unwrap());
    // The same event at the same time: the second transaction waits, and gets the event when the first one rolls back.
    let second = tokio::spawn(async move {
        let mut tx = two.begin().await.unwrap();
        let seen = seen(&mut tx, "billing", "e-1").await.unwrap();
        tx.commit().await.unwrap();
        seen
    });
    let waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    eventually("the second one waits", Duration::from_secs(30), async || !outbox.execute(waits).await.is_empty()).await;
    tx.rollback().await.unwrap();
    assert!(!second.await.unwrap());
    assert!(seen(&mut one, "billing", "e-1").await.unwrap());
    assert!(!seen(&mut one, "shipping", "e-1").await.unwrap(), "another consumer has not seen it");
    assert_eq!(forget(&mut one, Duration::from_hours(1), 10).await.unwrap(), 0);
    outbox.execute("UPDATE outbox_inbox SET seen_at = now() - interval '31 days' WHERE consumer = 'billing'").await;
    let [insert, delete] = sql_of(include_str!("../../inbox.md")).try_into().unwrap();
    outbox.execute(insert).await;
    outbox.execute(insert).await;
    assert_eq!(outbox.execute("SELECT 1 FROM outbox_inbox").await.len(), 3, "{TABLE}");
    outbox.execute(delete).await;
    assert_eq!(outbox.execute("SELECT 1 FROM outbox_inbox").await.len(), 2);
    assert_eq!(forget(&mut one, Duration::ZERO, 1).await.unwrap(), 1, "a batch at a time");
}

/// The page's statements for Python and Node, with their drivers' placeholders converted to PostgreSQL's form.
#[tokio::test]
async fn the_statements_for_python_and_node_are_the_one_statement() {
    let page = include_str!("../../inbox.md");
    let plain = "INSERT INTO outbox_inbox (consumer, event) VALUES ($1, $2) ON CONFLICT (consumer, event) DO NOTHING";
    assert_eq!(page.replace("%s, %s", "$1, $2").matches(plain).count(), 2);
    let outbox = Outbox::new().await;
    outbox.execute(TABLE).await;
    let run = format!("PREPARE note (text, text) AS {plain}; EXECUTE note ('billing', 'e'); EXECUTE note ('billing', 'e')");
    outbox.execute(&run).await;
    assert_eq!(outbox.execute("SELECT 1 FROM outbox_inbox").await.len(), 1);
}

/// Everything that Debezium's router is configured to read exists, under these names and with accepted types. Its plugin can create the
/// slot if the server has logical decoding.
#[tokio::test]
async fn debeziums_configuration_names_columns_that_are_there() {
    let page = include_str!("../../postgres.md");
    let outbox = Outbox::new().await;
    let value = |key: &str| page.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or_else(|| panic!("{key}"));
    assert_eq!(value("table.include.list"), "public.outbox");
    let fields =
        ["event.id", "event.key", "event.type", "event.payload"].map(|field| value(&format!("transforms.outbox.table.field.{field}")));
    let placed = value("transforms.outbox.table.fields.additional.placement").split(',').map(|field| field.split(':').next().unwrap());
    let columns: Vec<&str> = fields.into_iter().chain([value("transforms.outbox.route.by.field")]).chain(placed).collect();
    let event = NewEvent::new("order", "42", "OrderPlaced", "{}").with_id("e");
    outbox.store().await.enqueue_all(vec![event]).await.unwrap();
    let row = outbox.execute(&format!("SELECT {} FROM public.outbox", columns.join(", "))).await.remove(0);
    let found: Vec<Option<&str>> = row.iter().map(Option::as_deref).collect();
    assert_eq!(found, [Some("e"), Some("42"), Some("OrderPlaced"), Some("{}"), Some("order"), Some("OrderPlaced"), Some("1"), None]);
}
