//! Who sits at a holder's address and is not the holder: learns nothing of a message and forges nothing.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};

use serde_json::{Value, json};
use shardwise::MessageError;
use shardwise::proof::{Channel, Nonce, Proof, ProofKind, ProofSession, Recipient};

use super::*;
use crate::log::Log;
use crate::strangers::{connect, frame, hello, is_closed, read};

/// What is said to the frame of that number.
type Says = fn(usize, &Value) -> Option<Value>;

const TOKEN: &str = "members-know-this-one";
const SECRET: &str = "a message that nobody else may read";

fn with_token(token: Option<&str>) -> MessagesSettings {
    let mut messages = MessagesSettings::default();
    messages.token = token.map(Into::into);
    messages
}

async fn joined_with(world: &World, id: &str, token: Option<&str>) -> ShardingService {
    let service = with_messages(world, id, with_token(token));
    service.register_self().await.expect("it joins");
    service
}

/// Says to each frame what `says` has for it, on every connection; all bytes that have come come out with the end of the connection.
fn impostor(listener: TcpListener, says: impl Fn(usize, &Value) -> Option<Value> + Send + 'static) -> Receiver<Vec<u8>> {
    let (arrived, bytes) = mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            // However busy the machine is, who connects says something; when it has nothing more to say shows only by silence.
            stream.set_read_timeout(Some(LONG)).unwrap();
            let mut heard = Vec::new();
            let mut number = 0;
            while let Ok(value) = read(&mut stream) {
                stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
                heard.extend(value.to_string().into_bytes());
                let Some(answer) = says(number, &value) else { break };
                let _ = stream.write_all(&frame(&answer));
                number += 1;
            }
            // What is no frame of JSON.
            let _ = stream.read_to_end(&mut heard);
            if arrived.send(heard).is_err() {
                return;
            }
        }
    });
    bytes
}

/// A world in which `a` has held the name, died as a machine does and not given
/// anything back; `b` sees it where it was, and its port is free.
async fn dead(token: Option<&str>, b_peers: PeersSettings) -> (World, ShardingService, String) {
    let is_allowed = b_peers == PeersSettings::default();
    let world = World { ttl: Duration::from_mins(2), ..World::new() };
    let a = with_messages(&world, "a", with_token(token));
    let b = within(&world, "b", world.store.link(), with_token(token), b_peers);
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
    eventually("its port is free", || TcpListener::bind(&at).is_ok()).await;
    // Until the connection that was there before is seen to be gone, what goes over it is unknown.
    while let Err(MessageError::Lost { .. }) = handle(&b).send_within(echo("x"), Duration::from_millis(200)).await {}
    (world, b, at)
}

