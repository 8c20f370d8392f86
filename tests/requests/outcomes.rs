//! What a caller knows of a request without an answer: never that it was not handled where it may have been.

use futures::future::BoxFuture;
use hyper::body::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use super::channel::{Side, receive, rest, taken};
use super::http2::{Http2Frame, first_of};
use super::*;

type Connection = h2::server::Connection<DuplexStream, Bytes>;

/// What a member does with a connection on which both ends have proven themselves.
type Serves = fn(DuplexStream) -> BoxFuture<'static, ()>;

/// A member's port with that behind it.
async fn member(serves: Serves) -> SocketAddr {
    let each = move |stream| async move {
        let opened = taken(stream, Some(TOKEN)).await.unwrap();
        serves(opened.plain(Side::Recipient)).await;
    };
    process(each).await
}

async fn serving(stream: DuplexStream) -> Connection {
    h2::server::handshake(stream).await.unwrap()
}

/// Lets what was sent go out. Waits for nothing else, since no further request comes.
async fn flushed(connection: &mut Connection) {
    let _ = tokio::time::timeout(Duration::from_millis(200), connection.accept()).await;
}

fn head(by: Option<&str>, length: usize) -> http::Response<()> {
    let head = http::Response::builder().header("content-length", length);
    by.into_iter().fold(head, |head, by| head.header("shardwise-peer", by)).body(()).unwrap()
}

/// Answers with that head and that body, and lets it go out. A body of the stated length ends.
async fn answers(connection: &mut Connection, by: Option<&str>, length: usize, body: &'static str) -> h2::SendStream<Bytes> {
    let (_, mut respond) = connection.accept().await.unwrap().unwrap();
    let mut sending = respond.send_response(head(by, length), false).unwrap();
    sending.send_data(body.into(), length == body.len()).unwrap();
    flushed(connection).await;
    sending
}

/// What the member does, the outcome, and what the caller gets.
const CASES: [(&str, Serves, &str, &str); 9] = [
    (
        "refuses the stream",
        |stream| {
            Box::pin(async move {
                let mut connection = serving(stream).await;
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    respond.send_reset(h2::Reason::REFUSED_STREAM);
                }
            })
        },
        "unsent",
        "refused",
    ),
    (
        "resets the stream for another reason",
        |stream| {
            Box::pin(async move {
                let mut connection = serving(stream).await;
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    respond.send_reset(h2::Reason::INTERNAL_ERROR);
                }
            })
        },
        "unknown",
        "internal error",
    ),
    (
        "says by GOAWAY that it has begun with nothing",
        |mut stream| {
            Box::pin(async move {
                stream.read_exact(&mut [0; 24]).await.unwrap();
                stream.write_all(&Http2Frame::new(Http2Frame::SETTINGS, 0, 0, Vec::new()).bytes()).await.unwrap();
                first_of(&mut stream, Http2Frame::HEADERS).await.unwrap();
                // The last stream and the reason.
                stream.write_all(&Http2Frame::new(Http2Frame::GOAWAY, 0, 0, vec![0; 8]).bytes()).await.unwrap();
                rest(&mut stream).await;
            })
        },
        "unknown",
        "",
    ),
    (
        "closes the connection once it has the head",
        |stream| {
            Box::pin(async move {
                let mut connection = serving(stream).await;
                drop(connection.accept().await);
            })
        },
        "unknown",
        "",
    ),
    (
        "closes the connection in the middle of its answer",
        |stream| {
            Box::pin(async move {
                let mut connection = serving(stream).await;
                answers(&mut connection, Some("1"), 10, "abc").await;
            })
        },
        "unknown",
        "cut off",
    ),
    (
        "resets the stream in the middle of its answer, without an error",
        |stream| {
            Box::pin(async move {
                let mut connection = serving(stream).await;
                let mut sending = answers(&mut connection, Some("1"), 10, "abc").await;
                sending.send_reset(h2::Reason::NO_ERROR);
                drop(sending);
                while connection.accept().await.is_some() {}
            })
        },
        "unknown",
        "cut off",
    ),
    (
        "answers as a program that is not a member",
        |stream| {
            Box::pin(async move {
                let mut connection = serving(stream).await;
                answers(&mut connection, None, 3, "abc").await;
                while connection.accept().await.is_some() {}
            })
        },
        "unknown",
        "not one of a member",
    ),
    (
        "answers with more than is allowed",
        |stream| {
            Box::pin(async move {
                let mut connection = serving(stream).await;
                let (_, mut respond) = connection.accept().await.unwrap().unwrap();
                let mut sending = respond.send_response(head(Some("1"), BODY_BYTES_MAX + 1), false).unwrap();
                sending.send_data(vec![0_u8; BODY_BYTES_MAX + 1].into(), true).unwrap();
                while connection.accept().await.is_some() {}
            })
        },
        "unknown",
        "too long",
    ),
    (
        "refuses the request",
        |stream| {
            Box::pin(async move {
                let mut connection = serving(stream).await;
                let (_, mut respond) = connection.accept().await.unwrap().unwrap();
                let refusal = http::Response::builder().status(503).header("shardwise-peer", "refused").body(()).unwrap();
                respond.send_response(refusal, true).unwrap();
                while connection.accept().await.is_some() {}
            })
        },
        "unsent",
        "",
    ),
];

