//! Who is no member, has recorded one, or sits between two: learns nothing and forges nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

#[tokio::test]
async fn an_older_caller_that_sends_its_token_is_refused_with_words_whether_or_not_it_is_right() {
    let world = World::new();
    for token in [Some(TOKEN), None] {
        let one = worker(&world, "one", token);
        let at = one.listen_for_requests().await.unwrap();
        for shown in [TOKEN, "another-token-than-that"] {
            let bearer = format!("{PEER}Authorization: Bearer {shown}\r\n");
            let (status, text) = raw(at, head("GET", &format!("{}status", one.requests_path()), &bearer)).await;
            assert!(status == 426 && text.contains("shardwise-peer: refused"), "{text}");
            assert!(text.contains("older version of shardwise") && text.contains("upgrade the caller"), "{text}");
        }
    }
}

/// What was recorded is worth nothing: neither again on its connection nor on another one, nor changed in any part.
#[tokio::test]
async fn a_recorded_proof_counts_once_and_a_changed_request_never() {
    let world = World::new();
    let one = worker(&world, "one", Some(TOKEN));
    let done = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&done);
    one.on_request("act", move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { "done" }
    })
    .unwrap();
    let (at, target) = (one.listen_for_requests().await.unwrap(), format!("{}act", one.requests_path()));
    let attacks = tokio::task::spawn_blocking(move || {
        let recorded = |token: &str| {
            let (stream, _, asking) = greeted(at, &one, token);
            let mut asking = asking.expect("it is the one that was called");
            let request = proven(&mut asking, "POST", &target, "{\"a\":1}");
            (stream, request)
        };
        let (mut stream, request) = recorded(TOKEN);
        // Twice in one go: the listener answers one request on a connection, and closes.
        let text = exchanged(&mut stream, [request.as_bytes(), request.as_bytes()].concat().as_slice());
        assert!(status(&text) == 200 && text.matches("HTTP/1.1").count() == 1, "{text}");
        assert_eq!(done.swap(0, Ordering::Relaxed), 1);

        let sent = |change: &dyn Fn(&str) -> String| {
            let (mut stream, request) = recorded(TOKEN);
            let text = exchanged(&mut stream, change(&request).as_bytes());
            assert_ne!(change(&request), request);
            (status(&text), text)
        };
        assert_eq!(sent(&|_| request.clone()).0, 401, "on another connection");
        for (from, to) in [
            ("POST ", "GET "),
            ("/act ", "/act? "),
            ("/act ", "/status "),
            ("shardwise-peer", "content-type: x\r\nshardwise-peer"),
            ("shardwise-peer", "shardwise-to: any\r\nshardwise-peer"),
            ("-digest: ", "-digest: 0"),
        ] {
            let (status, text) = sent(&|request| request.replacen(from, to, 1));
            assert!(status == 401 && header(&text, "shardwise-proof").is_none(), "{from:?} as {to:?}: {text}");
        }
        let (status, text) = sent(&|request| request.replace("{\"a\":1}", "{\"a\":2}"));
        assert!(status == 400 && text.contains("is not the one that was proven"), "another body: {text}");
        assert_eq!(done.load(Ordering::Relaxed), 0, "none of it was handled");

        let (_, text, asking) = greeted(at, &one, "another-token-than-that");
        assert!(asking.is_none() && !text.contains(TOKEN), "who has another token is not believed, and hears nothing of this one: {text}");
    });
    attacks.await.unwrap();
}

/// A process that takes a greeting to another member, or back to its caller, has no proof to show.
#[tokio::test]
async fn the_proof_of_another_member_is_none() {
    let world = World::new();
    let (one, other) = (worker(&world, "one", Some(TOKEN)), worker(&world, "other", Some(TOKEN)));
    let at = other.listen_for_requests().await.unwrap();
    let relayed = move || {
        let nonce = Nonce::random();
        // The greeting for `one`, with the path of the one that is there.
        let greeting = head("GET", &other.requests_path(), &format!("{PEER}Connection: close\r\nshardwise-nonce: {nonce}\r\n"));
        let text = exchanged(&mut TcpStream::connect(at).unwrap(), &greeting);
        let [own, proof] = ["shardwise-nonce", "shardwise-proof"].map(|name| header(&text, name).unwrap().to_owned());
        let believed = |whom: &ShardingService| CallerEnd::begun(TOKEN.as_bytes(), &whom.recipient(), &nonce, &own, &proof).is_some();
        assert!(believed(&other) && !believed(&one));
    };
    tokio::task::spawn_blocking(relayed).await.unwrap();
}