/// What came on the first connection.
async fn first(heard: Receiver<Vec<u8>>) -> String {
    let bytes = tokio::task::spawn_blocking(move || heard.recv_timeout(LONG).unwrap()).await.unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A process that got the port of a dead holder before the holder's lease has expired.
#[tokio::test]
async fn a_process_on_a_dead_holders_port_learns_nothing_and_forges_nothing() {
    let (_log, _on) = Log::start();
    let says: [(&str, Says); 6] = [
        ("nothing", |_, _| None),
        ("ok, as before members proved themselves", |_, _| Some(json!("ok"))),
        ("that it has no token", |number, _| {
            Some(if number == 0 { json!({"challenge": {"nonce": Nonce::random().to_string(), "proof": null}}) } else { json!("ok") })
        }),
        ("any proof", |number, _| {
            let [nonce, proof] = [(); 2].map(|()| Nonce::random().to_string());
            Some(if number == 0 { json!({"challenge": {"nonce": nonce, "proof": proof}}) } else { json!("ok") })
        }),
        ("the caller's own nonce", |_, hello| Some(json!({"challenge": {"nonce": hello["nonce"], "proof": hello["nonce"]}}))),
        ("that it is of another version", |_, _| Some(json!("other_protocol"))),
    ];
    for (what, says) in says {
        let (_world, b, at) = dead(Some(TOKEN), PeersSettings::default()).await;
        let heard = impostor(TcpListener::bind(&at).unwrap(), says);
        match handle(&b).send_within(echo(SECRET), Duration::from_secs(2)).await {
            Err(error @ (MessageError::NoLeader { .. } | MessageError::Lost { .. })) => {
                assert!(!error.may_have_been_handled(), "{what}: {error}");
                assert!(!error.to_string().contains(TOKEN), "{what}: {error}");
            }
            other => panic!("{what}: {other:?}"),
        }
        let heard = first(heard).await;
        assert!(heard.contains("\"shardwise\":2"), "{what}: it was called, and heard {heard:?}");
        assert!(!heard.contains(SECRET) && !heard.contains(TOKEN), "{what}: {heard:?}");
    }
}

/// The caller's end of a connection to `a` that has proven itself, and the proof frame that comes next.
fn challenged(b: &ShardingService, token: &str) -> (TcpStream, Value, Option<ProofSession>) {
    let mut stream = connect(&address(b, "a").unwrap());
    let hello = hello(b, "a");
    stream.write_all(&frame(&hello)).unwrap();
    let challenge = read(&mut stream).unwrap()["challenge"].clone();
    let members = b.members();
    let member = members.members().iter().find(|member| member.instance_id.as_str() == "a").unwrap();
    let group = shardwise::core::GroupName::new("group").unwrap();
    let recipient =
        Recipient { channel: Channel::Messages, group: &group, instance_id: &member.instance_id, incarnation: member.incarnation };
    let [callers, own] = [&hello["nonce"], &challenge["nonce"]].map(|nonce| nonce.as_str().unwrap().parse().unwrap());
    let session = ProofSession::new(token.as_bytes(), &recipient, &callers, &own);
    let proof: Proof = challenge["proof"].as_str().unwrap().parse().unwrap();
    let session = session.proves(&proof, ProofKind::Welcome, 0, &[]).then_some(session);
    (stream, hello, session)
}

fn sealed(session: &ProofSession, kind: ProofKind, count: u64, json: &str) -> Vec<u8> {
    let length = u32::try_from(json.len() + 32).unwrap().to_be_bytes();
    [&length[..], session.proof(kind, count, &[json.as_bytes()]).bytes(), json.as_bytes()].concat()
}

/// Reads one frame and whether its proof is right.
fn opened(stream: &mut TcpStream, session: &ProofSession, count: u64) -> Value {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut bytes = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut bytes).unwrap();
    let (proof, json) = bytes.split_first_chunk::<32>().unwrap();
    assert!(session.proves(&Proof::from_bytes(*proof), ProofKind::Answer, count, &[json]), "an answer is proven");
    serde_json::from_slice(json).unwrap()
}

