//! Tests of the client: how often a request arrives, on which connection, and with which headers.

use shardwise::core::OwnedKey;
use shardwise::requests::Addressee;
use shardwise::{ClaimName, Epoch};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{Receiver, channel};

use super::*;
use crate::worker_head::KEY_HEADER_BYTES_MAX;

/// A worker that answers so many requests on each connection, and then closes it silently. Passes on the number of the connection with
/// each request.
async fn worker(each: usize) -> (WorkerClient, Receiver<(usize, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = Target::parse(&format!("http://{}/hooks", listener.local_addr().unwrap())).unwrap();
    let (arrived, requests) = channel(100);
    tokio::spawn(async move {
        for number in 0.. {
            let ((mut stream, _), arrived) = (listener.accept().await.unwrap(), arrived.clone());
            tokio::spawn(async move {
                for _ in 0..each {
                    let mut head = vec![0; 16 << 10];
                    let length = stream.read(&mut head).await.unwrap_or_default();
                    if length == 0 {
                        return;
                    }
                    head.truncate(length);
                    // First, so that a test that has the answer finds it.
                    arrived.send((number, String::from_utf8(head).unwrap())).await.unwrap();
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
                }
            });
        }
    });
    (WorkerClient::new(target, Limits::default()), requests)
}

#[tokio::test]
async fn reads_share_a_connection_and_an_action_has_one_of_its_own() {
    let (client, mut requests) = worker(usize::MAX).await;
    let mut numbers = Vec::new();
    for request in [Request::get("x"), Request::get("x"), Request::post("x", "text/plain", "a"), Request::get("x")] {
        assert_eq!(client.ask(&request, None).await.unwrap().body, b"ok");
        numbers.push(requests.recv().await.unwrap().0);
    }
    assert_eq!(numbers, [0, 0, 1, 0]);
}

#[tokio::test]
async fn a_read_that_meets_a_closed_connection_is_sent_once_on_another_one() {
    let (client, mut requests) = worker(1).await;
    for number in 0..10 {
        assert_eq!(client.ask(&Request::get("x"), None).await.unwrap().body, b"ok");
        assert_eq!(requests.recv().await.unwrap().0, number);
    }
    assert!(requests.try_recv().is_err());
}

#[tokio::test]
async fn an_idle_connection_is_dropped_after_a_while_and_few_are_kept() {
    let (client, _requests) = worker(usize::MAX).await;
    let mut connections = Vec::new();
    for _ in 0..=KEPT_MAX {
        connections.push(client.connect().await.unwrap());
    }
    for connection in connections {
        client.keep(connection);
    }
    assert_eq!(client.fresh().len(), KEPT_MAX);
    let long_ago = Instant::now().checked_sub(KEPT_FOR).unwrap();
    client.fresh().iter_mut().for_each(|(since, _)| *since = long_ago);
    assert!(client.idle_connection().is_none());
}

#[tokio::test]
async fn the_worker_sees_for_which_key_a_request_is() {
    let (client, mut requests) = worker(usize::MAX).await;
    let mut header_of = async |key: OwnedKey| {
        let mut request = Request::get("x");
        request.key = Some(key);
        client.ask(&request, None).await.unwrap();
        let (_, head) = requests.recv().await.unwrap();
        head.lines().find_map(|line| line.strip_prefix("shardwise-key: ")).map(str::to_owned)
    };
    let longest = "x".repeat(KEY_HEADER_BYTES_MAX);
    for (key, header) in [
        (OwnedKey::of("größe/1"), "gr%C3%B6%C3%9Fe%2F1"),
        (OwnedKey::of(&[0xff_u8, 0]), "%FF%00"),
        (OwnedKey::of(&-7_i64), "-7"),
        (OwnedKey::of(longest.as_str()), longest.as_str()),
    ] {
        assert_eq!(header_of(key).await.as_deref(), Some(header));
    }
    for long in ["x".repeat(KEY_HEADER_BYTES_MAX + 1), "/".repeat(KEY_HEADER_BYTES_MAX / 2)] {
        assert_eq!(header_of(OwnedKey::of(long.as_str())).await, None);
    }
}

#[tokio::test]
async fn the_worker_sees_the_fence_of_what_a_request_is_for() {
    let (client, mut requests) = worker(usize::MAX).await;
    let mut to_owner = Request::get("x");
    (to_owner.to, to_owner.key) = (Addressee::Owner, Some(OwnedKey::of("a")));
    let mut to_holder = Request::get("x");
    (to_holder.to, to_holder.name) = (Addressee::Holder, Some(ClaimName::new("singleton/a b").unwrap()));
    let epoch = Epoch::new(7).unwrap();
    let seen = [
        (
            to_owner.clone(),
            Some(WorkerFence { slot: Some(3), epoch }),
            &["shardwise-to: owner", "shardwise-key: a", "shardwise-slot: 3", "shardwise-epoch: 7"][..],
            &["shardwise-name"][..],
        ),
        (
            to_holder,
            Some(WorkerFence { slot: None, epoch }),
            &["shardwise-to: holder", "shardwise-name: singleton%2Fa%20b", "shardwise-epoch: 7"][..],
            &["shardwise-slot", "shardwise-key"][..],
        ),
        (to_owner, None, &["shardwise-to: owner", "shardwise-key: a"][..], &["shardwise-slot", "shardwise-epoch"][..]),
    ];
    for (request, fence, with, without) in seen {
        client.ask(&request, fence).await.unwrap();
        let (_, head) = requests.recv().await.unwrap();
        assert!(with.iter().all(|line| head.contains(&format!("{line}\r\n"))), "{with:?}: {head}");
        assert!(!without.iter().any(|name| head.contains(name)), "{without:?}: {head}");
    }
}

/// A worker with that answer to everything.
async fn answering(answer: String) -> WorkerClient {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = Target::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    tokio::spawn(async move {
        // Open until the end: closing with unread input would make the system drop the answer.
        let mut held = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 4 << 10]).await.unwrap() > 0);
            stream.write_all(answer.as_bytes()).await.unwrap();
            held.push(stream);
        }
    });
    WorkerClient::new(target, Limits::default())
}

