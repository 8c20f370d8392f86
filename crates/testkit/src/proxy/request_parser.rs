//! Separates the requests inside a connection, so that some of them can be left without an answer while others get theirs. It parses only
//! as much of the protocols as that takes, and nothing of TLS.

use std::collections::HashSet;

use super::Direction;

/// The protocol of a connection.
#[derive(Clone, Copy, Debug)]
pub enum Speech {
    /// HTTP/1, one request at a time. What is judged is the beginning of a request: `GET /path?query HTTP/1.1` and its headers.
    Http1,
    /// PostgreSQL's simple protocol, one query at a time, each sent at once. What is judged is the query with the five bytes before it.
    Postgres,
    /// gRPC over HTTP/2. What is judged is each message to the server, as it stands behind the five bytes before it; a stream that had one
    /// of the kind is of the kind.
    Grpc,
}

/// Which requests are meant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestKind {
    pub(super) speech: Speech,
    pub(super) is_meant: fn(&[u8]) -> bool,
}

pub(super) struct RequestParser {
    kind: RequestKind,
    /// Of one request at a time: whether the one under way is meant, and whether some of it or of its answer has been kept back; then the
    /// connection is of no use any more.
    meant: bool,
    kept: bool,
    frames: Frames,
}

impl RequestParser {
    pub(super) fn new(kind: RequestKind) -> Self {
        Self { kind, meant: false, kept: false, frames: Frames::default() }
    }

    /// What of these bytes may go on, now that requests that are meant are ignored or not.
    pub(super) fn pass(&mut self, direction: Direction, bytes: Vec<u8>, ignoring: bool) -> Vec<u8> {
        let RequestKind { speech, is_meant } = self.kind;
        match speech {
            Speech::Http1 => self.one_at_a_time(direction, bytes, ignoring, begins_request),
            Speech::Postgres => self.one_at_a_time(direction, bytes, ignoring, |bytes| bytes.first() == Some(&QUERY)),
            Speech::Grpc => self.frames.pass(direction, &bytes, ignoring, is_meant),
        }
    }

    fn one_at_a_time(&mut self, direction: Direction, bytes: Vec<u8>, ignoring: bool, begins: fn(&[u8]) -> bool) -> Vec<u8> {
        if direction == Direction::ToServer && begins(&bytes) {
            self.meant = (self.kind.is_meant)(&bytes);
        }
        self.kept |= ignoring && self.meant;
        if self.kept { Vec::new() } else { bytes }
    }
}

/// The first byte of a query in PostgreSQL's simple protocol.
const QUERY: u8 = b'Q';

fn begins_request(bytes: &[u8]) -> bool {
    ["GET ", "PUT ", "POST ", "DELETE "].iter().any(|method| bytes.starts_with(method.as_bytes()))
}

/// The first bytes of an HTTP/2 client.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The bytes before a frame's content: three of length, its type, flags, four of the stream's number.
const FRAME_HEAD: usize = 9;
const DATA: u8 = 0;
const MESSAGE_HEAD: usize = 5;

#[derive(Default)]
struct Frames {
    greeted: bool,
    /// By direction: the beginning of a frame whose rest is to come.
    begun: [Vec<u8>; 2],
    meant: HashSet<u32>,
    /// Streams of which something has been kept back; they stay silent.
    kept: HashSet<u32>,
}

impl Frames {
    fn pass(&mut self, direction: Direction, bytes: &[u8], ignoring: bool, is_meant: fn(&[u8]) -> bool) -> Vec<u8> {
        let mut held = std::mem::take(&mut self.begun[direction as usize]);
        held.extend_from_slice(bytes);
        let (mut rest, mut on) = (&held[..], Vec::new());
        if direction == Direction::ToServer && !self.greeted && rest.len() >= PREFACE.len() {
            self.greeted = true;
            on.extend_from_slice(&rest[..PREFACE.len()]);
            rest = &rest[PREFACE.len()..];
        }
        while (direction == Direction::ToClient || self.greeted)
            && let Some(length) = frame_length(rest)
            && rest.len() >= length
        {
            let (frame, behind) = rest.split_at(length);
            if self.passes(direction, frame, ignoring, is_meant) {
                on.extend_from_slice(frame);
            }
            rest = behind;
        }
        self.begun[direction as usize] = rest.to_vec();
        on
    }