#[tokio::test]
async fn what_a_member_does_instead_of_an_answer_says_what_is_known() {
    let world = World::new();
    let (one, two) = (worker(&world, "one", Some(TOKEN)), worker(&world, "two", Some(TOKEN)));
    for (what, serves, outcome, says) in CASES {
        let there = endpoint(&one, member(serves).await);
        let failed = brings(&two, &there, &Request::post("act", "text/plain", "x")).await.expect_err(what);
        assert_eq!(failed.outcome(), outcome, "{what}: {failed}");
        assert!(failed.to_string().contains(says), "{what}: {failed}");
        assert_eq!(failed.may_have_been_handled(), outcome == "unknown", "{what}");
    }
}

/// A connection that its member closes while it is idle is replaced, and what was in flight is answered.
#[tokio::test]
async fn a_connection_that_ends_in_good_order_loses_nothing() {
    let world = World::new();
    let (one, two) = (worker(&world, "one", Some(TOKEN)), worker(&world, "two", Some(TOKEN)));
    let at = member(|stream| {
        Box::pin(async move {
            let mut connection = serving(stream).await;
            let (_, mut respond) = connection.accept().await.unwrap().unwrap();
            connection.graceful_shutdown();
            flushed(&mut connection).await;
            respond.send_response(head(Some("1"), 3), false).unwrap().send_data("yes".into(), true).unwrap();
            while connection.accept().await.is_some() {}
        })
    })
    .await;
    for _ in 0..5 {
        assert_eq!(brings(&two, &endpoint(&one, at), &Request::post("act", "text/plain", "x")).await.unwrap().body, b"yes");
    }
}

/// A real member, and a network that breaks.
#[tokio::test]
async fn a_connection_that_is_cut_leaves_what_was_sent_unknown_and_the_rest_unsent() {
    let world = World::new();
    let (one, two) = (worker(&world, "one", Some(TOKEN)), worker(&world, "two", Some(TOKEN)));
    let running = hangs(&one, "hang");
    let network = Network::default();
    let there = endpoint(&one, network.before(one.listen_for_requests().await.unwrap()).await);
    let asked = tokio::spawn({
        let (two, there) = (two.clone(), there.clone());
        async move { brings(&two, &there, &post("hang")).await }
    });
    eventually("it is being handled", || running.load(Ordering::Relaxed) == 1).await;
    network.cut.cancel();
    let failed = asked.await.unwrap().unwrap_err();
    assert!(failed.may_have_been_handled(), "{failed:?}");
    eventually("its handler has ended", || running.load(Ordering::Relaxed) == 0).await;
    let failed = brings(&two, &there, &post("hang")).await.unwrap_err();
    assert!(matches!(failed, Undelivered::Unsent(_)), "{failed:?}");
}

#[tokio::test]
async fn a_request_that_is_dropped_ends_its_handler() {
    let world = World::new();
    let (one, two) = (worker(&world, "one", Some(TOKEN)), worker(&world, "two", Some(TOKEN)));
    let running = hangs(&one, "hang");
    let there = endpoint(&one, one.listen_for_requests().await.unwrap());
    let asked = tokio::spawn({
        let (two, there) = (two.clone(), there.clone());
        async move { brings(&two, &there, &post("hang")).await }
    });
    eventually("it is being handled", || running.load(Ordering::Relaxed) == 1).await;
    asked.abort();
    eventually("its handler has ended", || running.load(Ordering::Relaxed) == 0).await;
    assert_eq!(brings(&two, &there, &Request::get("status")).await.unwrap().status, 200, "the connection stays");
}

