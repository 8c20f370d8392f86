//! The connection to another member: one for all messages, opened for the first one and closed when idle.

use std::collections::HashMap;
use std::io::{Error, ErrorKind, Result};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use secrecy::ExposeSecret;
use shardwise_core::{Escaped, Holder};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::hub::LocalEnd;
use super::wire::{
    self, FRAME_BYTES_MAX, FrameReader, FrameWriter, HELLO_BYTES_MAX, Hello, PROTOCOL, Response, Seal, Welcome, WireAnswer, WireRequest,
};
use crate::error::locked;
use crate::membership::proof::{Channel, Nonce, ProofSession, Recipient};
use crate::settings::Network;

const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// An idle connection is closed after this time. Shorter than on the other side, so that this side always knows.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// The most addresses of one name that are tried.
const ADDRESSES_MOST: usize = 4;
const QUEUE_MAX: usize = 64;

#[derive(Debug)]
pub(super) enum SendOutcome {
    Answered(WireAnswer),
    /// It was not delivered.
    Unsent(String),
    /// It may not be sent there.
    Refused(String),
    /// It was delivered, or may have been.
    Unknown(String),
}

/// Messages without an answer yet.
#[derive(Default)]
struct PendingReplies(Mutex<ReplyTable>);

#[derive(Default)]
struct ReplyTable {
    numbered: u64,
    waiting: HashMap<u64, PendingReply>,
    /// Set once no more answers can come, with the reason.
    over: Option<ConnectionEnd>,
}

struct PendingReply {
    sent: oneshot::Sender<SendOutcome>,
    /// Its first byte may have been written.
    begun: bool,
}

enum ConnectionEnd {
    Broken(String),
    Refused(String),
}

impl ConnectionEnd {
    fn of(&self, begun: bool) -> SendOutcome {
        match (self, begun) {
            (Self::Refused(why), _) => SendOutcome::Refused(why.clone()),
            (Self::Broken(why), false) => SendOutcome::Unsent(why.clone()),
            (Self::Broken(why), true) => SendOutcome::Unknown(why.clone()),
        }
    }
}

impl PendingReplies {
    /// Whether its sender still waits; from here on it may have been delivered.
    fn begin(&self, id: u64) -> bool {
        locked(&self.0).waiting.get_mut(&id).map(|waiting| waiting.begun = true).is_some()
    }

    fn answer(&self, Response { id, answer }: Response) {
        let waiting = locked(&self.0).waiting.remove(&id);
        if let Some(waiting) = waiting {
            let _ = waiting.sent.send(SendOutcome::Answered(answer));
        }
    }

    fn end(&self, over: ConnectionEnd) {
        let mut table = locked(&self.0);
        for (_, PendingReply { sent, begun }) in table.waiting.drain() {
            let _ = sent.send(over.of(begun));
        }
        table.over = Some(over);
    }
}

struct CallTarget {
    local: Arc<LocalEnd>,
    holder: Holder,
    address: String,
}

/// The connection to one incarnation of a member at one address.
#[derive(Clone)]
pub(super) struct Peer {
    queue: mpsc::Sender<WireRequest>,
    outstanding: Arc<PendingReplies>,
}

/// A message without an answer yet. Dropping it ends the wait.
pub(super) struct PendingMessage {
    id: u64,
    outstanding: Arc<PendingReplies>,
    sent: oneshot::Receiver<SendOutcome>,
}

impl PendingMessage {
    /// Ends the wait; returns whether the message may have been delivered.
    pub(super) fn withdraw(self) -> bool {
        locked(&self.outstanding.0).waiting.remove(&self.id).is_none_or(|waiting| waiting.begun)
    }

    pub(super) async fn sent(&mut self) -> SendOutcome {
        (&mut self.sent).await.unwrap_or_else(|_| SendOutcome::Unknown("the connection is gone".into()))
    }
}

impl Drop for PendingMessage {
    fn drop(&mut self) {
        locked(&self.outstanding.0).waiting.remove(&self.id);
    }
}

impl Peer {
    /// Starts to connect. The connection ends with the last clone.
    pub(super) fn connect(local: Arc<LocalEnd>, holder: Holder, address: String) -> Self {
        let (queue, requests) = mpsc::channel(QUEUE_MAX);
        let (call, outstanding) = (CallTarget { local, holder, address }, Arc::new(PendingReplies::default()));
        let waiting = Arc::clone(&outstanding);
        tokio::spawn(async move {
            let over = match connection(&call, requests, &waiting).await {
                Ok(None) => ConnectionEnd::Broken(format!("the connection to {} was closed", Escaped(&call.address))),
                Ok(Some(over)) => over,
                Err(error) => ConnectionEnd::Broken(format!("{}: {error}", Escaped(&call.address))),
            };
            waiting.end(over);
        });
        Self { queue, outstanding }
    }

    pub(super) fn is_open(&self) -> bool {
        locked(&self.outstanding.0).over.is_none()
    }

    pub(super) async fn send(&self, mut request: WireRequest) -> std::result::Result<PendingMessage, SendOutcome> {
        let place = self.queue.reserve().await;
        let (sent, receiver) = oneshot::channel();
        let ticket = {
            let mut table = locked(&self.outstanding.0);
            if let Some(over) = &table.over {
                return Err(over.of(false));
            }
            table.numbered += 1;
            request.id = table.numbered;
            table.waiting.insert(request.id, PendingReply { sent, begun: false });
            PendingMessage { id: request.id, outstanding: Arc::clone(&self.outstanding), sent: receiver }
        };
        match place {
            Ok(place) => place.send(request),
            Err(_) => return Err(SendOutcome::Unsent("the connection is being closed".into())),
        }
        Ok(ticket)
    }
}

