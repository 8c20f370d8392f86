//! The limits on requests that are in flight: at a worker, and on a connection.

use tokio::task::JoinSet;

use super::channel::{Side, open};
use super::http2::{Http2Frame, first_of, preface, request_fields};
use super::*;

#[tokio::test(start_paused = true)]
async fn not_more_than_64_are_answered_at_a_time() {
    let world = World::new();
    let one = world.factory("one").create("workers").unwrap();
    one.on_request("hang", |_| std::future::pending::<String>()).unwrap();
    let hanging: Vec<_> = (0..64)
        .map(|_| {
            let one = one.clone();
            tokio::spawn(async move { one.answer(Request::get("hang")).await.unwrap().status })
        })
        .collect();
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert!(matches!(one.answer(Request::get("hang")).await, Err(Undelivered::Busy(None))));
    for status in futures::future::join_all(hanging).await {
        assert_eq!(status.unwrap(), 504);
    }
    assert_eq!(one.answer(Request::get("status")).await.unwrap().status, 200);
}

/// A caller may then ask another member, because no handler has seen the request.
#[tokio::test]
async fn a_member_that_is_busy_refuses_the_request() {
    let world = World::new();
    let (one, two) = (worker(&world, "one", Some(TOKEN)), worker(&world, "two", Some(TOKEN)));
    let running = hangs(&one, "hang");
    let done = counts(&one, "act");
    let there = endpoint(&one, one.listen_for_requests().await.unwrap());
    let mut hanging = JoinSet::new();
    for _ in 0..64 {
        let one = one.clone();
        hanging.spawn(async move { one.answer(Request::get("hang")).await });
    }
    eventually("64 are being answered", || running.load(Ordering::Relaxed) == 64).await;
    assert_eq!(brings(&two, &there, &post("act")).await, Err(Undelivered::Busy(None)));
    assert_eq!(done.load(Ordering::Relaxed), 0);
    hanging.shutdown().await;
    assert_eq!(brings(&two, &there, &post("act")).await.unwrap().body, b"done");
}

/// What waits for a place on the connection was not sent, and says so at its deadline.
#[tokio::test]
async fn a_caller_has_64_requests_in_flight_at_a_member_and_no_more() {
    let world = World::new();
    let (one, two) = (worker(&world, "one", Some(TOKEN)), worker(&world, "two", Some(TOKEN)));
    let running = hangs(&one, "hang");
    let there = endpoint(&one, one.listen_for_requests().await.unwrap());
    let mut hanging = fill(&running, &two, &there).await;
    let soon = Attempt::until(Instant::now() + Duration::from_millis(300));
    match two.connections().bring(&there, &Request::get("status"), &soon).await {
        Err(Undelivered::Unsent(why)) => assert!(why.contains("as many requests to it as are allowed"), "{why}"),
        other => panic!("{other:?}"),
    }
    hanging.shutdown().await;
    eventually("their handlers have ended", || running.load(Ordering::Relaxed) == 0).await;
    assert_eq!(brings(&two, &there, &Request::get("status")).await.unwrap().status, 200);
}

/// Sends 64 requests that hang, and waits until all of them are being answered.
async fn fill(running: &AtomicUsize, by: &ShardingService, there: &MemberEndpoint) -> JoinSet<()> {
    let mut hanging = JoinSet::new();
    for _ in 0..64 {
        let (by, there) = (by.clone(), there.clone());
        hanging.spawn(async move { drop(brings(&by, &there, &Request::get("hang")).await) });
    }
    eventually("64 are being answered", || running.load(Ordering::Relaxed) == 64).await;
    hanging
}

/// A member takes what a caller with a higher limit sends, so that it can refuse it: nothing waits inside HTTP/2 until it is unknown.
#[tokio::test]
async fn what_is_beyond_the_members_lower_limit_is_refused_as_busy() {
    let world = World::new();
    let (one, two) = (worker(&world, "one", Some(TOKEN)), wide_worker(&world, "two", 200));
    let running = hangs(&one, "hang");
    let there = endpoint(&one, one.listen_for_requests().await.unwrap());
    let mut hanging = fill(&running, &two, &there).await;
    let soon = Attempt::until(Instant::now() + Duration::from_secs(5));
    assert!(matches!(two.connections().bring(&there, &Request::get("status"), &soon).await, Err(Undelivered::Busy(None))));
    hanging.shutdown().await;
}

