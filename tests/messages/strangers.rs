//! Connections from unknown clients do not disturb the worker.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::*;
use serde_json::{Value, json};
use shardwise::ServiceState;
use shardwise::proof::Nonce;

pub(crate) fn frame(value: &Value) -> Vec<u8> {
    let text = value.to_string();
    let mut bytes = u32::try_from(text.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

pub(crate) fn read(stream: &mut TcpStream) -> std::io::Result<Value> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut bytes = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes).unwrap())
}

pub(crate) fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// Whether the other side has ended the connection, with or without having read everything.
pub(crate) fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 64]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

pub(crate) fn hello(service: &ShardingService, of: &str) -> Value {
    let members = service.members();
    let member = members.members().iter().find(|member| member.instance_id.as_str() == of).expect("a member");
    let nonce = Nonce::random().to_string();
    json!({ "shardwise": 2, "group": "group", "instance_id": of, "incarnation": member.incarnation.to_string(), "nonce": nonce })
}

/// A connection to `a` that it takes messages from, without a token.
fn greeted(b: &ShardingService) -> TcpStream {
    let mut stream = connect(&address(b, "a").unwrap());
    stream.write_all(&frame(&hello(b, "a"))).unwrap();
    let challenge = read(&mut stream).unwrap();
    assert!(challenge["challenge"]["nonce"].is_string() && challenge["challenge"]["proof"].is_null(), "{challenge}");
    stream.write_all(&frame(&Value::Null)).unwrap();
    assert_eq!(read(&mut stream).unwrap(), json!("ok"));
    stream
}

/// A worker's life goes on, and so do its messages.
async fn undisturbed(a: &ShardingService, b: &ShardingService) {
    assert_eq!(a.state(), ServiceState::Active);
    assert_eq!(handle(b).send_within(echo("still there"), LONG).await.expect("a reply").by, "a");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_and_frames_that_are_too_long_end_their_connection_alone() {
    let world = World::new();
    let (a, b, _run) = boss_and_other(&world).await;
    let address = address(&b, "a").unwrap();
    let mut seed = 7_u64;
    let mut noise = |bytes: usize| -> Vec<u8> {
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56) as u8
        };
        (0..bytes).map(|_| next()).collect()
    };
    let too_long = |bytes: u32| bytes.to_be_bytes().to_vec();
    let before_hello = [b"GET / HTTP/1.1\r\n\r\n".to_vec(), too_long(16 * 1_024 + 1), too_long(u32::MAX), frame(&json!([1])), noise(5_000)];
    for bytes in before_hello {
        let mut stream = connect(&address);
        stream.write_all(&bytes).unwrap();
        assert!(is_closed(&mut stream), "{:?}", &bytes[..4]);
    }
    let afterwards =
        [too_long(300_000), too_long(u32::MAX), frame(&json!({"id": 1})), frame(&json!("x")), [&[0, 0, 0, 9][..], &noise(9)].concat()];
    for bytes in afterwards {
        let mut stream = greeted(&b);
        stream.write_all(&bytes).unwrap();
        assert!(is_closed(&mut stream), "{bytes:?}");
    }
    undisturbed(&a, &b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_epoch_another_name_and_another_programs_port_are_not_served() {
    let world = World::new();
    let (a, b, _run) = boss_and_other(&world).await;
    let epoch = handle(&b).send_within(echo("x"), LONG).await.expect("a reply").epoch;
    let mut stream = greeted(&b);
    for (id, to, under, refused) in [
        (1, "singleton/boss", epoch - 1, true),
        (2, "singleton/boss", epoch + 1, true),
        (3, "singleton/other", epoch, true),
        (4, "singleton/boss", epoch, false),
    ] {
        let request = json!({ "id": id, "to": to, "epoch": under, "within_ms": 60_000, "body": { "Echo": "x" } });
        stream.write_all(&frame(&request)).unwrap();
        let answer = read(&mut stream).unwrap();
        assert_eq!((answer["id"].clone(), answer["answer"] == "not_mine"), (json!(id), refused), "{answer}");
    }
    for (key, value, said) in [
        ("group", json!("another"), "somebody_else"),
        ("instance_id", json!("b"), "somebody_else"),
        ("incarnation", json!("0000000000000001"), "somebody_else"),
        ("shardwise", json!(1), "other_protocol"),
        ("shardwise", json!(3), "other_protocol"),
    ] {
        let mut hello = hello(&b, "a");
        hello[key] = value;
        let mut stream = connect(&address(&b, "a").unwrap());
        stream.write_all(&frame(&hello)).unwrap();
        assert_eq!(read(&mut stream).unwrap(), json!(said));
        assert!(is_closed(&mut stream));
    }
    undisturbed(&a, &b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_idle_connections_keep_no_client_out() {
    let world = World::new();
    let (a, b, _run) = boss_and_other(&world).await;
    let address = address(&b, "a").unwrap();
    let mut idle = Vec::new();
    for _ in 0..1_000 {
        let mut stream = connect(&address);
        // A frame that has begun and goes on never.
        stream.write_all(&[0, 0]).unwrap();
        idle.push(stream);
    }
    undisturbed(&a, &b).await;
    // The oldest were sent away for the sake of the newest, and those after a while.
    for (at, stream) in idle.iter_mut().enumerate() {
        assert!(is_closed(stream), "connection {at}");
    }
    undisturbed(&a, &b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_and_does_not_read_holds_up_no_other() {
    let world = World::new();
    let (a, b, _run) = boss_and_other(&world).await;
    let epoch = handle(&b).send_within(echo("x"), LONG).await.expect("a reply").epoch;
    let mut slow = greeted(&b);
    slow.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let body = json!({ "Large": 200_000 });
    let mut asked = 0;
    for id in 0..5_000 {
        let request = json!({ "id": id, "to": "singleton/boss", "epoch": epoch, "within_ms": 60_000, "body": body });
        if slow.write_all(&frame(&request)).is_err() {
            break;
        }
        asked += 1;
    }
    assert!(asked > 0);
    for _ in 0..10 {
        undisturbed(&a, &b).await;
    }
    // One that asks for a lot and is sent away when it has not read for 10 s.
    let closed = tokio::task::spawn_blocking(move || {
        std::thread::sleep(Duration::from_secs(11));
        let mut bytes = vec![0; 1 << 20];
        loop {
            match slow.read(&mut bytes) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    });
    assert!(closed.await.unwrap(), "its connection is ended");
    undisturbed(&a, &b).await;
}
