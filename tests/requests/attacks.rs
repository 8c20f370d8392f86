//! A process that is not a member, has recorded one, or sits between two: learns nothing and forges nothing.

use shardwise::requests::channel::proof::{Nonce, ProofKind, ProofSession};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::channel::{challenged, connect, frame, heard, open, receive, record, rest};
use super::http2::{Http2Frame, preface, request_fields};
use super::*;

const OTHER_TOKEN: &str = "another-token-than-that";
const SECRET: &str = "a body that nobody else may read";

/// Versions 1 and 2 carried messages alone, and requests were HTTP/1.1, first with the token itself.
#[tokio::test]
async fn an_older_caller_is_refused_whatever_it_shows() {
    let world = World::new();
    let one = worker(&world, "one", Some(TOKEN));
    let done = counts(&one, "act");
    let at = one.listen_for_requests().await.unwrap();
    for version in [1, 2, channel::VERSION + 1] {
        let mut hello = Whom::of(&one).hello();
        hello["shardwise"] = json!(version);
        assert_eq!(answer_to(at, &hello).await, json!("other_protocol"), "{version}");
    }
    let mut first = Whom::of(&one).hello();
    first.as_object_mut().unwrap().remove("nonce");
    (first["shardwise"], first["token"]) = (json!(1), json!(TOKEN));
    assert_eq!(answer_to(at, &first).await, json!("other_protocol"), "it shows the token, and is not let in for it");
    let (group, id) = (one.group_name().as_str(), one.instance_id().as_str());
    for head in ["shardwise-peer: 1\r\n".to_owned(), format!("shardwise-peer: 1\r\nAuthorization: Bearer {TOKEN}\r\n")] {
        let mut stream = connect(&at.to_string()).await;
        let request = format!("POST /v1/peers/{group}/{id}/{}/act HTTP/1.1\r\nHost: x\r\n{head}\r\n", one.incarnation());
        // The connection may be closed before all of it is written.
        let _ = stream.write_all(request.as_bytes()).await;
        assert!(rest(&mut stream).await.is_empty());
    }
    assert_eq!(done.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_caller_with_another_token_or_none_gets_nothing_and_learns_no_token() {
    let world = World::new();
    let one = worker(&world, "one", Some(TOKEN));
    let done = counts(&one, "act");
    let at = one.listen_for_requests().await.unwrap();
    for (token, says) in [(Some(OTHER_TOKEN), "give all members the same"), (None, "this process has none")] {
        let stranger = worker(&world, "stranger", token);
        match brings(&stranger, &endpoint(&one, at), &Request::get("act")).await {
            Err(Undelivered::Unproven(why)) => assert!(why.contains(says) && !why.contains(TOKEN), "{why}"),
            other => panic!("{token:?}: {other:?}"),
        }
    }
    // The other way round the caller has a token, and what answers proves none.
    let open_one = worker(&world, "open", None);
    let two = worker(&world, "two", Some(TOKEN));
    match brings(&two, &endpoint(&open_one, open_one.listen_for_requests().await.unwrap()), &Request::get("status")).await {
        Err(Undelivered::Unproven(why)) => assert!(why.contains("it has no peer token"), "{why}"),
        other => panic!("{other:?}"),
    }

    // By hand: a caller that does not stop at the challenge is refused.
    let (address, whom) = (at.to_string(), Whom::of(&one));
    let told = async |what: &str, proof: &dyn Fn(&channel::Challenged<TcpStream>) -> Value| {
        let mut begun = challenged(connect(&address).await, &whom, Some(TOKEN), &[]).await.unwrap();
        let shown = json!({"proof": proof(&begun)});
        begun.stream.write_all(&frame(&shown)).await.unwrap();
        assert_eq!(receive(&mut begun.stream).await.unwrap(), json!("unproven"), "{what}");
        assert!(rest(&mut begun.stream).await.is_empty(), "{what}");
        assert!(!begun.challenge.to_string().contains(TOKEN), "{what}");
    };
    let of = |session: Option<&ProofSession>, kind, count, fields: &[&[u8]]| json!(session.unwrap().proof(kind, count, fields).to_string());
    told("no proof", &|_| Value::Null).await;
    told("no proof at all", &|_| json!("x")).await;
    told("the recipient's own proof", &|begun| begun.challenge["proof"].clone()).await;
    told("any proof", &|_| json!(Nonce::random().to_string())).await;
    told("the proof of a record", &|begun| of(begun.session.as_ref(), ProofKind::Question, 0, &[&[]])).await;
    told("a later one", &|begun| of(begun.session.as_ref(), ProofKind::Confirmation, 1, &[&[]])).await;
    told("with a binding, as over TLS", &|begun| of(begun.session.as_ref(), ProofKind::Confirmation, 0, &[&[7; 32]])).await;
    told("with another token", &|begun| {
        let session = whom.session(OTHER_TOKEN, &begun.hello["nonce"], &begun.challenge["nonce"]);
        of(Some(&session), ProofKind::Confirmation, 0, &[&[]])
    })
    .await;
    let other = challenged(connect(&address).await, &whom, Some(OTHER_TOKEN), &[]).await.unwrap();
    assert!(other.session.is_none(), "who has another token does not believe the member either");
    assert_eq!(done.load(Ordering::Relaxed), 0);
}

/// A process that takes a caller's nonce to another member has no proof to show.
#[tokio::test]
async fn the_proof_of_another_member_is_none() {
    let world = World::new();
    let (one, other) = (worker(&world, "one", Some(TOKEN)), worker(&world, "other", Some(TOKEN)));
    let at = other.listen_for_requests().await.unwrap();
    let greeted = challenged(connect(&at.to_string()).await, &Whom::of(&other), Some(TOKEN), &[]).await.unwrap();
    assert!(greeted.session.is_some(), "it is the other one");
    let session = Whom::of(&one).session(TOKEN, &greeted.hello["nonce"], &greeted.challenge["nonce"]);
    let proof = greeted.challenge["proof"].as_str().unwrap().parse().unwrap();
    assert!(!session.proves(&proof, ProofKind::Welcome, 0, &[&[]]));
}

/// The two records of a request that needs no answer to be handled: what begins HTTP/2, and the request itself.
fn contents() -> [Vec<u8>; 2] {
    let fields = request_fields("POST", "/act", &[("shardwise-to", "instance")]);
    [preface(), Http2Frame::head(1, &fields, true).bytes()]
}

/// What a caller with that key writes instead of the two records.
type Attack<'a> = &'a dyn Fn(&ProofSession) -> Vec<Vec<u8>>;

/// What was recorded is worth nothing: neither again on its connection nor on another one, nor changed, nor in another place.
#[tokio::test]
async fn a_record_counts_once_in_its_place_and_unchanged() {
    let world = World::new();
    let one = worker(&world, "one", Some(TOKEN));
    let done = counts(&one, "act");
    let (address, whom) = (one.listen_for_requests().await.unwrap().to_string(), Whom::of(&one));
    let [begin, request] = contents();
    let as_question = |session: &ProofSession, number, content: &[u8]| record(session, ProofKind::Question, number, content);
    let both = |session: &ProofSession| [as_question(session, 0, &begin), as_question(session, 1, &request)];

    let opened = open(&address, &whom, Some(TOKEN)).await.unwrap();
    let (mut stream, session) = (opened.stream, opened.session.unwrap());
    let [first, second] = both(&session);
    stream.write_all(&[first, second.clone()].concat()).await.unwrap();
    eventually("it is handled", || done.load(Ordering::Relaxed) == 1).await;
    assert!(!heard(&mut stream, &session, ProofKind::Answer, 0).await.unwrap().is_empty(), "what comes back is proven too");
    stream.write_all(&second).await.unwrap();
    rest(&mut stream).await;
    assert_eq!(done.load(Ordering::Relaxed), 1, "the same record again");
    let earlier = session;

    let attacks: [(&str, Attack<'_>); 9] = [
        ("the first one again", &|session| {
            let [first, second] = both(session);
            vec![first.clone(), first, second]
        }),
        ("in another order", &|session| {
            let [first, second] = both(session);
            vec![second, first]
        }),
        ("one is missing", &|session| {
            let [_, second] = both(session);
            vec![second]
        }),
        ("one in between is missing", &|session| vec![as_question(session, 0, &begin), as_question(session, 2, &request)]),
        ("sent back as an answer", &|session| vec![as_question(session, 0, &begin), record(session, ProofKind::Answer, 1, &request)]),
        ("changed", &|session| {
            let [first, mut second] = both(session);
            *second.last_mut().unwrap() ^= 1;
            vec![first, second]
        }),
        ("made longer", &|session| {
            let [first, second] = both(session);
            let length = u32::try_from(request.len() + 1).unwrap().to_be_bytes();
            vec![first, [&length[..], &second[4..], &[0]].concat()]
        }),
        ("of an earlier connection", &|session| vec![as_question(session, 0, &begin), as_question(&earlier, 1, &request)]),
        ("without a proof", &|_| vec![begin.clone(), request.clone()]),
    ];
    for (what, attack) in attacks {
        let opened = open(&address, &whom, Some(TOKEN)).await.unwrap();
        let (mut stream, session) = (opened.stream, opened.session.unwrap());
        // It may be closed in between.
        let _ = stream.write_all(&attack(&session).concat()).await;
        rest(&mut stream).await;
        assert_eq!(done.load(Ordering::Relaxed), 1, "{what}");
    }
}

#[tokio::test]
async fn a_recorded_connection_is_worth_nothing() {
    let world = World::new();
    let one = worker(&world, "one", Some(TOKEN));
    let done = counts(&one, "act");
    let address = one.listen_for_requests().await.unwrap().to_string();
    let mut begun = challenged(connect(&address).await, &Whom::of(&one), Some(TOKEN), &[]).await.unwrap();
    let session = begun.session.clone().unwrap();
    let confirmation = frame(&begun.confirmation());
    let [begin, request] = contents();
    let records = [record(&session, ProofKind::Question, 0, &begin), record(&session, ProofKind::Question, 1, &request)].concat();
    begun.stream.write_all(&[confirmation.clone(), records.clone()].concat()).await.unwrap();
    eventually("it is handled", || done.load(Ordering::Relaxed) == 1).await;

    // All that the caller has sent, on another connection: the recipient's nonce is another one.
    let mut again = connect(&address).await;
    again.write_all(&[frame(&begun.hello), confirmation].concat()).await.unwrap();
    let challenge = receive(&mut again).await.unwrap();
    assert_ne!(challenge["challenge"]["nonce"], begun.challenge["nonce"]);
    assert_eq!(receive(&mut again).await.unwrap(), json!("unproven"));
    let _ = again.write_all(&records).await;
    assert!(rest(&mut again).await.is_empty());
    assert_eq!(done.load(Ordering::Relaxed), 1);
}

/// The answer to a hello. `None` closes the connection.
type Says = fn(&Value) -> Option<Value>;

/// A process that has got the port of a member that has died.
#[tokio::test]
async fn a_process_on_a_members_port_learns_nothing_and_forges_nothing() {
    let world = World::new();
    let (gone, two) = (worker(&world, "gone", Some(TOKEN)), worker(&world, "two", Some(TOKEN)));
    let says: [(&str, Says); 7] = [
        ("nothing", |_| None),
        ("ok, as before members proved themselves", |_| Some(json!("ok"))),
        ("that it has no token", |_| Some(json!({"challenge": {"nonce": Nonce::random().to_string(), "proof": null}}))),
        ("any proof", |_| Some(json!({"challenge": {"nonce": Nonce::random().to_string(), "proof": Nonce::random().to_string()}}))),
        ("the caller's own nonce", |hello| Some(json!({"challenge": {"nonce": hello["nonce"], "proof": hello["nonce"]}}))),
        ("that it is of another version", |_| Some(json!("other_protocol"))),
        ("that the caller is unproven", |_| Some(json!("unproven"))),
    ];
    for (what, says) in says {
        let (heard, mut hears) = tokio::sync::mpsc::unbounded_channel();
        let at = process(move |mut stream| {
            let heard = heard.clone();
            async move {
                let hello = receive(&mut stream).await.unwrap();
                let mut all = hello.to_string().into_bytes();
                if let Some(answer) = says(&hello) {
                    stream.write_all(&frame(&answer)).await.unwrap();
                    // A caller that believes it goes on.
                    let _ = stream.write_all(&frame(&json!("ok"))).await;
                    let _ = stream.read_to_end(&mut all).await;
                }
                heard.send(all).unwrap();
            }
        })
        .await;
        let outcome = brings(&two, &endpoint(&gone, at), &Request::post("act", "text/plain", SECRET)).await.unwrap_err();
        assert!(matches!(outcome, Undelivered::Unsent(_) | Undelivered::Unproven(_)), "{what}: {outcome:?}");
        assert!(!outcome.may_have_been_handled() && !outcome.to_string().contains(TOKEN), "{what}: {outcome}");
        let all = String::from_utf8_lossy(&hears.recv().await.unwrap()).into_owned();
        assert!(all.contains("\"shardwise\":3") && all.contains("\"gone\""), "{what}: it was called, and heard {all:?}");
        assert!(!all.contains(SECRET) && !all.contains(TOKEN), "{what}: {all:?}");
    }
}

/// Where nothing may be sent, nothing is connected to.
#[tokio::test]
async fn a_member_outside_of_peer_networks_is_never_connected_to() {
    let world = World::new();
    let mut peers = with_token(Some(TOKEN));
    peers.networks = vec!["10.0.0.0/8".parse().unwrap()];
    let (one, two) = (worker(&world, "one", Some(TOKEN)), worker_with(&world, "two", peers));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    match brings(&two, &endpoint(&one, at), &Request::get("status")).await {
        Err(Undelivered::Barred(why)) => assert!(why.contains("in none of peer_networks"), "{why}"),
        other => panic!("{other:?}"),
    }
    let called = tokio::time::timeout(Duration::from_millis(200), listener.accept()).await;
    assert!(called.is_err(), "nothing has called");
}
