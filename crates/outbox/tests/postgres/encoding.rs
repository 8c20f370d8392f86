//! Text that is not UTF-8, and NUL: what the database refuses, what has to be sent as bytes, and what is delivered byte for byte.

use shardwise_outbox::exercise::StoreHarness;
use shardwise_outbox::{ErrorKind, NewEvent, Payload, Store, postgres};
use sqlx::Connection;

use crate::common::Outbox;
use crate::publishing::delivered;
use crate::shared::events;

/// The server refuses them in every text column and in any spelling; nothing of the transaction remains, and no number is used up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_utf_8_is_refused_in_every_column_of_text() {
    let outbox = Outbox::new().await;
    outbox.insert(events("1", 1..=1)).await;
    let columns = ["aggregatetype", "aggregateid", "type", "payload", "id", "headers"];
    for (value, expected) in [
        (r"E'a\xff'", "invalid byte sequence for encoding \"UTF8\": 0xff"),
        (r"E'a\xc3'", "invalid byte sequence for encoding \"UTF8\""),
        // A lone surrogate, and an overlong encoding.
        (r"E'a\xed\xa0\x80'", "invalid byte sequence for encoding \"UTF8\": 0xed 0xa0 0x80"),
        (r"E'a\xc0\xaf'", "invalid byte sequence for encoding \"UTF8\": 0xc0 0xaf"),
        (r"E'a\x00b'", "invalid byte sequence for encoding \"UTF8\": 0x00"),
        (r"convert_from('\xff', 'UTF8')", "invalid byte sequence for encoding \"UTF8\": 0xff"),
        (r"convert_from('\x61ff', 'UTF8') || 'b'", "invalid byte sequence for encoding \"UTF8\": 0xff"),
        ("chr(0)", "null character not permitted"),
    ] {
        for column in columns {
            let row = ["'order'", "'1'", "'t'", "'{}'", "'e'", "'{}'"];
            let row: Vec<_> = columns.iter().zip(row).map(|(name, plain)| if *name == column { value } else { plain }).collect();
            let before = "INSERT INTO outbox (aggregatetype, aggregateid, type) VALUES ('order', '1', 't')";
            let sql = format!("BEGIN; {before}; INSERT INTO outbox ({}) VALUES ({}); COMMIT", columns.join(", "), row.join(", "));
            let error = outbox.database.execute(&sql).await.unwrap_err().to_string();
            assert!(error.contains(expected), "{column} = {value}: {error}");
        }
    }
    outbox.insert(events("1", 2..=2)).await;
    let sequences: Vec<_> = delivered(&outbox).await.iter().map(|event| event.sequence).collect();
    assert!(sequences.len() == 2 && sequences[0] < sequences[1], "{sequences:?}");
}

/// A savepoint saves the rest of the transaction, and the same data is accepted as bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_claim_to_be_text_are_refused_and_those_beside_them_are_not() {
    let outbox = Outbox::new().await;
    let mut conn = outbox.connection().await;
    let mut tx = conn.begin().await.unwrap();
    postgres::enqueue(&mut tx, NewEvent::new("order", "1", "t", "before")).await.unwrap();
    let mut savepoint = tx.begin().await.unwrap();
    let sql = "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', '1', 't', convert_from($1, 'UTF8'))";
    let error = sqlx::query(sql).bind(vec![b'{', 0xff, b'}']).execute(&mut *savepoint).await.unwrap_err();
    assert!(error.to_string().contains("invalid byte sequence for encoding \"UTF8\": 0xff"), "{error}");
    savepoint.rollback().await.unwrap();
    postgres::enqueue(&mut tx, NewEvent::new("order", "1", "t", vec![b'{', 0xff, b'}'])).await.unwrap();
    tx.commit().await.unwrap();
    let arrived: Vec<_> = delivered(&outbox).await.into_iter().map(|event| event.payload).collect();
    assert_eq!(arrived, ["before".into(), Payload::Binary(vec![b'{', 0xff, b'}'])]);
}

/// The crate's own writer sends nothing that the server would refuse, so the transaction remains usable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nul_is_refused_before_the_server_sees_it_and_spelled_out_in_json_it_is_delivered() {
    let outbox = Outbox::new().await;
    let mut conn = outbox.connection().await;
    let mut tx = conn.begin().await.unwrap();
    let plain = || NewEvent::new("order", "1", "t", "{}");
    for event in [
        NewEvent { payload: "a\0b".into(), ..plain() },
        NewEvent { aggregate_id: "1\0".into(), ..plain() },
        NewEvent { aggregate_type: "\0".into(), ..plain() },
        NewEvent { event_type: "t\0".into(), ..plain() },
        plain().with_id("e\0"),
    ] {
        let error = postgres::enqueue(&mut tx, event).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Event && error.to_string().contains("NUL character"), "{error}");
    }
    let json = r#"{"a":"\u0000","b":"\ud800"}"#;
    // Headers are JSON, in which NUL is escaped.
    postgres::enqueue(&mut tx, NewEvent::new("order", "1", "t", json).with_header("tenant", "a\0b")).await.unwrap();
    postgres::enqueue(&mut tx, NewEvent { payload: Payload::Binary(b"a\0b".into()), ..plain() }).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(outbox.store().await.status().await.unwrap().pending, 2);
    let arrived = delivered(&outbox).await;
    let payloads: Vec<_> = arrived.iter().map(|event| event.payload.clone()).collect();
    assert_eq!(payloads, [json.into(), Payload::Binary(b"a\0b".into())]);
    assert_eq!(arrived[0].headers.as_deref(), Some(r#"{"tenant":"a\u0000b"}"#));
}

/// A database that accepts anything as text would pass invalid bytes to publishers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_of_another_encoding_is_refused_before_anything_is_made() {
    let server = shardwise_testkit::Postgres::shared().await.unwrap();
    let plain = server.database().await.unwrap();
    for encoding in ["SQL_ASCII", "LATIN1"] {
        let name = format!("{}_{}", plain.name(), encoding.to_lowercase());
        server.execute(&format!("CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")).await.unwrap();
        let url = plain.url().replace(plain.name(), &name);
        let config = shardwise_outbox::PostgresConfig::from_url(&url).unwrap();
        let error = shardwise_outbox::PostgresStore::init(config).await.unwrap_err();
        let expected = format!("the database's encoding is {encoding}: an outbox needs UTF8");
        assert!(error.to_string().contains(&expected), "{error}");
        let mut conn = sqlx::PgConnection::connect(&url).await.unwrap();
        let tables: i64 =
            sqlx::query_scalar("SELECT count(*) FROM pg_class WHERE relname LIKE 'outbox%'").fetch_one(&mut conn).await.unwrap();
        assert_eq!(tables, 0);
        conn.close().await.unwrap();
    }
}
