//! HTTP/2 by hand, for what a client library would not send, and a client that keeps to the rules.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::Result;

use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, DuplexStream};
use tokio::time::timeout;

use crate::channel::LONG;

/// What begins a connection of HTTP/2 from its caller, without settings of its own.
pub(crate) fn preface() -> Vec<u8> {
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &Http2Frame::new(Http2Frame::SETTINGS, 0, 0, Vec::new()).bytes()].concat()
}

/// A frame of HTTP/2 (RFC 9113, section 4.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Http2Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Http2Frame {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
    pub(crate) const END_STREAM: u8 = 1;
    pub(crate) const END_HEADERS: u8 = 4;

    pub(crate) fn new(kind: u8, flags: u8, stream: u32, payload: impl Into<Vec<u8>>) -> Self {
        Self { kind, flags, stream, payload: payload.into() }
    }

    /// A whole head, with or without a body to follow.
    pub(crate) fn head(stream: u32, fields: &[u8], is_end: bool) -> Self {
        Self::new(Self::HEADERS, Self::END_HEADERS | if is_end { Self::END_STREAM } else { 0 }, stream, fields)
    }

    pub(crate) fn reset(stream: u32, reason: h2::Reason) -> Self {
        Self::new(Self::RST_STREAM, 0, stream, u32::from(reason).to_be_bytes())
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).expect("a short one").to_be_bytes();
        [&length[1..], &[self.kind, self.flags], &self.stream.to_be_bytes(), &self.payload].concat()
    }

    pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Self> {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let [a, b, c, kind, flags, rest @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut payload).await?;
        Ok(Self { kind, flags, stream: u32::from_be_bytes(rest), payload })
    }

    /// The reason of a `RST_STREAM` or a GOAWAY.
    pub(crate) fn reason(&self) -> h2::Reason {
        let at = if self.kind == Self::GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().expect("four bytes")).into()
    }
}

/// The first frame of that kind; `None` if the connection ends before.
pub(crate) async fn first_of(stream: &mut (impl AsyncRead + Unpin), kind: u8) -> Option<Http2Frame> {
    let finding = async {
        loop {
            match Http2Frame::read(stream).await {
                Ok(frame) if frame.kind == kind => return Some(frame),
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    };
    timeout(LONG, finding).await.expect("a frame, or the end of the connection")
}

/// A block of headers as in RFC 7541, section 6.2.2: each literal, with its name, and none kept.
pub(crate) fn fields<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            length(&mut block, text.len());
            block.extend(text.as_bytes());
        }
    }
    block
}

/// An integer with a prefix of 7 bits (RFC 7541, section 5.1).
fn length(block: &mut Vec<u8>, length: usize) {
    if length < 127 {
        block.extend(u8::try_from(length));
        return;
    }
    block.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        block.extend(u8::try_from(rest % 128 + 128));
        rest /= 128;
    }
    block.extend(u8::try_from(rest));
}

/// The headers of a request for that path, with more behind them.
pub(crate) fn request_fields(method: &str, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let first = [(":method", method), (":scheme", "http"), (":authority", "shardwise"), (":path", path)];
    fields(first.into_iter().chain(more.iter().copied()))
}

/// An HTTP/2 client that keeps to the rules.
pub(crate) async fn client(stream: DuplexStream) -> h2::client::SendRequest<Bytes> {
    let (sender, connection) = h2::client::handshake(stream).await.expect("a connection of HTTP/2");
    // How it ends is seen by its requests.
    tokio::spawn(async move { drop(connection.await) });
    sender
}

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Came {
    pub(crate) status: u16,
    /// The header `shardwise-peer`.
    pub(crate) by: Option<String>,
    pub(crate) body: String,
}

impl Came {
    /// Whether it is the member's own refusal.
    pub(crate) fn is_refusal(&self) -> bool {
        self.by.as_deref() == Some("refused")
    }
}

/// A request with those headers and that body, and what comes back.
pub(crate) async fn ask(
    sender: &h2::client::SendRequest<Bytes>,
    (method, path): (&str, &str),
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> std::result::Result<Came, h2::Error> {
    let mut request = http::Request::builder().method(method).uri(format!("http://shardwise/{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (request, body): (_, Bytes) = (request.body(()).expect("a request"), body.into());
    let asking = async {
        let mut sender = sender.clone().ready().await?;
        let (response, mut sending) = sender.send_request(request, body.is_empty())?;
        if !body.is_empty() {
            // A refusal may come before the body is sent.
            let _ = sending.send_data(body, true);
        }
        let (head, mut stream) = response.await?.into_parts();
        let mut bytes = Vec::new();
        while let Some(piece) = stream.data().await {
            match piece {
                Ok(piece) => {
                    stream.flow_control().release_capacity(piece.len())?;
                    bytes.extend_from_slice(&piece);
                }
                // The answer is whole, and the rest of the request is not wanted (RFC 9113, section 8.1).
                Err(error) if error.reason() == Some(h2::Reason::NO_ERROR) => break,
                Err(error) => return Err(error),
            }
        }
        let by = head.headers.get("shardwise-peer").map(|by| String::from_utf8_lossy(by.as_bytes()).into_owned());
        Ok(Came { status: head.status.as_u16(), by, body: String::from_utf8_lossy(&bytes).into_owned() })
    };
    timeout(LONG, asking).await.expect("an answer or an error")
}
