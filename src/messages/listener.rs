//! Where other members' messages arrive: connections of limited number, each with limited work in flight. Whoever connects may be anybody until
//! his first frame says otherwise, and nobody may hold up the worker: everything here has a limit in number, bytes and time.

use std::collections::VecDeque;
use std::io::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use shardwise_core::{GroupName, Holder};
use shardwise_discovery::Seldom;
use tokio::io::{AsyncWrite, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::mailboxes::Mailboxes;
use super::wire::{self, Answer, FRAME_BYTES_MAX, HELLO_BYTES_MAX, Hello, PROTOCOL, Request, Response, Welcome};

/// The most connections of members.
const CONNECTIONS_MAX: usize = 512;
/// The most connections that have not said who they are; a further one takes the place of the oldest.
const STRANGERS_MAX: usize = 64;
/// How long a stranger may take to say who he is.
const HELLO_WITHIN: Duration = Duration::from_secs(3);
/// A connection on which nothing is asked for so long, and nothing is in flight, is closed. Longer than callers keep theirs.
const IDLE_MAX: Duration = Duration::from_mins(2);
/// The most messages of one connection that are in flight.
pub(super) const IN_FLIGHT_MAX: usize = 64;
/// The longest that a message is waited for, whatever its sender says.
const WAIT_MAX: Duration = Duration::from_hours(1);
/// The pause after the system had no connection to give.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// What a listener needs to know.
pub(super) struct Door {
    pub(super) group: GroupName,
    pub(super) me: Holder,
    pub(super) token: Option<SecretString>,
    pub(super) mailboxes: Arc<Mailboxes>,
    /// Who was refused for the token.
    pub(super) refused: Seldom<()>,
}

impl Door {
    fn judge(&self, hello: &Hello) -> Welcome {
        let given = hello.token.as_deref().unwrap_or_default();
        if hello.shardwise != PROTOCOL {
            Welcome::OtherProtocol
        } else if self.token.as_ref().is_some_and(|token| !wire::same(token.expose_secret().as_bytes(), given.as_bytes())) {
            Welcome::WrongToken
        } else if hello.group != self.group || hello.instance_id != self.me.instance_id || hello.incarnation != self.me.incarnation {
            Welcome::SomebodyElse
        } else {
            Welcome::Ok
        }
    }
}

/// Takes connections for ever; dropping it ends them all.
pub(super) async fn serve(listener: TcpListener, door: Arc<Door>) {
    let members = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    let mut strangers: VecDeque<(AbortHandle, Arc<AtomicBool>)> = VecDeque::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        strangers.retain(|(task, known)| !task.is_finished() && !known.load(Ordering::Relaxed));
        if strangers.len() >= STRANGERS_MAX
            && let Some((oldest, _)) = strangers.pop_front()
        {
            oldest.abort();
        }
        let known = Arc::new(AtomicBool::new(false));
        let (door, members, told) = (Arc::clone(&door), Arc::clone(&members), Arc::clone(&known));
        let task = connections.spawn(async move {
            if let Err(error) = connection(stream, &door, &members, &told).await {
                tracing::debug!(%error, "a connection for messages has ended");
            }
        });
        strangers.push_back((task, known));
    }
}

async fn connection(stream: TcpStream, door: &Door, members: &Semaphore, known: &AtomicBool) -> Result<()> {
    stream.set_nodelay(true)?;
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let hello: Hello = timeout(HELLO_WITHIN, wire::read(&mut reader, HELLO_BYTES_MAX)).await??;
    let seat = members.try_acquire();
    let welcome = match (door.judge(&hello), &seat) {
        (Welcome::Ok, Err(_)) => Welcome::Full,
        (judged, _) => judged,
    };
    if welcome == Welcome::WrongToken
        && let Some(refused) = door.refused.another(())
    {
        tracing::warn!(group = %door.group, refused, "somebody with another token, or none, has tried to send messages and was refused; one line a minute at most");
    }
    wire::write(&mut writer, &wire::frame(&welcome)?).await?;
    if welcome != Welcome::Ok {
        return Ok(());
    }
    known.store(true, Ordering::Relaxed);
    let (answers, queue) = mpsc::channel(IN_FLIGHT_MAX);
    tokio::select! {
        ended = requests(reader, door, answers) => ended,
        ended = responses(writer, queue) => ended,
    }
}

/// Reads messages and hands them over. While nobody reads the answers nothing more is read here.
async fn requests(mut reader: BufReader<impl tokio::io::AsyncRead + Unpin>, door: &Door, answers: mpsc::Sender<Response>) -> Result<()> {
    let places = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
    let mut in_flight = JoinSet::new();
    loop {
        while in_flight.try_join_next().is_some() {}
        if !wire::begins(&mut reader, IDLE_MAX).await? {
            if places.available_permits() == IN_FLIGHT_MAX {
                return Ok(());
            }
            continue;
        }
        let Request { id, to, epoch, within_ms, body } = wire::read(&mut reader, FRAME_BYTES_MAX).await?;
        let delivered = match Arc::clone(&places).try_acquire_owned() {
            Ok(place) => door.mailboxes.deliver(&to, epoch, body).map(|answer| (answer, place)),
            Err(_) => Err(Answer::Busy),
        };
        match delivered {
            Err(answer) => {
                let _ = answers.send(Response { id, answer }).await;
            }
            Ok((answer, place)) => {
                let answers = answers.clone();
                in_flight.spawn(async move {
                    // Whoever has given up by then needs no answer, and what was not taken yet is not handled.
                    if let Ok(answer) = timeout(Duration::from_millis(within_ms).min(WAIT_MAX), answer).await {
                        let lost = |_| Answer::Lost("its holder ended before it had replied".into());
                        let _ = answers.send(Response { id, answer: answer.unwrap_or_else(lost) }).await;
                    }
                    drop(place);
                });
            }
        }
    }
}

async fn responses(mut writer: impl AsyncWrite + Unpin, mut queue: mpsc::Receiver<Response>) -> Result<()> {
    while let Some(response) = queue.recv().await {
        wire::write(&mut writer, &wire::frame(&response)?).await?;
    }
    Ok(())
}
