//! Connections from unknown clients, and from members that do not behave, do not disturb the worker.

use serde_json::{Value, json};
use shardwise::ServiceState;
use shardwise::requests::encoded;
use tokio::io::AsyncWriteExt as _;

use super::*;
use crate::channel::{Side, Whom, connect, frame, open, receive, rest};
use crate::http2::{Came, Http2Frame, ask, client, preface, request_fields};

/// A worker's life goes on, and so do its messages.
async fn undisturbed(a: &ShardingService, b: &ShardingService) {
    assert_eq!(a.state(), ServiceState::Active);
    assert_eq!(handle(b).send_within(echo("still there"), LONG).await.expect("a reply").by, "a");
}

#[tokio::test]
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
    let before_hello = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        preface(),
        too_long(16 * 1_024 + 1),
        too_long(u32::MAX),
        frame(&json!([1])),
        frame(&json!({"shardwise": 3})),
        frame(&json!("ok")),
        noise(5_000),
    ];
    for bytes in before_hello {
        let mut stream = connect(&address).await;
        // It may be closed before all is written.
        let _ = stream.write_all(&bytes).await;
        assert!(rest(&mut stream).await.is_empty(), "{:?}", &bytes[..4]);
    }
    // Instead of the caller's second frame.
    let afterwards =
        [too_long(16 * 1_024 + 1), too_long(u32::MAX), frame(&Value::Null), frame(&json!("x")), [&[0, 0, 0, 9][..], &noise(9)].concat()];
    for bytes in afterwards {
        let mut stream = connect(&address).await;
        stream.write_all(&frame(&Whom::of(&a).hello())).await.unwrap();
        assert!(receive(&mut stream).await.unwrap()["challenge"].is_object());
        let _ = stream.write_all(&bytes).await;
        assert!(rest(&mut stream).await.is_empty(), "{bytes:?}");
    }
    undisturbed(&a, &b).await;
}

/// A message as a member sends it.
async fn sent(client: &h2::client::SendRequest<hyper::body::Bytes>, name: &str, epoch: u64, body: &Value) -> Came {
    let name = encoded(name);
    let headers = [("shardwise-to", "holder"), ("shardwise-name", name.as_str()), ("shardwise-within-ms", "60000")];
    let message = json!({"epoch": epoch, "body": body}).to_string();
    ask(client, ("POST", "shardwise/messages"), &headers, message).await.unwrap()
}

#[tokio::test]
async fn an_old_epoch_another_name_and_another_programs_port_are_not_served() {
    let world = World::new();
    let (a, b, _run) = boss_and_other(&world).await;
    let (at, epoch) = (address(&b, "a").unwrap(), handle(&b).send_within(echo("x"), LONG).await.expect("a reply").epoch);
    let client = client(open(&at, &Whom::of(&a), None).await.unwrap().plain(Side::Caller)).await;
    for (to, under, is_refused) in [
        ("singleton/boss", epoch - 1, true),
        ("singleton/boss", epoch + 1, true),
        ("singleton/other", epoch, true),
        ("singleton/boss", epoch, false),
    ] {
        let came = sent(&client, to, under, &json!({"Echo": "x"})).await;
        assert_eq!((came.status, came.is_refusal()), if is_refused { (421, true) } else { (200, false) }, "{to} under {under}: {came:?}");
        assert!(is_refused || came.body.contains("\"reply\""), "{came:?}");
    }
    let unreadable = sent(&client, "singleton/boss", epoch, &json!(7)).await;
    assert!(unreadable.status == 200 && unreadable.body.contains("\"unreadable\""), "{unreadable:?}");
    for (key, value, said) in [
        ("group", json!("another"), "somebody_else"),
        ("instance_id", json!("b"), "somebody_else"),
        ("incarnation", json!("0000000000000001"), "somebody_else"),
        ("shardwise", json!(1), "other_protocol"),
        ("shardwise", json!(4), "other_protocol"),
        ("nonce", json!("x"), "other_protocol"),
    ] {
        let mut hello = Whom::of(&a).hello();
        hello[key] = value;
        let mut stream = connect(&at).await;
        stream.write_all(&frame(&hello)).await.unwrap();
        assert_eq!(receive(&mut stream).await.unwrap(), json!(said), "{key}");
        assert!(rest(&mut stream).await.is_empty());
    }
    undisturbed(&a, &b).await;
}

#[tokio::test]
async fn a_thousand_idle_connections_keep_no_client_out() {
    let world = World::new();
    let (a, b, _run) = boss_and_other(&world).await;
    let address = address(&b, "a").unwrap();
    let mut idle = Vec::new();
    for _ in 0..1_000 {
        let mut stream = connect(&address).await;
        // A frame that has begun and goes on never. The oldest may be closed already.
        let _ = stream.write_all(&[0, 0]).await;
        idle.push(stream);
    }
    undisturbed(&a, &b).await;
    // The oldest were sent away for the sake of the newest, and those after a while.
    for stream in &mut idle {
        assert!(rest(stream).await.is_empty());
    }
    undisturbed(&a, &b).await;
}

/// A message whose reply has 200,000 bytes, as frames of HTTP/2.
fn large(stream: u32, epoch: u64) -> Vec<u8> {
    let name = encoded("singleton/boss");
    let fields = request_fields("POST", "/shardwise/messages", &[("shardwise-to", "holder"), ("shardwise-name", name.as_str())]);
    let message = json!({"epoch": epoch, "body": {"Large": 200_000}}).to_string();
    let data = Http2Frame::new(Http2Frame::DATA, Http2Frame::END_STREAM, stream, message);
    [Http2Frame::head(stream, &fields, false).bytes(), data.bytes()].concat()
}

#[tokio::test]
async fn a_member_that_asks_and_does_not_read_holds_up_no_other() {
    let world = World::new();
    let (a, b, _run) = boss_and_other(&world).await;
    let epoch = handle(&b).send_within(echo("x"), LONG).await.expect("a reply").epoch;
    let at = address(&b, "a").unwrap();
    let asked: Vec<u8> = (0..60).flat_map(|number| large(2 * number + 1, epoch)).collect();
    // Without a token the bytes are HTTP/2 as they are.
    let [mut slow, mut wide] = [open(&at, &Whom::of(&a), None).await.unwrap().stream, open(&at, &Whom::of(&a), None).await.unwrap().stream];
    slow.write_all(&[preface(), asked.clone()].concat()).await.unwrap();
    // One that gives leave to send everything (SETTINGS_INITIAL_WINDOW_SIZE and WINDOW_UPDATE), which then fills what lies between.
    let window = Http2Frame::new(Http2Frame::SETTINGS, 0, 0, [&[0_u8, 4][..], &0x7fff_ffff_u32.to_be_bytes()].concat()).bytes();
    let update = Http2Frame::new(Http2Frame::WINDOW_UPDATE, 0, 0, (0x7fff_ffff_u32 - 65_535).to_be_bytes()).bytes();
    wide.write_all(&[preface(), window, update, asked].concat()).await.unwrap();
    for _ in 0..10 {
        undisturbed(&a, &b).await;
    }
    // It answers no PING, so it is sent away.
    rest(&mut slow).await;
    undisturbed(&a, &b).await;
}
