//! A process at a holder's address that is not the holder: learns nothing of a message and forges nothing.

use serde_json::{Value, json};
use shardwise::MessageError;
use shardwise::requests::channel::proof::Nonce;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;
use crate::channel::{Whom, connect, frame, receive, rest};
use crate::log::Log;

/// What is said to the frame of that number.
type Says = fn(usize, &Value) -> Option<Value>;

const TOKEN: &str = "members-know-this-one";
const SECRET: &str = "a message that nobody else may read";

fn with_token(token: Option<&str>) -> PeersSettings {
    let mut peers = PeersSettings::default();
    peers.token = token.map(Into::into);
    peers
}

async fn joined_with(world: &World, id: &str, token: Option<&str>) -> ShardingService {
    let service = with_peers(world, id, with_token(token));
    service.register_self().await.expect("it joins");
    service
}

/// Says to each frame what `says` has for it, on every connection; what has come on a connection comes out with its end.
async fn impostor(at: &str, says: Says) -> UnboundedReceiver<String> {
    let listener = TcpListener::bind(at).await.unwrap();
    let (arrived, bytes) = unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let arrived = arrived.clone();
            tokio::spawn(async move {
                let mut heard = Vec::new();
                for number in 0.. {
                    let Ok(value) = receive(&mut stream).await else { break };
                    heard.extend(value.to_string().into_bytes());
                    let Some(answer) = says(number, &value) else { break };
                    let _ = stream.write_all(&frame(&answer)).await;
                }
                // What is no frame of the hello. A caller that has nothing more to say closes the connection.
                let _ = tokio::time::timeout(Duration::from_millis(500), stream.read_to_end(&mut heard)).await;
                let _ = arrived.send(String::from_utf8_lossy(&heard).into_owned());
            });
        }
    });
    bytes
}

/// A world in which `a` has held the name, died as a machine does and not given
/// anything back; `b` sees it where it was, and its port is free.
async fn dead(token: Option<&str>, b_peers: PeersSettings) -> (World, ShardingService, String) {
    let is_allowed = b_peers.networks == PeersSettings::default().networks;
    let world = World { ttl: Duration::from_mins(2), ..World::new() };
    let a = with_peers(&world, "a", with_token(token));
    let b = with_peers(&world, "b", b_peers);
    b.register_self().await.expect("it joins");
    // Simulates a separate process: all of it ends at once.
    let process = tokio::runtime::Runtime::new().unwrap();
    let lives = process.spawn(async move {
        a.register_self().await.expect("it joins");
        let _run = run(&a);
        std::future::pending::<()>().await;
    });
    eventually("its record says where", || address(&b, "a").is_some()).await;
    if is_allowed {
        assert_eq!(handle(&b).send_within(echo("x"), LONG).await.expect("a reply").by, "a");
    }
    let at = address(&b, "a").unwrap();
    process.shutdown_background();
    let _ = lives.await;
    eventually("its port is free", || std::net::TcpListener::bind(&at).is_ok()).await;
    // Until the connection that was there before is seen to be gone, what goes over it is unknown.
    while let Err(MessageError::Lost { .. }) = handle(&b).send_within(echo("x"), Duration::from_millis(200)).await {}
    (world, b, at)
}

/// What came on the first connection.
async fn first(mut heard: UnboundedReceiver<String>) -> String {
    tokio::time::timeout(LONG, heard.recv()).await.expect("it is called").expect("a connection")
}

fn challenge(proof: &Value) -> Value {
    json!({"challenge": {"nonce": Nonce::random().to_string(), "proof": proof}})
}

/// A process that got the port of a dead holder before the holder's lease has expired.
#[tokio::test]
async fn a_process_on_a_dead_holders_port_learns_nothing_and_forges_nothing() {
    let says: [(&str, Says); 7] = [
        ("nothing", |_, _| None),
        ("ok, as before members proved themselves", |_, _| Some(json!("ok"))),
        ("that it has no token", |number, _| Some(if number == 0 { challenge(&Value::Null) } else { json!("ok") })),
        ("any proof", |number, _| Some(if number == 0 { challenge(&json!(Nonce::random().to_string())) } else { json!("ok") })),
        ("the caller's own nonce", |_, hello| Some(json!({"challenge": {"nonce": hello["nonce"], "proof": hello["nonce"]}}))),
        ("that it is of another version", |_, _| Some(json!("other_protocol"))),
        ("that the caller is unproven", |_, _| Some(json!("unproven"))),
    ];
    for (what, says) in says {
        let (_world, b, at) = dead(Some(TOKEN), with_token(Some(TOKEN))).await;
        let heard = impostor(&at, says).await;
        // It waits, for the holder may come back or be replaced: that process cannot end it.
        match handle(&b).send_within(echo(SECRET), Duration::from_secs(2)).await {
            Err(error @ MessageError::NoLeader { .. }) => {
                assert!(!error.may_have_been_handled(), "{what}: {error}");
                assert!(!error.to_string().contains(TOKEN), "{what}: {error}");
            }
            other => panic!("{what}: {other:?}"),
        }
        let heard = first(heard).await;
        assert!(heard.contains("\"shardwise\":3"), "{what}: it was called, and heard {heard:?}");
        assert!(!heard.contains(SECRET) && !heard.contains(TOKEN), "{what}: {heard:?}");
    }
}