#[tokio::test]
async fn every_frame_is_proven_in_its_place_and_a_recorded_one_is_worth_nothing() {
    let (_log, _on) = Log::start();
    let world = World::new();
    let (a, b) = (joined_with(&world, "a", Some(TOKEN)).await, joined_with(&world, "b", Some(TOKEN)).await);
    let _run = run(&a);
    assert_eq!(handle(&b).send_within(echo("x"), LONG).await.expect("a reply").by, "a");
    let epoch = handle(&b).send_within(echo("x"), LONG).await.expect("a reply").epoch;
    let caller = b.clone();
    let attacks = move || {
        let b = caller;
        let request = json!({"id": 1, "to": "singleton/boss", "epoch": epoch, "within_ms": 60_000, "body": {"Echo": SECRET}}).to_string();
        let well = |stream: &mut TcpStream, session: &ProofSession| {
            stream.write_all(&sealed(session, ProofKind::Question, 0, "null")).unwrap();
            assert_eq!(opened(stream, session, 0), json!("ok"));
            stream.write_all(&sealed(session, ProofKind::Question, 1, &request)).unwrap();
            assert_eq!(opened(stream, session, 1)["answer"]["reply"]["text"], SECRET);
        };
        let begun = || {
            let (stream, hello, session) = challenged(&b, TOKEN);
            (stream, hello, session.expect("it proves that it is a"))
        };
        let (mut stream, recorded, session) = begun();
        well(&mut stream, &session);
        stream.write_all(&sealed(&session, ProofKind::Question, 1, &request)).unwrap();
        assert!(is_closed(&mut stream), "the same frame again on its connection");

        // On another connection, with the same hello: the holder's nonce is another one.
        let mut again = connect(&address(&b, "a").unwrap());
        again.write_all(&frame(&recorded)).unwrap();
        read(&mut again).unwrap();
        again.write_all(&sealed(&session, ProofKind::Question, 0, "null")).unwrap();
        assert!(is_closed(&mut again), "what was recorded on another connection");

        for (what, kind, count, text, proven) in [
            ("changed", ProofKind::Question, 1, request.replace("nobody", "anybody"), &request),
            ("sent back", ProofKind::Answer, 1, request.clone(), &request),
            ("out of turn", ProofKind::Question, 2, request.clone(), &request),
        ] {
            let (mut stream, _, session) = begun();
            stream.write_all(&sealed(&session, ProofKind::Question, 0, "null")).unwrap();
            assert_eq!(opened(&mut stream, &session, 0), json!("ok"));
            let mut bytes = sealed(&session, kind, count, &text);
            bytes[4..36].copy_from_slice(session.proof(kind, count, &[proven.as_bytes()]).bytes());
            stream.write_all(&bytes).unwrap();
            assert!(is_closed(&mut stream), "{what}");
        }
        let (mut stream, _, _) = begun();
        stream.write_all(&frame(&Value::Null)).unwrap();
        assert!(is_closed(&mut stream), "without a proof");
        assert!(challenged(&b, "members-know-another").2.is_none(), "who has another token does not believe the holder");
    };
    tokio::task::spawn_blocking(attacks).await.unwrap();
    assert_eq!(handle(&b).send_within(echo("still there"), LONG).await.expect("a reply").by, "a");
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
            if error.to_string().contains("messages_token_file") {
                break;
            }
            assert!(begun.elapsed() < 3 * LONG, "{error}");
        }
    }
    assert_eq!(log.lines_with("another token, or none"), 1, "three were refused, and that is one line");
}

/// Between versions nothing is exchanged, and both sides say so.
#[tokio::test]
async fn an_older_caller_that_sends_its_token_is_refused_and_an_older_holder_gets_none() {
    let (log, _on) = Log::start();
    let world = World::new();
    let (a, b) = (joined_with(&world, "a", Some(TOKEN)).await, joined_with(&world, "b", Some(TOKEN)).await);
    let _run = run(&a);
    assert_eq!(handle(&b).send_within(echo("x"), LONG).await.expect("a reply").by, "a");
    let mut old = hello(&b, "a");
    (old["shardwise"], old["token"]) = (json!(1), json!(TOKEN));
    old.as_object_mut().unwrap().remove("nonce");
    let at = address(&b, "a").unwrap();
    let to = at.clone();
    let refused = move || {
        let mut stream = connect(&to);
        stream.write_all(&frame(&old)).unwrap();
        assert_eq!(read(&mut stream).unwrap(), json!("other_protocol"));
        assert!(is_closed(&mut stream));
    };
    tokio::task::spawn_blocking(refused).await.unwrap();
    eventually("the holder says so", || log.lines_with("another version of shardwise has tried") == 1).await;

    let (_world, b, at) = dead(Some(TOKEN), PeersSettings::default()).await;
    let heard = impostor(TcpListener::bind(&at).unwrap(), |_, _| Some(json!("other_protocol")));
    let error = handle(&b).send_within(echo(SECRET), Duration::from_secs(2)).await.expect_err("it is not taken");
    assert!(matches!(error, MessageError::NoLeader { .. }), "{error:?}");
    let heard = first(heard).await;
    assert!(heard.contains("\"shardwise\":2") && !heard.contains(TOKEN) && !heard.contains(SECRET), "{heard}");
}

#[tokio::test]
async fn a_holder_outside_of_peer_networks_is_never_connected_to() {
    let (_log, _on) = Log::start();
    let mut peers = PeersSettings::default();
    peers.networks = vec!["10.0.0.0/8".parse().unwrap()];
    let (_world, b, at) = dead(None, peers).await;
    let listener = TcpListener::bind(&at).unwrap();
    listener.set_nonblocking(true).unwrap();
    match handle(&b).send_within(echo(SECRET), LONG).await {
        Err(error @ MessageError::Refused { .. }) => assert!(error.to_string().contains("in none of peer_networks"), "{error}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nobody has called");
}
