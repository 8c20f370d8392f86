//! The proxy, between a client and a server that echoes.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests; what goes wrong should stop them")]

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use shardwise_testkit::{Direction, Port, TcpProxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// As long as something is watched that must not happen.
const WHILE: Duration = Duration::from_millis(150);
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that sends back what it gets, and reports it.
async fn echo() -> (SocketAddr, mpsc::UnboundedReceiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (got, received) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let got = got.clone();
            tokio::spawn(async move {
                let mut bytes = [0; 100];
                while let Ok(length @ 1..) = stream.read(&mut bytes).await {
                    let _ = got.send(bytes[..length].to_vec());
                    let _ = stream.write_all(&bytes[..length]).await;
                }
            });
        }
    });
    (address, received)
}

struct Stage {
    proxy: TcpProxy,
    client: TcpStream,
    received: mpsc::UnboundedReceiver<Vec<u8>>,
}

async fn stage() -> Stage {
    let (address, received) = echo().await;
    let proxy = TcpProxy::start(address).await.unwrap();
    let mut stage = Stage { client: TcpStream::connect(proxy.address()).await.unwrap(), proxy, received };
    stage.client.write_all(b"hello").await.unwrap();
    stage.received().await.unwrap();
    stage.answer(b"hello").await;
    stage
}

impl Stage {
    async fn answer(&mut self, expected: &[u8]) {
        let mut bytes = vec![0; expected.len()];
        timeout(PATIENCE, self.client.read_exact(&mut bytes)).await.expect("no answer").unwrap();
        assert_eq!(bytes, expected);
    }

    async fn no_answer(&mut self) {
        assert!(timeout(WHILE, self.client.read_u8()).await.is_err());
    }

    async fn received(&mut self) -> Option<Vec<u8>> {
        timeout(PATIENCE, self.received.recv()).await.expect("the server got nothing")
    }

    async fn receives_nothing(&mut self) {
        assert!(timeout(WHILE, self.received.recv()).await.is_err());
    }
}

#[tokio::test]
async fn what_passes_is_counted() {
    let mut stage = stage().await;
    assert_eq!((stage.proxy.accepted(), stage.proxy.open()), (1, 1));
    assert_eq!((stage.proxy.bytes(Direction::ToServer), stage.proxy.bytes(Direction::ToClient)), (5, 5));
    stage.client.shutdown().await.unwrap();
    assert_eq!(stage.client.read(&mut [0; 9]).await.unwrap(), 0, "an end passes too");
    timeout(PATIENCE, async {
        while stage.proxy.open() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the connection is not over");
}

#[tokio::test]
async fn cut_to_the_server_it_hears_nothing_until_it_is_healed() {
    let mut stage = stage().await;
    stage.proxy.cut(Direction::ToServer);
    stage.client.write_all(b"lost?").await.unwrap();
    stage.receives_nothing().await;
    stage.proxy.heal().await.unwrap();
    assert_eq!(stage.received().await.unwrap(), b"lost?");
    stage.answer(b"lost?").await;
}

#[tokio::test]
async fn cut_to_the_client_the_server_hears_and_its_answer_waits() {
    let mut stage = stage().await;
    stage.proxy.cut(Direction::ToClient);
    stage.client.write_all(b"heard").await.unwrap();
    assert_eq!(stage.received().await.unwrap(), b"heard");
    stage.no_answer().await;
    stage.proxy.heal().await.unwrap();
    stage.answer(b"heard").await;
}

#[tokio::test]
async fn cut_both_ways_a_new_connection_reaches_no_server() {
    let mut stage = stage().await;
    stage.proxy.cut_both();
    stage.client = TcpStream::connect(stage.proxy.address()).await.unwrap();
    stage.client.write_all(b"anybody?").await.unwrap();
    stage.receives_nothing().await;
    stage.no_answer().await;
    stage.proxy.heal().await.unwrap();
    stage.answer(b"anybody?").await;
    assert_eq!(stage.proxy.accepted(), 2);
}

#[tokio::test]
async fn a_reset_is_an_error_at_the_client_and_new_connections_work() {
    let mut stage = stage().await;
    stage.proxy.cut_both();
    stage.proxy.reset();
    let error = timeout(PATIENCE, stage.client.read_u8()).await.expect("no reset").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    stage.proxy.heal().await.unwrap();
    stage.client = TcpStream::connect(stage.proxy.address()).await.unwrap();
    stage.client.write_all(b"again").await.unwrap();
    stage.answer(b"again").await;
}

#[tokio::test]
async fn refused_connections_are_refused_and_the_others_stay() {
    let mut stage = stage().await;
    stage.proxy.refuse().await.unwrap();
    let error = TcpStream::connect(stage.proxy.address()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    stage.client.write_all(b"still").await.unwrap();
    stage.answer(b"still").await;
    stage.proxy.heal().await.unwrap();
    TcpStream::connect(stage.proxy.address()).await.unwrap();
}

#[tokio::test]
async fn what_is_delayed_comes_later_and_in_order() {
    let mut stage = stage().await;
    stage.proxy.delay(Direction::ToClient, Duration::from_millis(300));
    let begun = Instant::now();
    stage.client.write_all(b"one").await.unwrap();
    assert_eq!(stage.received().await.unwrap(), b"one");
    stage.client.write_all(b"two").await.unwrap();
    assert_eq!(stage.received().await.unwrap(), b"two");
    stage.answer(b"onetwo").await;
    assert!(begun.elapsed() >= Duration::from_millis(300));
    stage.proxy.delay(Direction::ToClient, Duration::from_mins(10));
    stage.client.write_all(b"late").await.unwrap();
    assert_eq!(stage.received().await.unwrap(), b"late");
    stage.proxy.heal().await.unwrap();
    stage.answer(b"late").await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_reset() {
    let nobody = Port::reserve().unwrap();
    let proxy = TcpProxy::start(nobody.address()).await.unwrap();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    let error = timeout(PATIENCE, client.read_u8()).await.expect("silence").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}