#[tokio::test]
async fn a_deadline_and_another_right_member_end_an_attempt_before_and_after_it_was_sent() {
    let world = World::new();
    let (one, two) = (worker(&world, "one", Some(TOKEN)), worker(&world, "two", Some(TOKEN)));
    let running = hangs(&one, "hang");
    let there = endpoint(&one, one.listen_for_requests().await.unwrap());
    // Takes a hello and says nothing.
    let silent = process(|mut stream| async move {
        let _ = receive(&mut stream).await;
        rest(&mut stream).await;
    });
    let silent = endpoint(&one, silent.await);
    // Takes requests and answers none.
    let deaf = member(|stream| {
        Box::pin(async move {
            let (mut connection, mut held) = (serving(stream).await, Vec::new());
            while let Some(request) = connection.accept().await {
                held.push(request);
            }
        })
    });
    let deaf = endpoint(&one, deaf.await);
    let begun = Instant::now();
    let within = |limit: Duration| Attempt::until(Instant::now() + limit);
    // Long enough to connect and to send, on a busy machine too.
    match two.connections().bring(&deaf, &post("hang"), &within(Duration::from_secs(2))).await {
        Err(Undelivered::Unknown(why)) => assert!(why.contains("no answer in time"), "{why}"),
        other => panic!("{other:?}"),
    }
    // Shorter than a hello may take.
    match two.connections().bring(&silent, &post("hang"), &within(Duration::from_millis(300))).await {
        Err(Undelivered::Unsent(why)) => assert!(why.contains("too long to connect"), "{why}"),
        other => panic!("{other:?}"),
    }
    for (there, outcome) in [(&there, "unknown"), (&silent, "unsent")] {
        let attempt = Attempt::until(Instant::now() + 10 * LONG);
        let superseded = attempt.superseded.clone();
        let asked = tokio::spawn({
            let (two, there) = (two.clone(), there.clone());
            async move { two.connections().bring(&there, &post("hang"), &attempt).await }
        });
        if outcome == "unknown" {
            eventually("it is being handled", || running.load(Ordering::Relaxed) == 1).await;
        }
        superseded.cancel();
        assert_eq!(asked.await.unwrap().unwrap_err().outcome(), outcome);
    }
    assert!(begun.elapsed() < 5 * LONG, "none of them has waited for the deadline");
    // Without a deadline of its own the hello has one.
    match brings(&two, &silent, &post("hang")).await {
        Err(Undelivered::Unsent(why)) => assert!(why.contains("does not prove within"), "{why}"),
        other => panic!("{other:?}"),
    }
}

/// Its connections end when it leaves, and at its old place it is not to be had.
#[tokio::test]
async fn a_member_that_has_joined_again_on_its_port_is_another_one() {
    let world = World::new();
    let (one, two) = (worker(&world, "one", Some(TOKEN)), worker(&world, "two", Some(TOKEN)));
    let done = counts(&one, "act");
    let at = one.listen_for_requests().await.unwrap();
    one.register_self().await.unwrap();
    let before = endpoint(&one, at);
    assert_eq!(brings(&two, &before, &post("act")).await.unwrap().body, b"done");
    one.deregister_self().await.unwrap();
    one.register_self().await.unwrap();
    let now = endpoint(&one, at);
    assert_ne!(now, before);
    let three = worker(&world, "three", Some(TOKEN));
    for caller in [&two, &three] {
        match brings(caller, &before, &post("act")).await {
            Err(Undelivered::Unsent(why)) => assert!(why.contains("another process is there now"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(done.load(Ordering::Relaxed), 1);
    assert_eq!(brings(&two, &now, &post("act")).await.unwrap().body, b"done");
}

#[tokio::test]
async fn a_member_that_is_not_there_gets_nothing() {
    let world = World::new();
    let (one, two) = (worker(&world, "one", Some(TOKEN)), worker(&world, "two", Some(TOKEN)));
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = free.local_addr().unwrap();
    drop(free);
    assert!(matches!(brings(&two, &endpoint(&one, at), &post("act")).await, Err(Undelivered::Unsent(_))));
    let nowhere = MemberEndpoint { address: "tcp://no-such-host.invalid:7".into(), ..endpoint(&one, at) };
    assert!(matches!(brings(&two, &nowhere, &post("act")).await, Err(Undelivered::Unsent(_))));
}
