//! Receives other members' messages: a limited number of connections, each with limited work in flight. A caller may be anyone until its
//! first frame proves otherwise, and must not stall the worker: everything here is limited in number, bytes and time.

use std::collections::VecDeque;
use std::io::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use secrecy::ExposeSecret;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::hub::LocalEnd;
use super::wire::{
    self, FRAME_BYTES_MAX, FrameReader, FrameWriter, HELLO_BYTES_MAX, Hello, PROTOCOL, Response, Seal, Welcome, WireAnswer, WireRequest,
};
use crate::membership::proof::{Channel, Nonce, ProofSession};

const CONNECTIONS_MAX: usize = 512;
/// The most unauthenticated connections; a further one replaces the oldest.
const STRANGERS_MAX: usize = 64;
/// How long a caller may take to authenticate.
const HELLO_WITHIN: Duration = Duration::from_secs(3);
/// A connection without requests for this long, and without work in flight, is closed. Longer than callers keep theirs.
const IDLE_MAX: Duration = Duration::from_mins(2);
/// The most messages of one connection that are in flight.
pub(super) const IN_FLIGHT_MAX: usize = 64;
/// The longest wait for a message's answer, whatever its sender requests.
const WAIT_MAX: Duration = Duration::from_hours(1);
/// The pause after the system could not accept a connection.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

impl LocalEnd {
    /// The connection's key, if there is a token, and the answer to the hello.
    fn judge(&self, hello: &Hello) -> std::result::Result<(Option<ProofSession>, Welcome), Welcome> {
        if hello.shardwise != PROTOCOL {
            return Err(Welcome::OtherProtocol);
        }
        if hello.group != self.group || hello.instance_id != *self.life.instance_id() || hello.incarnation != self.life.incarnation() {
            return Err(Welcome::OtherMember);
        }
        let callers = hello.nonce.parse().map_err(|_| Welcome::OtherProtocol)?;
        let Some(token) = &self.token else {
            return Ok((None, Welcome::Challenge { nonce: Nonce::random().to_string(), proof: None }));
        };
        let recipient = self.life.recipient(Channel::Messages, &self.group);
        let own = Nonce::random();
        let (session, proof) = ProofSession::welcoming(token.expose_secret().as_bytes(), &recipient, &callers, &own);
        Ok((Some(session), Welcome::Challenge { nonce: own.to_string(), proof: Some(proof.to_string()) }))
    }

    fn warn(&self, why: &'static str) {
        if let Some(refused) = self.refused.another(why) {
            tracing::warn!(group = %self.group, refused, "messages were refused: {why}; one line a minute at most");
        }
    }
}

/// Accepts connections for ever; dropping it ends them all.
pub(super) async fn serve(listener: TcpListener, context: Arc<LocalEnd>) {
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
        let (context, members, known_here) = (Arc::clone(&context), Arc::clone(&members), Arc::clone(&known));
        let task = connections.spawn(async move {
            if let Err(error) = connection(stream, &context, &members, &known_here).await {
                tracing::debug!(%error, "a connection for messages has ended");
            }
        });
        strangers.push_back((task, known));
    }
}

async fn connection(stream: TcpStream, context: &LocalEnd, members: &Semaphore, known: &AtomicBool) -> Result<()> {
    stream.set_nodelay(true)?;
    let (reader, writer) = stream.into_split();
    let (mut hearing, mut sending) = (FrameReader::new(reader), FrameWriter::new(writer));
    if !timeout(HELLO_WITHIN, is_member(&mut hearing, &mut sending, context)).await?? {
        return Ok(());
    }
    let permit = members.try_acquire();
    sending.send(wire::frame(&if permit.is_ok() { Welcome::Ok } else { Welcome::Full })?).await?;
    if permit.is_err() {
        return Ok(());
    }
    known.store(true, Ordering::Relaxed);
    let (answers, queue) = mpsc::channel(IN_FLIGHT_MAX);
    tokio::select! {
        ended = requests(hearing, context, answers) => ended,
        ended = responses(sending, queue) => ended,
    }
}

/// Whether the caller addresses this worker and, if there is a token, has proven that it knows it. Later frames carry proofs.
async fn is_member<R, W>(hearing: &mut FrameReader<R>, sending: &mut FrameWriter<W>, context: &LocalEnd) -> Result<bool>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let hello: Hello = hearing.read(HELLO_BYTES_MAX).await?;
    let (session, challenge) = match context.judge(&hello) {
        Ok(judged) => judged,
        Err(refusal) => {
            if refusal == Welcome::OtherProtocol {
                context.warn("another version of shardwise has tried to send them; upgrade it, and change the token where it was sent");
            }
            sending.send(wire::frame(&refusal)?).await?;
            return Ok(false);
        }
    };
    sending.send(wire::frame(&challenge)?).await?;
    if let Some(session) = &session {
        let [callers, own] = Seal::pair(session);
        (hearing.seal, sending.seal) = (Some(callers), Some(own));
    }
    // A caller that finds that this worker does not know its token closes the connection silently.
    hearing.read::<()>(HELLO_BYTES_MAX).await.map(|()| true).inspect_err(|_| {
        if session.is_some() {
            context.warn("a peer with another token, or none, has tried to send them");
        }
    })
}

/// Reads messages and delivers them. Stops reading while the answers are not read.
async fn requests(mut hearing: FrameReader<impl AsyncRead + Unpin>, context: &LocalEnd, answers: mpsc::Sender<Response>) -> Result<()> {
    let permits = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
    let mut in_flight = JoinSet::new();
    loop {
        while in_flight.try_join_next().is_some() {}
        if !hearing.begins(IDLE_MAX).await? {
            if permits.available_permits() == IN_FLIGHT_MAX {
                return Ok(());
            }
            continue;
        }
        let WireRequest { id, to, epoch, within_ms, body } = hearing.read(FRAME_BYTES_MAX).await?;
        let delivered = match Arc::clone(&permits).try_acquire_owned() {
            Ok(place) => context.mailboxes.deliver(&to, epoch, body).map(|answer| (answer, place)),
            Err(_) => Err(WireAnswer::Busy),
        };
        match delivered {
            Err(answer) => {
                let _ = answers.send(Response { id, answer }).await;
            }
            Ok((answer, place)) => {
                let answers = answers.clone();
                in_flight.spawn(async move {
                    // A sender that has given up by then needs no answer, and a message that was not taken yet is not handled.
                    if let Ok(answer) = timeout(Duration::from_millis(within_ms).min(WAIT_MAX), answer).await {
                        let lost = |_| WireAnswer::Lost("its holder ended before it had replied".into());
                        let _ = answers.send(Response { id, answer: answer.unwrap_or_else(lost) }).await;
                    }
                    drop(place);
                });
            }
        }
    }
}

async fn responses(mut sending: FrameWriter<impl AsyncWrite + Unpin>, mut queue: mpsc::Receiver<Response>) -> Result<()> {
    while let Some(response) = queue.recv().await {
        sending.send(wire::frame(&response)?).await?;
    }
    Ok(())
}