/// No caller has more in flight: one that does is refused what is beyond, as not begun.
#[tokio::test]
async fn the_1025th_stream_of_a_connection_is_refused() {
    let world = World::new();
    let one = wide_worker(&world, "one", 2_000);
    let running = hangs(&one, "hang");
    let address = one.listen_for_requests().await.unwrap().to_string();
    let mut stream = open(&address, &Whom::of(&one), Some(TOKEN)).await.unwrap().plain(Side::Caller);
    let fields = request_fields("GET", "/hang", &[("shardwise-to", "instance")]);
    let heads = (0..1_025).map(|number| Http2Frame::head(2 * number + 1, &fields, true).bytes());
    let all = std::iter::once(preface()).chain(heads).collect::<Vec<_>>().concat();
    tokio::io::AsyncWriteExt::write_all(&mut stream, &all).await.unwrap();
    let reset = first_of(&mut stream, Http2Frame::RST_STREAM).await.expect("a reset");
    assert_eq!((reset.stream, reset.reason()), (2 * 1_024 + 1, h2::Reason::REFUSED_STREAM));
    eventually("the others are being answered", || running.load(Ordering::Relaxed) == 1_024).await;
    drop(stream);
    eventually("their handlers have ended", || running.load(Ordering::Relaxed) == 0).await;
}

/// A member whose handlers are short makes room in a moment: what comes beyond the limit waits there, and no caller has to come back.
#[tokio::test]
async fn a_short_rush_waits_for_places_at_the_member() {
    let world = World::new();
    let (one, two) = (wide_worker(&world, "one", 4), worker(&world, "two", Some(TOKEN)));
    let running = Arc::new(AtomicUsize::new(0));
    let (counted, most) = (Arc::clone(&running), Arc::new(AtomicUsize::new(0)));
    let highest = Arc::clone(&most);
    let handler = move |_: Request| {
        highest.fetch_max(counted.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        let counted = Arc::clone(&counted);
        async move {
            tokio::task::yield_now().await;
            counted.fetch_sub(1, Ordering::Relaxed);
            "done"
        }
    };
    one.on_request("short", handler).unwrap();
    let there = endpoint(&one, one.listen_for_requests().await.unwrap());
    let request = Request::get("short");
    let rush = (0..8).map(|_| brings(&two, &there, &request));
    for answer in futures::future::join_all(rush).await {
        assert_eq!(answer.unwrap().body, b"done");
    }
    assert!(most.load(Ordering::Relaxed) <= 4, "{most:?}");
}

/// As many wait as are handled, and each for 50 ms: what is beyond is refused at once.
#[tokio::test(start_paused = true)]
async fn the_queue_is_as_long_as_the_limit_and_short() {
    let world = World::new();
    let one = wide_worker(&world, "one", 2);
    let running = hangs(&one, "hang");
    let begun = Instant::now();
    let ask = |one: &ShardingService| {
        let one = one.clone();
        tokio::spawn(async move { (one.answer(Request::get("hang")).await, begun.elapsed()) })
    };
    let _handled = [ask(&one), ask(&one)];
    eventually("both are being handled", || running.load(Ordering::Relaxed) == 2).await;
    let queued_from = begun.elapsed();
    let queued = [ask(&one), ask(&one)];
    tokio::task::yield_now().await;
    let (beyond, at_once) = ask(&one).await.unwrap();
    assert_eq!((beyond, at_once), (Err(Undelivered::Busy(None)), queued_from));
    for queued in queued {
        let (refused, at) = queued.await.unwrap();
        assert_eq!((refused, at), (Err(Undelivered::Busy(None)), queued_from + Duration::from_millis(50)));
    }
}

/// Each of these handlers waits for the next one: their futures must not be polled inside of each other.
#[tokio::test]
async fn a_handler_that_asks_its_own_member_a_thousand_deep_does_not_exhaust_the_stack() {
    let world = World::new();
    let one = wide_worker(&world, "one", 1_001);
    let asked = one.clone();
    let handler = move |request: Request| {
        let one = asked.clone();
        async move {
            let left: u32 = request.query.as_deref().unwrap_or("0").parse().unwrap();
            if left == 0 {
                return "the end".to_owned();
            }
            let mut deeper = Request::get("nest");
            deeper.query = Some((left - 1).to_string());
            String::from_utf8(one.answer(deeper).await.unwrap().body).unwrap()
        }
    };
    one.on_request("nest", handler).unwrap();
    let mut first = Request::get("nest");
    first.query = Some("1000".to_owned());
    assert_eq!(one.answer(first).await.unwrap().body, b"the end");
}