#[tokio::test]
async fn with_another_token_or_none_a_message_waits_says_why_and_no_token_is_shown() {
    let (log, _on) = Log::start();
    let world = World::new();
    assert!(!format!("{:?}", with_token(Some(TOKEN))).contains(TOKEN));
    let a = joined_with(&world, "a", Some(TOKEN)).await;
    let _run = run(&a);
    let right = joined_with(&world, "right", Some(TOKEN)).await;
    assert_eq!(handle(&right).send_within(echo("x"), LONG).await.expect("a reply").by, "a");
    let begun = std::time::Instant::now();
    for (id, token) in [("wrong", Some("members-know-this-onf")), ("longer", Some("members-know-this-one!")), ("none", None)] {
        let service = joined_with(&world, id, token).await;
        // On a busy machine it may not get as far at first.
        loop {
            let error = handle(&service).send_within(echo("x"), Duration::from_secs(1)).await.expect_err("it is not let in");
            assert!(!error.may_have_been_handled() && !error.to_string().contains("know-this"), "{error}");
            if error.to_string().contains("peer token") {
                break;
            }
            assert!(begun.elapsed() < 3 * LONG, "{error}");
        }
    }
    let lines = || log.lines_with("another peer token or certificate, or none");
    eventually("the holder says so", || lines() > 0).await;
    assert_eq!(lines(), 1, "three were refused, and that is one line");
}

/// Between versions nothing is exchanged, and both sides say so.
#[tokio::test]
async fn an_older_caller_that_sends_its_token_is_refused_and_an_older_holder_gets_none() {
    let (log, _on) = Log::start();
    let world = World::new();
    let (a, b) = (joined_with(&world, "a", Some(TOKEN)).await, joined_with(&world, "b", Some(TOKEN)).await);
    let _run = run(&a);
    assert_eq!(handle(&b).send_within(echo("x"), LONG).await.expect("a reply").by, "a");
    let mut second = Whom::of(&a).hello();
    second["shardwise"] = json!(2);
    let mut first_one = second.clone();
    (first_one["shardwise"], first_one["token"]) = (json!(1), json!(TOKEN));
    first_one.as_object_mut().unwrap().remove("nonce");
    for old in [first_one, second] {
        let mut stream = connect(&address(&b, "a").unwrap()).await;
        stream.write_all(&frame(&old)).await.unwrap();
        assert_eq!(receive(&mut stream).await.unwrap(), json!("other_protocol"));
        assert!(rest(&mut stream).await.is_empty());
    }
    eventually("the holder says so", || log.lines_with("another version of shardwise has tried") == 1).await;

    let (_world, b, at) = dead(Some(TOKEN), with_token(Some(TOKEN))).await;
    let heard = impostor(&at, |_, _| Some(json!("other_protocol"))).await;
    let error = handle(&b).send_within(echo(SECRET), Duration::from_secs(2)).await.expect_err("it is not taken");
    assert!(matches!(error, MessageError::NoLeader { .. }), "{error:?}");
    let heard = first(heard).await;
    assert!(heard.contains("\"shardwise\":3") && !heard.contains(TOKEN) && !heard.contains(SECRET), "{heard}");
}

#[tokio::test]
async fn a_holder_outside_of_peer_networks_is_never_connected_to() {
    let mut peers = PeersSettings::default();
    peers.networks = vec!["10.0.0.0/8".parse().unwrap()];
    let (_world, b, at) = dead(None, peers).await;
    let listener = std::net::TcpListener::bind(&at).unwrap();
    listener.set_nonblocking(true).unwrap();
    match handle(&b).send_within(echo(SECRET), LONG).await {
        Err(error @ MessageError::Refused { .. }) => assert!(error.to_string().contains("in none of peer_networks"), "{error}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nobody has called");
}
