//! Callers that know the token and do not keep to HTTP/2, or keep to it and are a nuisance: each is limited, and members are not disturbed.

use tokio::io::{AsyncWriteExt as _, DuplexStream};

use super::channel::{Side, open, rest};
use super::http2::{Http2Frame, ask, client, fields, first_of, preface, request_fields};
use super::*;

const TO_ONE: (&str, &str) = ("shardwise-to", "instance");

/// The worker that is attacked, a member that asks it too, and where.
struct Scene {
    one: ShardingService,
    two: ShardingService,
    there: MemberEndpoint,
    address: String,
}

impl Scene {
    async fn begin(world: &World, token: Option<&str>) -> Self {
        let (one, two) = (worker(world, "one", token), worker(world, "two", token));
        let at = one.listen_for_requests().await.unwrap();
        let there = endpoint(&one, at);
        Self { one, two, there, address: at.to_string() }
    }

    /// A connection of a member that knows the token, before HTTP/2.
    async fn opened(&self) -> DuplexStream {
        let token = self.one.peers().token.as_ref().map(|_| TOKEN);
        open(&self.address, &Whom::of(&self.one), token).await.unwrap().plain(Side::Caller)
    }

    async fn undisturbed(&self) {
        assert_eq!(brings(&self.two, &self.there, &Request::get("status")).await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn what_is_no_http2_ends_its_connection_alone() {
    let world = World::new();
    for token in [Some(TOKEN), None] {
        let scene = Scene::begin(&world, token).await;
        let done = counts(&scene.one, "act");
        let too_long = [&[0xff, 0xff, 0xff, Http2Frame::DATA, 0][..], &1_u32.to_be_bytes(), &[0; 1_000]].concat();
        for bytes in [
            b"POST /act HTTP/1.1\r\nshardwise-to: instance\r\n\r\n".to_vec(),
            vec![0; 100],
            [preface(), too_long].concat(),
            // A stream of the other end's, and one that has not begun.
            [preface(), Http2Frame::head(2, &request_fields("POST", "/act", &[TO_ONE]), true).bytes()].concat(),
            [preface(), Http2Frame::new(Http2Frame::DATA, 0, 1, "x").bytes()].concat(),
            [preface(), Http2Frame::head(1, &[0xff; 20], true).bytes()].concat(),
        ] {
            let mut stream = scene.opened().await;
            stream.write_all(&bytes).await.unwrap();
            rest(&mut stream).await;
        }
        assert_eq!(done.load(Ordering::Relaxed), 0);
        scene.undisturbed().await;
    }
}

#[tokio::test]
async fn endless_and_large_heads_are_refused() {
    let world = World::new();
    let scene = Scene::begin(&world, Some(TOKEN)).await;
    let done = counts(&scene.one, "act");
    let mut stream = scene.opened().await;
    // A head that never ends (CONTINUATION).
    let mut bytes = [preface(), Http2Frame::new(Http2Frame::HEADERS, 0, 1, request_fields("POST", "/act", &[TO_ONE])).bytes()].concat();
    for _ in 0..10 {
        bytes.extend(Http2Frame::new(Http2Frame::CONTINUATION, 0, 1, fields([("x-more", "x".repeat(100).as_str())])).bytes());
    }
    stream.write_all(&bytes).await.unwrap();
    let goaway = first_of(&mut stream, Http2Frame::GOAWAY).await.expect("a GOAWAY");
    assert_eq!(goaway.reason(), h2::Reason::ENHANCE_YOUR_CALM);
    rest(&mut stream).await;

    // One that ends and is too large is refused alone.
    let client = client(scene.opened().await).await;
    let large = "x".repeat(20_000);
    match ask(&client, ("POST", "act"), &[TO_ONE, ("x-large", large.as_str())], "x").await {
        Ok(came) => assert_eq!((came.status, came.by), (431, None)),
        Err(error) => assert!(error.is_reset(), "{error}"),
    }
    assert_eq!(done.load(Ordering::Relaxed), 0);
    assert_eq!(ask(&client, ("POST", "act"), &[TO_ONE], "x").await.unwrap().body, "done");
    scene.undisturbed().await;
}

/// Streams that are opened and reset at once cost the other end work and count towards no limit of streams (CVE-2023-44487).
#[tokio::test]
async fn rapid_resets_end_the_connection() {
    let world = World::new();
    let scene = Scene::begin(&world, Some(TOKEN)).await;
    let running = hangs(&scene.one, "hang");
    let mut stream = scene.opened().await;
    let head = request_fields("GET", "/hang", &[TO_ONE]);
    let pair = |number: u32| {
        let id = 2 * number + 1;
        [Http2Frame::head(id, &head, true).bytes(), Http2Frame::reset(id, h2::Reason::CANCEL).bytes()].concat()
    };
    let all = std::iter::once(preface()).chain((0..100).map(pair)).collect::<Vec<_>>().concat();
    stream.write_all(&all).await.unwrap();
    let goaway = first_of(&mut stream, Http2Frame::GOAWAY).await.expect("a GOAWAY");
    assert_eq!(goaway.reason(), h2::Reason::ENHANCE_YOUR_CALM);
    rest(&mut stream).await;
    eventually("no handler is left", || running.load(Ordering::Relaxed) == 0).await;
    scene.undisturbed().await;
}

/// A caller that changes its mind is none of that: its handlers end, and the connection stays.
#[tokio::test]
async fn requests_that_are_reset_one_after_the_other_end_their_handlers() {
    let world = World::new();
    let scene = Scene::begin(&world, Some(TOKEN)).await;
    let running = hangs(&scene.one, "hang");
    let client = client(scene.opened().await).await;
    for _ in 0..100 {
        let request = http::Request::get("http://shardwise/hang").header(TO_ONE.0, TO_ONE.1).body(()).unwrap();
        let (response, _) = client.clone().ready().await.unwrap().send_request(request, true).unwrap();
        eventually("it is being answered", || running.load(Ordering::Relaxed) == 1).await;
        drop(response);
        eventually("it has ended", || running.load(Ordering::Relaxed) == 0).await;
    }
    assert_eq!(ask(&client, ("GET", "status"), &[TO_ONE], "").await.unwrap().status, 200);
}

#[tokio::test]
async fn a_body_that_drips_has_a_time_limit_and_one_that_is_cut_off_is_none() {
    let world = World::new();
    let scene = Scene::begin(&world, Some(TOKEN)).await;
    let done = counts(&scene.one, "act");
    let dripping = client(scene.opened().await).await;
    let begin = |more: &[(&str, &str)]| {
        let request = http::Request::post("http://shardwise/act").header(TO_ONE.0, TO_ONE.1);
        more.iter().fold(request, |request, (name, value)| request.header(*name, *value)).body(()).unwrap()
    };
    let request = begin(&[("shardwise-within-ms", "700")]);
    let (response, mut body) = dripping.clone().ready().await.unwrap().send_request(request, false).unwrap();
    let drips = async {
        while body.send_data("x".into(), false).is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // The other end has refused it.
        std::future::pending::<()>().await;
    };
    let refused = tokio::select! {
        refused = tokio::time::timeout(LONG, response) => refused.unwrap().unwrap(),
        () = drips => unreachable!("it never ends"),
    };
    assert_eq!((refused.status().as_u16(), refused.headers()["shardwise-peer"].as_bytes()), (408, &b"refused"[..]));

    // Its stated length is not reached: by the end of the body, by a reset without an error, and by the end of the connection.
    let lies = ask(&dripping, ("POST", "act"), &[TO_ONE, ("content-length", "10")], "abc").await;
    assert!(lies.as_ref().is_err_and(h2::Error::is_reset), "{lies:?}");
    for cut in [Http2Frame::reset(1, h2::Reason::NO_ERROR).bytes(), Vec::new()] {
        let mut stream = scene.opened().await;
        let head = Http2Frame::head(1, &request_fields("POST", "/act", &[TO_ONE, ("content-length", "10")]), false).bytes();
        let all = [preface(), head, Http2Frame::new(Http2Frame::DATA, 0, 1, "abc").bytes(), cut].concat();
        stream.write_all(&all).await.unwrap();
        stream.shutdown().await.unwrap();
        rest(&mut stream).await;
    }
    scene.undisturbed().await;
    assert_eq!(done.load(Ordering::Relaxed), 0, "none of it was handled");
}

#[tokio::test]
async fn a_body_above_the_limit_is_refused_whatever_it_states() {
    let world = World::new();
    let scene = Scene::begin(&world, Some(TOKEN)).await;
    let done = counts(&scene.one, "act");
    let client = client(scene.opened().await).await;
    let length = (BODY_BYTES_MAX + 1).to_string();
    let headers: [&[(&str, &str)]; 3] = [
        &[TO_ONE],
        &[TO_ONE, ("content-length", length.as_str())],
        &[("shardwise-to", "owner"), ("shardwise-key-bytes", "0"), ("shardwise-key-kind", "bytes")],
    ];
    for headers in headers {
        let refused = ask(&client, ("POST", "act"), headers, vec![0_u8; BODY_BYTES_MAX + 1]).await.unwrap();
        assert!(refused.status == 413 && refused.is_refusal() && refused.body.contains("1048576"), "{headers:?}: {refused:?}");
    }
    assert_eq!(done.load(Ordering::Relaxed), 0);
    scene.undisturbed().await;
}

/// It lives and reads, and answers no PING: as a machine that hangs.
#[tokio::test]
async fn a_caller_that_answers_no_ping_is_sent_away() {
    let world = World::new();
    let scene = Scene::begin(&world, Some(TOKEN)).await;
    let running = hangs(&scene.one, "hang");
    let mut stream = scene.opened().await;
    let head = Http2Frame::head(1, &request_fields("GET", "/hang", &[TO_ONE]), true).bytes();
    stream.write_all(&[preface(), head].concat()).await.unwrap();
    eventually("it is being answered", || running.load(Ordering::Relaxed) == 1).await;
    assert!(first_of(&mut stream, Http2Frame::PING).await.is_some(), "it is asked");
    rest(&mut stream).await;
    eventually("its handler has ended", || running.load(Ordering::Relaxed) == 0).await;
    scene.undisturbed().await;
}
