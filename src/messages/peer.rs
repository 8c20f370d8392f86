//! The way to another member: one connection for all messages, made when the first is to be sent and closed when none was for a while.

use std::collections::HashMap;
use std::io::{Error, ErrorKind, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use shardwise_core::{Escaped, GroupName, Holder};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::wire::{self, Answer, FRAME_BYTES_MAX, HELLO_BYTES_MAX, Hearing, Hello, PROTOCOL, Request, Response, Seal, Sending, Welcome};
use crate::proof::{Channel, Kind, Nonce, Recipient, Session};
use crate::settings::Network;

/// How long a connection may take to be there.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// A connection that has had nothing to do for so long is closed. Shorter than the other side keeps it, so that it is this side that knows.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// The most addresses of one name that are tried.
const ADDRESSES_MOST: usize = 4;
/// The most messages that wait to be written.
const QUEUE_MAX: usize = 64;

/// What came of a message that was to be sent.
#[derive(Debug)]
pub(super) enum Sent {
    Answered(Answer),
    /// It did not get there.
    Unsent(String),
    /// It may not go there.
    Refused(String),
    /// It got there, or may have.
    Unknown(String),
}

/// Messages whose answer is outstanding.
#[derive(Default)]
struct Outstanding(Mutex<Table>);

#[derive(Default)]
struct Table {
    numbered: u64,
    waiting: HashMap<u64, Waiting>,
    /// No answer comes any more, and why.
    over: Option<Over>,
}

struct Waiting {
    sent: oneshot::Sender<Sent>,
    /// Its first byte may have been written.
    begun: bool,
}

enum Over {
    Broken(String),
    Refused(String),
}

impl Over {
    fn of(&self, begun: bool) -> Sent {
        match (self, begun) {
            (Self::Refused(why), _) => Sent::Refused(why.clone()),
            (Self::Broken(why), false) => Sent::Unsent(why.clone()),
            (Self::Broken(why), true) => Sent::Unknown(why.clone()),
        }
    }
}

impl Outstanding {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing under the lock can panic half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody waits for it still; from here on it may have got there.
    fn begin(&self, id: u64) -> bool {
        self.table().waiting.get_mut(&id).map(|waiting| waiting.begun = true).is_some()
    }

    fn answer(&self, Response { id, answer }: Response) {
        let waiting = self.table().waiting.remove(&id);
        if let Some(waiting) = waiting {
            let _ = waiting.sent.send(Sent::Answered(answer));
        }
    }

    fn end(&self, over: Over) {
        let mut table = self.table();
        for (_, Waiting { sent, begun }) in table.waiting.drain() {
            let _ = sent.send(over.of(begun));
        }
        table.over = Some(over);
    }
}

/// Who is called, and where.
pub(super) struct Call {
    pub(super) address: String,
    pub(super) group: GroupName,
    pub(super) holder: Holder,
    pub(super) token: Option<SecretString>,
    /// Where messages may go.
    pub(super) networks: Vec<Network>,
}

/// The way to one life of one member at one address.
#[derive(Clone)]
pub(super) struct Peer {
    queue: mpsc::Sender<Request>,
    outstanding: Arc<Outstanding>,
}

/// A message whose answer is waited for. Dropping it waits no more.
pub(super) struct Ticket {
    id: u64,
    outstanding: Arc<Outstanding>,
    sent: oneshot::Receiver<Sent>,
}

impl Ticket {
    /// Waits no more; whether it may have got there.
    pub(super) fn withdraw(self) -> bool {
        self.outstanding.table().waiting.remove(&self.id).is_none_or(|waiting| waiting.begun)
    }

    /// What came of it. Cancel safe.
    pub(super) async fn sent(&mut self) -> Sent {
        (&mut self.sent).await.unwrap_or_else(|_| Sent::Unknown("the connection is gone".into()))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.outstanding.table().waiting.remove(&self.id);
    }
}

impl Peer {
    /// Begins to connect. The connection ends with the last clone.
    pub(super) fn connect(call: Call) -> Self {
        let (queue, requests) = mpsc::channel(QUEUE_MAX);
        let outstanding = Arc::new(Outstanding::default());
        let waiting = Arc::clone(&outstanding);
        tokio::spawn(async move {
            let over = match connection(&call, requests, &waiting).await {
                Ok(None) => Over::Broken(format!("the connection to {} was closed", Escaped(&call.address))),
                Ok(Some(over)) => over,
                Err(error) => Over::Broken(format!("{}: {error}", Escaped(&call.address))),
            };
            waiting.end(over);
        });
        Self { queue, outstanding }
    }

    /// Whether it takes messages still.
    pub(super) fn is_open(&self) -> bool {
        self.outstanding.table().over.is_none()
    }

    /// Puts a message into the queue, once there is room.
    pub(super) async fn send(&self, mut request: Request) -> std::result::Result<Ticket, Sent> {
        let place = self.queue.reserve().await;
        let (sent, receiver) = oneshot::channel();
        let ticket = {
            let mut table = self.outstanding.table();
            if let Some(over) = &table.over {
                return Err(over.of(false));
            }
            table.numbered += 1;
            request.id = table.numbered;
            table.waiting.insert(request.id, Waiting { sent, begun: false });
            Ticket { id: request.id, outstanding: Arc::clone(&self.outstanding), sent: receiver }
        };
        match place {
            Ok(place) => place.send(request),
            Err(_) => return Err(Sent::Unsent("the connection is being closed".into())),
        }
        Ok(ticket)
    }
}

async fn connection(call: &Call, requests: mpsc::Receiver<Request>, outstanding: &Outstanding) -> Result<Option<Over>> {
    let stream = match timeout(CONNECT_WITHIN, reached(&call.address, &call.networks)).await?? {
        Ok(stream) => stream,
        Err(barred) => return Ok(Some(Over::Refused(barred))),
    };
    stream.set_nodelay(true)?;
    let (reader, writer) = stream.into_split();
    let (mut hearing, mut sending) = (Hearing::new(reader), Sending::new(writer));
    if let Some(why) = not_there(call, &mut hearing, &mut sending).await? {
        return Ok(Some(Over::Broken(format!("{}: {why}", Escaped(&call.address)))));
    }
    tokio::select! {
        ended = write_all(sending, requests, outstanding) => ended?,
        ended = read_all(hearing, outstanding) => ended?,
    }
    Ok(None)
}

/// A connection to the first of its addresses that is allowed and there; the inner error is that none is allowed.
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

/// Says who is called, and has the other side prove that it is that worker. Why it is not there; `None` if it is, and messages may follow.
///
/// Nothing that is said before the proof is believed for good: that process may not be the holder, and then the message waits for the next one.
async fn not_there<R, W>(call: &Call, hearing: &mut Hearing<R>, sending: &mut Sending<W>) -> Result<Option<&'static str>>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let (callers, Holder { instance_id, incarnation }) = (Nonce::random(), call.holder.clone());
    let hello = Hello { shardwise: PROTOCOL, group: call.group.clone(), instance_id, incarnation, nonce: callers.to_string() };
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
        Welcome::SomebodyElse => "somebody else is there now",
        Welcome::Full => "it has too many connections",
        Welcome::Ok | Welcome::Challenge { .. } => "what it says is out of turn",
    }
}