async fn connection(
    call: &CallTarget,
    requests: mpsc::Receiver<WireRequest>,
    outstanding: &PendingReplies,
) -> Result<Option<ConnectionEnd>> {
    let stream = match timeout(CONNECT_WITHIN, reached(&call.address, &call.local.networks)).await?? {
        Ok(stream) => stream,
        Err(barred) => return Ok(Some(ConnectionEnd::Refused(barred))),
    };
    stream.set_nodelay(true)?;
    let (reader, writer) = stream.into_split();
    let (mut hearing, mut sending) = (FrameReader::new(reader), FrameWriter::new(writer));
    if let Some(why) = not_there(call, &mut hearing, &mut sending).await? {
        return Ok(Some(ConnectionEnd::Broken(format!("{}: {why}", Escaped(&call.address)))));
    }
    tokio::select! {
        ended = write_all(sending, requests, outstanding) => ended?,
        ended = read_all(hearing, outstanding) => ended?,
    }
    Ok(None)
}

/// A connection to the first of its addresses that is allowed and reachable; the inner error says that none is allowed.
async fn reached(address: &str, networks: &[Network]) -> Result<std::result::Result<TcpStream, String>> {
    let mut failed = Error::new(ErrorKind::NotFound, "it has no address");
    let (mut barred, mut is_allowed) = (String::new(), false);
    for at in tokio::net::lookup_host(address).await?.take(ADDRESSES_MOST) {
        if !networks.iter().any(|network| network.contains(at.ip())) {
            barred = format!("{at} is in none of peer_networks, and messages go nowhere else: add its network there");
            continue;
        }
        is_allowed = true;
        match TcpStream::connect(at).await {
            Ok(stream) => return Ok(Ok(stream)),
            Err(error) => failed = error,
        }
    }
    if is_allowed || barred.is_empty() { Err(failed) } else { Ok(Err(barred)) }
}

/// Addresses the member, and has the other side prove that it is that worker. Returns `None` if so, else why not.
///
/// Nothing before the proof is final: that process may not be the holder, and then the message waits for the next one.
async fn not_there<R, W>(call: &CallTarget, hearing: &mut FrameReader<R>, sending: &mut FrameWriter<W>) -> Result<Option<&'static str>>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let (callers, Holder { instance_id, incarnation }) = (Nonce::random(), call.holder.clone());
    let hello = Hello { shardwise: PROTOCOL, group: call.local.group.clone(), instance_id, incarnation, nonce: callers.to_string() };
    sending.send(wire::frame(&hello)?).await?;
    let session = match hearing.read(HELLO_BYTES_MAX).await? {
        Welcome::Challenge { nonce, proof } => match call.proven(&callers, &nonce, proof.as_deref()) {
            Ok(session) => session,
            Err(why) => return Ok(Some(why)),
        },
        refusal => return Ok(Some(said(&refusal))),
    };
    if let Some(session) = session {
        let [own, recipients] = Seal::pair(&session);
        (sending.seal, hearing.seal) = (Some(own), Some(recipients));
    }
    sending.send(wire::frame(&())?).await?;
    match hearing.read(HELLO_BYTES_MAX).await? {
        Welcome::Ok => Ok(None),
        refusal => Ok(Some(said(&refusal))),
    }
}

const fn said(refusal: &Welcome) -> &'static str {
    match refusal {
        Welcome::OtherProtocol => "another version of shardwise is there, with which no messages are exchanged; upgrade the older one",
        Welcome::OtherMember => "another process is there now",
        Welcome::Full => "it has too many connections",
        Welcome::Ok | Welcome::Challenge { .. } => "its answer is not the expected one",
    }
}

impl CallTarget {
    /// The connection's key, `None` if neither side has a token.
    fn proven(&self, callers: &Nonce, nonce: &str, proof: Option<&str>) -> std::result::Result<Option<ProofSession>, &'static str> {
        let (token, proof) = match (&self.local.token, proof) {
            (Some(token), Some(proof)) => (token, proof),
            (None, None) => return Ok(None),
            (Some(_), None) => return Err("it has no messages_token_file, and this worker has: give all workers the same"),
            (None, Some(_)) => return Err("it has a messages_token_file, and this worker has none: give all workers the same"),
        };
        let (instance_id, incarnation) = (&self.holder.instance_id, self.holder.incarnation);
        let recipient = Recipient { channel: Channel::Messages, group: &self.local.group, instance_id, incarnation };
        let session = ProofSession::welcomed(token.expose_secret().as_bytes(), &recipient, callers, nonce, proof);
        session.map(Some).ok_or("it does not prove that it is the holder and has the same messages_token_file: give all workers the same")
    }
}

async fn write_all(
    mut sending: FrameWriter<impl AsyncWrite + Unpin>,
    mut requests: mpsc::Receiver<WireRequest>,
    outstanding: &PendingReplies,
) -> Result<()> {
    loop {
        match timeout(IDLE_MAX, requests.recv()).await {
            Ok(None) => return Ok(()),
            Ok(Some(request)) => {
                let frame = wire::frame(&request)?;
                if outstanding.begin(request.id) {
                    sending.send(frame).await?;
                }
            }
            Err(_) if locked(&outstanding.0).waiting.is_empty() => return Ok(()),
            Err(_) => {}
        }
    }
}

async fn read_all(mut hearing: FrameReader<impl AsyncRead + Unpin>, outstanding: &PendingReplies) -> Result<()> {
    loop {
        if hearing.begins(IDLE_MAX).await? {
            outstanding.answer(hearing.read(FRAME_BYTES_MAX).await?);
        }
    }
}