#[tokio::test]
async fn a_refusal_says_that_the_worker_has_not_begun() {
    for (status, headers, is_refusal) in [
        (421, "shardwise-peer: refused\r\n", true),
        (429, "Shardwise-Peer: refused\r\nretry-after: 1\r\n", true),
        (503, "shardwise-peer: refused\r\n", true),
        (421, "", false),
        (429, "shardwise-peer: 1\r\n", false),
        (503, "retry-after: 1\r\n", false),
    ] {
        let client = answering(format!("HTTP/1.1 {status} -\r\n{headers}content-length: 2\r\n\r\nno")).await;
        for request in [Request::get("x"), Request::post("x", "text/plain", "a")] {
            match client.ask(&request, None).await {
                Ok(answer) => assert!(!is_refusal && answer.status == status, "{status} with {headers:?}: {answer:?}"),
                Err(failed) => {
                    assert!(is_refusal && !failed.may_have_begun(), "{status} with {headers:?}: {failed}");
                    assert_eq!(failed, WorkerFailure::Refused(http::StatusCode::from_u16(status).unwrap()));
                }
            }
        }
    }
}

#[tokio::test]
async fn nothing_is_sent_beyond_this_machine_and_a_closed_port_has_begun_nothing() {
    let client = |host: &str, port| {
        let target = Target { tls: false, host: host.into(), port, prefix: String::new() };
        WorkerClient::new(target, Limits::default())
    };
    let refused = client("192.0.2.1", 80).ask(&Request::get("x"), None).await.unwrap_err();
    assert_eq!(refused, WorkerFailure::Unreachable("192.0.2.1 is not this machine".into()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    assert!(!client("127.0.0.1", port).ask(&Request::get("x"), None).await.unwrap_err().may_have_begun());
}
