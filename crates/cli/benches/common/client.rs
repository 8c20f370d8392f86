//! A minimal HTTP client for the figures: one connection that is kept open, and answers that are read and counted.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Longer than any answer takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// The bytes of a request that [`Client::ask`] sends, with the worker's lease if the route needs it.
pub(crate) fn request(at: SocketAddr, method: &str, path: &str, lease: Option<&str>, body: Option<&Value>) -> Vec<u8> {
    let lease = lease.map_or_else(String::new, |id| format!("shardwise-lease: {id}\r\n"));
    let body = body.map(Value::to_string);
    let kind = if body.is_some() { "Content-Type: application/json\r\n" } else { "" };
    let body = body.unwrap_or_default();
    format!("{method} {path} HTTP/1.1\r\nHost: {at}\r\n{lease}{kind}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

pub(crate) struct Client {
    at: SocketAddr,
    sending: TcpStream,
    reading: BufReader<TcpStream>,
    piece: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(at: SocketAddr) -> Self {
        let sending = TcpStream::connect(at).unwrap();
        sending.set_nodelay(true).unwrap();
        sending.set_read_timeout(Some(PATIENCE)).unwrap();
        sending.set_write_timeout(Some(PATIENCE)).unwrap();
        let reading = BufReader::with_capacity(64 << 10, sending.try_clone().unwrap());
        Self { at, sending, reading, piece: Vec::new() }
    }

    /// Connects anew, after a failure.
    pub(crate) fn reconnect(&mut self) {
        *self = Self::connect(self.at);
    }

    /// Sends the bytes of a request, and reads the whole answer: its status and its body.
    pub(crate) fn ask(&mut self, request: &[u8]) -> io::Result<(u16, Vec<u8>)> {
        self.sending.write_all(request)?;
        let mut body = Vec::new();
        let (status, _) = self.read(&mut |piece| body.extend_from_slice(piece))?;
        Ok((status, body))
    }

    pub(crate) fn get(&mut self, path: &str) -> u64 {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.at);
        self.sending.write_all(request.as_bytes()).unwrap();
        self.answer(&mut |_| ())
    }

    pub(crate) fn text(&mut self, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.at);
        self.sending.write_all(request.as_bytes()).unwrap();
        let mut text = Vec::new();
        self.answer(&mut |piece| text.extend_from_slice(piece));
        String::from_utf8(text).unwrap()
    }

    pub(crate) fn post(&mut self, path: &str, kind: &str, body: &[u8]) -> u64 {
        self.send(path, kind, body, 1)
    }

    /// Sends the same text several times.
    pub(crate) fn stream(&mut self, path: &str, body: &[u8], times: usize) -> u64 {
        self.send(path, "text/plain", body, times)
    }

    /// Sends while it reads, because the server does not buffer answers.
    fn send(&mut self, path: &str, kind: &str, body: &[u8], times: usize) -> u64 {
        let (mut sending, length) = (self.sending.try_clone().unwrap(), body.len() * times);
        let head = format!("POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n", self.at);
        std::thread::scope(|threads| {
            threads.spawn(move || {
                sending.write_all(head.as_bytes()).unwrap();
                for _ in 0..times {
                    sending.write_all(body).unwrap();
                }
            });
            self.answer(&mut |_| ())
        })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.reading.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line)
    }

    /// Reads an answer, which must have the status 200; returns its length.
    fn answer(&mut self, each: &mut impl FnMut(&[u8])) -> u64 {
        let (status, length) = self.read(each).unwrap();
        assert_eq!(status, 200);
        length
    }

    /// Reads an answer; returns its status and its length.
    fn read(&mut self, each: &mut impl FnMut(&[u8])) -> io::Result<(u16, u64)> {
        let first = self.line()?;
        let status: Option<u16> = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("no status: {first}")))?;
        let (mut length, mut is_chunked) = (0, false);
        loop {
            let line = self.line()?.to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            is_chunked |= line.starts_with("transfer-encoding: chunked");
            if line == "\r\n" {
                break;
            }
        }
        if !is_chunked {
            self.take(length, each)?;
            return Ok((status, length as u64));
        }
        let mut total = 0;
        loop {
            let size = usize::from_str_radix(self.line()?.trim(), 16).unwrap();
            self.take(size, each)?;
            assert_eq!(self.line()?, "\r\n");
            total += size as u64;
            if size == 0 {
                return Ok((status, total));
            }
        }
    }

    fn take(&mut self, bytes: usize, each: &mut impl FnMut(&[u8])) -> io::Result<()> {
        self.piece.resize(bytes, 0);
        self.reading.read_exact(&mut self.piece)?;
        each(&self.piece);
        Ok(())
    }
}
