//! A minimal HTTP client for valid and invalid requests, byte by byte.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Longer than any answer takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_mins(3);

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    pub(crate) is_whole: bool,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }

    /// Checks that the answer is a refusal with that status in the format of RFC 9457.
    pub(crate) fn refuses(&self, status: u16, what: &str) -> Value {
        assert_eq!(self.status, status, "{what}: {self:?}");
        assert!(self.head.contains("content-type: application/problem+json"), "{what}: {self:?}");
        let problem = self.json();
        assert!(problem["type"].as_str().unwrap().starts_with("urn:shardwise:problem:"), "{what}: {problem}");
        assert!(problem["status"] == status && !problem["detail"].as_str().unwrap().is_empty(), "{what}: {problem}");
        problem
    }

    pub(crate) fn well(self, what: &str) -> Value {
        assert!(self.status == 200 && self.is_whole, "{what}: {self:?}");
        self.json()
    }
}

pub(crate) fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends raw bytes and returns everything received. It sends while it reads, because the server does not buffer answers.
pub(crate) fn raw(to: SocketAddr, request: &[u8]) -> Answer {
    let mut stream = connect(to);
    let (mut sending, bytes) = (stream.try_clone().unwrap(), request.to_vec());
    // A refusal may come before the last byte is sent.
    let writer = std::thread::spawn(move || drop(sending.write_all(&bytes)));
    let answer = read(&mut stream);
    writer.join().unwrap();
    answer
}

pub(crate) fn get(to: SocketAddr, path: &str) -> Answer {
    raw(to, format!("GET {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n").as_bytes())
}

pub(crate) fn post(to: SocketAddr, path: &str, headers: &str, body: &[u8]) -> Answer {
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n");
    raw(to, &[head.as_bytes(), body].concat())
}

/// Reads until the other side closes.
pub(crate) fn read(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // Data received before a reset counts.
    let _ = stream.read_to_end(&mut bytes);
    let end =
        bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(&bytes)));
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_ascii_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let rest = &bytes[end + 4..];
    let (body, is_whole) = if head.contains("transfer-encoding: chunked") { unchunked(rest) } else { (rest.to_vec(), true) };
    Answer { status, head, body, is_whole }
}

fn unchunked(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    loop {
        let Some(end) = rest.windows(2).position(|two| two == b"\r\n") else { return (body, false) };
        let Ok(length) = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16) else { return (body, false) };
        rest = &rest[end + 2..];
        if length == 0 {
            return (body, true);
        }
        let Some(chunk) = rest.get(..length) else { return (body, false) };
        body.extend_from_slice(chunk);
        rest = rest.get(length + 2..).unwrap_or_default();
    }
}
