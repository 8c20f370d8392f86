//! The way to another member: one connection for all messages, made when the first is to be sent and closed when none was for a while.

use std::collections::HashMap;
use std::io::Result;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::wire::{self, Answer, FRAME_BYTES_MAX, HELLO_BYTES_MAX, Hello, Request, Response, Welcome};

/// How long a connection may take to be there.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// A connection that has had nothing to do for so long is closed. Shorter than the other side keeps it, so that it is this side that knows.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// The most messages that wait to be written.
const QUEUE_MAX: usize = 64;

/// What came of a message that was to be sent.
#[derive(Debug)]
pub(super) enum Sent {
    Answered(Answer),
    /// It did not get there.
    Unsent(String),
    /// It was not let in, and will not be.
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
    pub(super) fn connect(address: String, hello: Hello) -> Self {
        let (queue, requests) = mpsc::channel(QUEUE_MAX);
        let outstanding = Arc::new(Outstanding::default());
        let waiting = Arc::clone(&outstanding);
        tokio::spawn(async move {
            let over = match connection(&address, &hello, requests, &waiting).await {
                Ok(None) => Over::Broken(format!("the connection to {address} was closed")),
                Ok(Some(refusal)) => refusal,
                Err(error) => Over::Broken(format!("{address}: {error}")),
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

async fn connection(address: &str, hello: &Hello, requests: mpsc::Receiver<Request>, outstanding: &Outstanding) -> Result<Option<Over>> {
    let stream = timeout(CONNECT_WITHIN, TcpStream::connect(address)).await??;
    stream.set_nodelay(true)?;
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    wire::write(&mut writer, &wire::frame(hello)?).await?;
    let refused = |why: &str| Ok(Some(Over::Refused(format!("{address}: {why}"))));
    match wire::read(&mut reader, HELLO_BYTES_MAX).await? {
        Welcome::Ok => {}
        Welcome::WrongToken => return refused("the holder has another token; give all workers the same messages_token_file"),
        Welcome::OtherProtocol => return refused("the holder speaks another version of this protocol; use one version of shardwise"),
        Welcome::SomebodyElse => return Ok(Some(Over::Broken(format!("{address}: somebody else is there now")))),
        Welcome::Full => return Ok(Some(Over::Broken(format!("{address}: it has too many connections")))),
    }
    tokio::select! {
        ended = write_all(writer, requests, outstanding) => ended?,
        ended = read_all(reader, outstanding) => ended?,
    }
    Ok(None)
}

async fn write_all(mut writer: impl AsyncWrite + Unpin, mut requests: mpsc::Receiver<Request>, outstanding: &Outstanding) -> Result<()> {
    loop {
        match timeout(IDLE_MAX, requests.recv()).await {
            Ok(None) => return Ok(()),
            Ok(Some(request)) => {
                let frame = wire::frame(&request)?;
                if outstanding.begin(request.id) {
                    wire::write(&mut writer, &frame).await?;
                }
            }
            Err(_) if outstanding.table().waiting.is_empty() => return Ok(()),
            Err(_) => {}
        }
    }
}

async fn read_all(mut reader: BufReader<impl AsyncRead + Unpin>, outstanding: &Outstanding) -> Result<()> {
    loop {
        if wire::begins(&mut reader, IDLE_MAX).await? {
            outstanding.answer(wire::read(&mut reader, FRAME_BYTES_MAX).await?);
        }
    }
}