impl Call {
    /// The key of the connection, `None` where neither side has a token.
    fn proven(&self, callers: &Nonce, nonce: &str, proof: Option<&str>) -> std::result::Result<Option<Session>, &'static str> {
        let (token, proof) = match (&self.token, proof) {
            (Some(token), Some(proof)) => (token, proof),
            (None, None) => return Ok(None),
            (Some(_), None) => return Err("it has no messages_token_file, and this worker has: give all workers the same"),
            (None, Some(_)) => return Err("it has a messages_token_file, and this worker has none: give all workers the same"),
        };
        let wrong = "it does not prove that it is the holder and has the same messages_token_file: give all workers the same";
        let (instance_id, incarnation) = (&self.holder.instance_id, self.holder.incarnation);
        let recipient = Recipient { channel: Channel::Messages, group: &self.group, instance_id, incarnation };
        let (nonce, proof) = nonce.parse().ok().zip(proof.parse().ok()).ok_or(wrong)?;
        let session = Session::new(token.expose_secret().as_bytes(), &recipient, callers, &nonce);
        if session.proves(&proof, Kind::Welcome, 0, &[]) { Ok(Some(session)) } else { Err(wrong) }
    }
}

async fn write_all(
    mut sending: Sending<impl AsyncWrite + Unpin>,
    mut requests: mpsc::Receiver<Request>,
    outstanding: &Outstanding,
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
            Err(_) if outstanding.table().waiting.is_empty() => return Ok(()),
            Err(_) => {}
        }
    }
}

async fn read_all(mut hearing: Hearing<impl AsyncRead + Unpin>, outstanding: &Outstanding) -> Result<()> {
    loop {
        if hearing.begins(IDLE_MAX).await? {
            outstanding.answer(hearing.read(FRAME_BYTES_MAX).await?);
        }
    }
}
