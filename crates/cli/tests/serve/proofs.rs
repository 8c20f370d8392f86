//! Both ends of a request between members, byte by byte: a fake member, and a caller.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use shardwise::core::Incarnation;
use shardwise::proof::{Channel, Nonce, Recipient, digest};
use shardwise::requests::proven::{AnswerParts, CallerEnd, RecipientEnd, RequestParts};
use shardwise::{GroupName, InstanceId};

use crate::http;

pub(crate) const PEER_TOKEN: &str = "peers-know-this-one-alone";

pub(crate) fn header<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (head, _) = text.split_once("\r\n\r\n")?;
    head.lines().find_map(|line| line.split_once(": ").filter(|(found, _)| found.eq_ignore_ascii_case(name))).map(|(_, value)| value)
}

/// Reads a request or an answer up to the end of its body; `None` at the end of the connection.
pub(crate) fn heard(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((_, body)) = text.split_once("\r\n\r\n")
            && body.len() >= header(&text, "content-length").map_or(0, |length| length.parse().unwrap())
        {
            return Some(text);
        }
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => bytes.push(byte[0]),
            _ => return None,
        }
    }
}

/// The member that a request's path names.
fn with_recipient<T>(path: &str, with: impl FnOnce(&Recipient<'_>) -> T) -> T {
    let mut parts = path.strip_prefix("/v1/peers/").unwrap().split('/');
    let (group, id) = (GroupName::new(parts.next().unwrap()).unwrap(), InstanceId::new(parts.next().unwrap()).unwrap());
    let incarnation = Incarnation::new(u64::from_str_radix(parts.next().unwrap(), 16).unwrap());
    with(&Recipient { channel: Channel::Requests, group: &group, instance_id: &id, incarnation })
}

/// One connection of a member that knows the token.
#[derive(Default)]
pub(crate) struct Fake(RecipientEnd);

impl Fake {
    /// The answer to a greeting; `None` if the text is not a greeting.
    pub(crate) fn greets(&self, text: &str) -> Option<String> {
        let nonce = header(text, "shardwise-nonce")?;
        let path = text.split(' ').nth(1).unwrap();
        let greeting = with_recipient(path, |recipient| self.0.greeted(PEER_TOKEN.as_bytes(), recipient, nonce)).unwrap();
        let (nonce, proof) = (greeting.nonce, greeting.proof);
        Some(format!("HTTP/1.1 204 No Content\r\nshardwise-peer: 1\r\nshardwise-nonce: {nonce}\r\nshardwise-proof: {proof}\r\n\r\n"))
    }

    /// That answer with its proof, if the request has proven itself.
    pub(crate) fn answers(&self, text: &str, answer: &str) -> String {
        let mut line = text.split(' ');
        let (method, target, body) = (line.next().unwrap(), line.next().unwrap(), text.split_once("\r\n\r\n").unwrap().1);
        let bytes = |name| header(text, name).map(str::as_bytes);
        let digest = header(text, "shardwise-digest").unwrap();
        let (content_type, traceparent, to) = (bytes("content-type"), bytes("traceparent"), bytes("shardwise-to"));
        let asked = RequestParts { method, target, content_type, traceparent, digest, to };
        let proven = self.0.proven(&asked, header(text, "shardwise-proof").unwrap()).unwrap();
        assert!(proven.has_body(body.as_bytes()));
        let (line, rest) = answer.split_once("\r\n").unwrap();
        let proof = proven.answer(&AnswerParts {
            by: header(answer, "shardwise-peer").unwrap(),
            status: answer.split(' ').nth(1).unwrap().parse().unwrap(),
            content_type: header(answer, "content-type").map(str::as_bytes),
            body: answer.split_once("\r\n\r\n").unwrap().1.as_bytes(),
        });
        format!("{line}\r\nshardwise-proof: {proof}\r\n{rest}")
    }
}

/// One connection to a member that has proven itself.
pub(crate) struct Caller {
    pub(crate) stream: TcpStream,
    asking: CallerEnd,
    at: SocketAddr,
}

impl Caller {
    /// `base` is the prefix of every path to the member. The error is what was received instead of a proof.
    pub(crate) fn greets(at: SocketAddr, base: &str, token: &str) -> Result<Self, String> {
        let (mut stream, nonce) = (http::connect(at), Nonce::random());
        write!(stream, "GET {base} HTTP/1.1\r\nHost: {at}\r\nshardwise-peer: 1\r\nshardwise-nonce: {nonce}\r\n\r\n").unwrap();
        let text = heard(&mut stream).unwrap();
        let [own, proof] = ["shardwise-nonce", "shardwise-proof"].map(|name| header(&text, name).unwrap_or_default());
        let asking = with_recipient(base, |recipient| CallerEnd::begun(token.as_bytes(), recipient, &nonce, own, proof));
        asking.map(|asking| Self { stream, asking, at }).ok_or(text)
    }

    /// The next request of the connection, with its proof. It names no addressee, as those of older versions.
    pub(crate) fn request(&mut self, method: &str, target: &str, body: &str) -> String {
        let digest = digest(body.as_bytes());
        let proof = self.asking.proof(&RequestParts { method, target, content_type: None, traceparent: None, digest: &digest, to: None });
        format!(
            "{method} {target} HTTP/1.1\r\nHost: {}\r\nshardwise-peer: 1\r\nContent-Length: {}\r\nshardwise-digest: {digest}\r\nshardwise-proof: {proof}\r\n\r\n{body}",
            self.at,
            body.len()
        )
    }

    /// The answer, and whether it proves to be the answer to the last request.
    pub(crate) fn sends(&mut self, request: &str) -> (String, bool) {
        self.stream.write_all(request.as_bytes()).unwrap();
        let text = heard(&mut self.stream).unwrap();
        let answered = AnswerParts {
            by: header(&text, "shardwise-peer").unwrap_or_default(),
            status: text.split(' ').nth(1).unwrap().parse().unwrap(),
            content_type: header(&text, "content-type").map(str::as_bytes),
            body: text.split_once("\r\n\r\n").unwrap().1.as_bytes(),
        };
        let is_proven = self.asking.is_answer(header(&text, "shardwise-proof"), &answered);
        (text, is_proven)
    }
}
