//! A test that is killed leaves no server behind.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use shardwise_testkit::Etcd;

/// Set in the copy of this test that is to be killed.
const COPY: &str = "SHARDWISE_TESTKIT_COPY";
/// What that copy says before the server's address.
const SAYS: &str = "the server is at ";
const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_server_dies_with_the_test_that_is_killed() {
    if std::env::var_os(COPY).is_some() {
        let etcd = Etcd::single().await.unwrap();
        // Standing on a line of its own, which it does not share with the harness.
        println!("\n{SAYS}{}", etcd.socket_addr());
        return std::future::pending().await;
    }
    // The server's folder is left behind by one that is killed; in this one it vanishes.
    let folder = tempfile::tempdir().unwrap();
    let mut copy = Command::new(std::env::current_exe().unwrap());
    copy.args(["--nocapture", "a_server_dies_with_the_test_that_is_killed"])
        .env(COPY, "yes")
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped());
    let mut copy = copy.spawn().unwrap();
    let mut lines = BufReader::new(copy.stdout.take().unwrap()).lines().map(Result::unwrap);
    let address: SocketAddr = lines.find_map(|line| line.strip_prefix(SAYS).map(str::to_owned)).unwrap().parse().unwrap();
    TcpStream::connect(address).unwrap();
    copy.kill().unwrap();
    copy.wait().unwrap();
    let killed = Instant::now();
    while TcpStream::connect(address).is_ok() {
        assert!(killed.elapsed() < PATIENCE, "the server at {address} goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
}
