//! One request over a connection of its own, in the protocol's plain words.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::error::{Error, Result};

/// A request that is not answered within this time has failed.
const LIMIT: Duration = Duration::from_secs(10);
/// Where the answer is sent.
const INBOX: &str = "_INBOX.testkit";

/// Publishes a message and waits for its answer. `login` is what follows CONNECT.
pub(super) async fn request(to: SocketAddr, login: &Value, subject: &str, payload: &str) -> Result<String> {
    let failed = |why: String| Error::new(format!("a request to {subject} of NATS at {to}: {why}"));
    match tokio::time::timeout(LIMIT, exchange(to, login, subject, payload)).await {
        Ok(answer) => answer.map_err(|error| failed(error.to_string())),
        Err(_) => Err(failed(format!("no answer within {LIMIT:?}"))),
    }
}

async fn exchange(to: SocketAddr, login: &Value, subject: &str, payload: &str) -> io::Result<String> {
    let mut stream = BufReader::new(TcpStream::connect(to).await?);
    let words = format!("CONNECT {login}\r\nSUB {INBOX} 1\r\nPUB {subject} {INBOX} {}\r\n{payload}\r\n", payload.len());
    stream.get_mut().write_all(words.as_bytes()).await?;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Err(io::Error::other("the connection has ended"));
        }
        if line.starts_with("PING") {
            stream.get_mut().write_all(b"PONG\r\n").await?;
        } else if let Some(refusal) = line.strip_prefix("-ERR ") {
            return Err(io::Error::other(refusal.trim().to_owned()));
        } else if line.starts_with("MSG ") {
            // Its last word is the number of bytes.
            let length = line.split_whitespace().next_back().and_then(|word| word.parse::<usize>().ok());
            let mut answer = vec![0; length.ok_or_else(|| io::Error::other(line.clone()))?];
            stream.read_exact(&mut answer).await?;
            return Ok(String::from_utf8_lossy(&answer).into_owned());
        }
    }
}