    /// Only content is kept back: headers belong to a table that both ends keep for the whole connection.
    fn passes(&mut self, direction: Direction, frame: &[u8], ignoring: bool, is_meant: fn(&[u8]) -> bool) -> bool {
        if frame[3] != DATA {
            return true;
        }
        let stream = u32::from_be_bytes([frame[5] & 0x7f, frame[6], frame[7], frame[8]]);
        if direction == Direction::ToServer && frame.get(FRAME_HEAD + MESSAGE_HEAD..).is_some_and(is_meant) {
            self.meant.insert(stream);
        }
        if ignoring && self.meant.contains(&stream) {
            self.kept.insert(stream);
        }
        !self.kept.contains(&stream)
    }
}

/// With its head; `None` before that is there.
fn frame_length(bytes: &[u8]) -> Option<usize> {
    let [a, b, c] = *bytes.first_chunk::<3>()?;
    (bytes.len() >= FRAME_HEAD).then(|| FRAME_HEAD + u32::from_be_bytes([0, a, b, c]) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_meant(bytes: &[u8]) -> bool {
        bytes.windows(5).any(|part| part == b"watch")
    }

    fn parser(speech: Speech) -> RequestParser {
        RequestParser::new(RequestKind { speech, is_meant })
    }

    #[test]
    fn a_request_that_is_meant_gets_no_answer_and_others_do() {
        let (get, watch) = (b"GET /a HTTP/1.1\r\n\r\n".to_vec(), b"GET /watch HTTP/1.1\r\n\r\n".to_vec());
        let mut parser = parser(Speech::Http1);
        for request in [&get, &watch] {
            assert_eq!(parser.pass(Direction::ToServer, request.clone(), false), *request);
            assert_eq!(parser.pass(Direction::ToClient, b"yes".to_vec(), false), b"yes");
        }
        assert_eq!(parser.pass(Direction::ToServer, get.clone(), true), get);
        assert_eq!(parser.pass(Direction::ToClient, b"yes".to_vec(), true), b"yes");
        assert!(parser.pass(Direction::ToServer, watch, true).is_empty());
        assert!(parser.pass(Direction::ToServer, get, false).is_empty(), "the connection has nothing more to say");
    }

    #[test]
    fn a_query_that_is_meant_gets_no_answer_and_others_do() {
        let (other, watch) = (b"Q\0\0\0\x0dSELECT 1\0".to_vec(), b"Q\0\0\0\x11SELECT watch\0".to_vec());
        let mut parser = parser(Speech::Postgres);
        for request in [&watch, &other] {
            assert_eq!(parser.pass(Direction::ToServer, request.clone(), false), *request);
            assert_eq!(parser.pass(Direction::ToClient, b"yes".to_vec(), false), b"yes");
        }
        assert_eq!(parser.pass(Direction::ToServer, b"p\0\0\0\x0awatch\0".to_vec(), true), b"p\0\0\0\x0awatch\0", "no query");
        assert!(parser.pass(Direction::ToServer, watch, true).is_empty());
        assert!(parser.pass(Direction::ToServer, other, false).is_empty(), "the connection has nothing more to say");
    }

    #[test]
    fn an_answer_on_its_way_is_kept_back() {
        let mut parser = parser(Speech::Http1);
        parser.pass(Direction::ToServer, b"GET /watch HTTP/1.1\r\n\r\n".to_vec(), false);
        assert!(parser.pass(Direction::ToClient, b"yes".to_vec(), true).is_empty());
    }

    fn frame(kind: u8, stream: u8, content: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, u8::try_from(content.len()).unwrap(), kind, 0, 0, 0, 0, stream];
        frame.extend_from_slice(content);
        frame
    }

    #[test]
    fn a_stream_that_is_meant_falls_silent_and_others_do_not() {
        let mut parser = parser(Speech::Grpc);
        let mut hello = PREFACE.to_vec();
        hello.extend(frame(4, 0, b""));
        let (head, tail) = hello.split_at(10);
        assert_eq!(parser.pass(Direction::ToServer, head.to_vec(), false), b"");
        assert_eq!(parser.pass(Direction::ToServer, tail.to_vec(), false), hello);
        let (watch, other) = (frame(DATA, 1, b"12345watch"), frame(DATA, 3, b"12345other"));
        for message in [&watch, &other] {
            assert_eq!(parser.pass(Direction::ToServer, message.clone(), false), *message);
        }
        let answers = [frame(DATA, 1, b"news"), frame(DATA, 3, b"answer"), frame(1, 1, b"headers")];
        assert_eq!(parser.pass(Direction::ToClient, answers.concat(), true), answers[1..].concat());
        assert!(parser.pass(Direction::ToServer, frame(DATA, 1, b"12345more"), false).is_empty(), "it stays silent");
        assert_eq!(parser.pass(Direction::ToServer, frame(DATA, 5, b"12345watch"), false), frame(DATA, 5, b"12345watch"));
    }
}
