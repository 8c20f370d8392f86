//! A test that is killed leaves neither a server nor its folder behind.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests; one process tells the other by its output")]

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use shardwise_testkit::{Etcd, Postgres};

/// Set in the copy of this test that will be killed.
const COPY: &str = "SHARDWISE_TESTKIT_COPY";
/// What that copy says before the server's address.
const SAYS: &str = "the server is at ";
const PATIENCE: Duration = Duration::from_mins(2);

/// Runs the test of that name once more in a separate process, kills it, and waits until the server that it named is gone.
fn kill_a_copy_of(test: &str) {
    // Nothing but the copy makes anything in here.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut copy = Command::new(std::env::current_exe().unwrap());
    copy.args(["--nocapture", "--exact", test]).env(COPY, "yes").env("TMPDIR", folder.path()).stdout(Stdio::piped());
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
    let left = || std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    while !left().is_empty() {
        assert!(killed.elapsed() < PATIENCE, "these folders are left: {:?}", left());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// On a line that it does not share with the harness.
async fn wait_at(address: SocketAddr) {
    println!("\n{SAYS}{address}");
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_server_dies_with_the_test_that_is_killed() {
    if std::env::var_os(COPY).is_some() {
        let etcd = Etcd::single().await.unwrap();
        return wait_at(etcd.socket_addr()).await;
    }
    kill_a_copy_of("a_server_dies_with_the_test_that_is_killed");
}

#[tokio::test]
async fn postgres_run_by_another_user_dies_too() {
    if std::env::var_os(COPY).is_some() {
        let postgres = Postgres::shared().await.unwrap();
        return wait_at(postgres.socket_addr()).await;
    }
    kill_a_copy_of("postgres_run_by_another_user_dies_too");
}
