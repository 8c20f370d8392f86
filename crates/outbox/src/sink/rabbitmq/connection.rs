//! One connection to a node at a time, and its channels.
//!
//! The client library can assign confirmations and returned messages only while one event is in flight on a channel. So a channel carries
//! one event at a time, and is reused only after a clear answer. An event without an answer would stay in the library's queue and be sent
//! late, after events that another publisher has sent meanwhile. In that case the connection is reset, which drops the queue.

use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::uri::AMQPUri;
use lapin::{BasicProperties, Channel, Confirmation, Connection as Amqp, ConnectionProperties};
use shardwise::discovery::tls::{ConnectFailure, ServerStream, TlsFiles, connect_tcp, connect_tls};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::timeout;

use super::stream::{Handover, runtime};

/// The most events in flight at once.
const CHANNELS_MAX: u16 = 64;

/// A connection that works, or has worked.
pub(super) struct RabbitMqConnection {
    amqp: Amqp,
    socket: SocketCloser,
    free: Semaphore,
    idle: Mutex<Vec<Channel>>,
    given_up: watch::Sender<bool>,
}

impl std::fmt::Debug for RabbitMqConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RabbitMqConnection")
    }
}

impl RabbitMqConnection {
    /// Connects, with TLS if there are `files` for it. Neither a silent server nor a dropped call leaves a connection behind.
    pub(super) async fn open(uri: AMQPUri, files: Option<&TlsFiles>, within: Duration) -> Result<Self, OpenFailure> {
        let properties = ConnectionProperties::default().with_connection_name("shardwise outbox".into());
        let socket = SocketCloser::default();
        let opening = CloseOnDrop(Some(socket.clone()));
        let stream = timeout(within, connect(&uri.authority.host, uri.authority.port, files, &socket, within)).await;
        let stream = stream.unwrap_or_else(|_| Err(ConnectFailure::Unreachable(format!("no connection within {within:?}"))))?;
        let handover = Handover::new(stream);
        let connecting = Amqp::connector(uri, runtime(), async move |_, _| handover.take(), properties);
        let amqp = connecting.await?;
        let most = match amqp.configuration().channel_max() {
            0 => CHANNELS_MAX,
            most => most.min(CHANNELS_MAX),
        };
        opening.keep();
        let free = Semaphore::new(most.into());
        Ok(Self { amqp, socket, free, idle: Mutex::default(), given_up: watch::Sender::new(false) })
    }

    pub(super) fn is_broken(&self) -> bool {
        *self.given_up.borrow() || !self.amqp.status().connected()
    }

    /// Whether the server has announced that it accepts no events now. Events sent nevertheless would wait in the library's queue.
    pub(super) fn is_blocked(&self) -> bool {
        self.amqp.status().blocked()
    }

    pub(super) async fn given_up(&self) {
        let mut given_up = self.given_up.subscribe();
        // An error is impossible: the sender is in `self`.
        let _ = given_up.wait_for(|given_up| *given_up).await;
    }

    /// The most bytes of a frame; an event's headers are one frame.
    pub(super) fn frame_bytes_max(&self) -> usize {
        usize::try_from(self.amqp.configuration().frame_max()).unwrap_or(usize::MAX)
    }

    /// A new channel with nothing in flight, outside the pool.
    pub(super) async fn channel(&self) -> lapin::Result<Channel> {
        let channel = self.amqp.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }

    /// Waits until a channel is free.
    pub(super) async fn turn(&self) -> lapin::Result<Option<ChannelLease<'_>>> {
        // The semaphore is never closed.
        let Ok(permit) = self.free.acquire().await else { return Ok(None) };
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut opening = PendingRequest { live: self, waiting: true };
        let channel = match idle.filter(|channel| channel.status().connected()) {
            Some(channel) => Ok(channel),
            None => self.channel().await,
        };
        opening.waiting = false;
        Ok(Some(ChannelLease { channel: channel?, unanswered: opening, _permit: permit }))
    }

    fn give_up(&self) {
        self.given_up.send_replace(true);
        self.socket.close();
    }
}

/// Why there is no connection.
pub(super) enum OpenFailure {
    Connect(ConnectFailure),
    Amqp(lapin::Error),
}

impl From<ConnectFailure> for OpenFailure {
    fn from(failure: ConnectFailure) -> Self {
        Self::Connect(failure)
    }
}

impl From<lapin::Error> for OpenFailure {
    fn from(error: lapin::Error) -> Self {
        match error.kind() {
            // With TLS 1.3 a server objects to a client's certificate only now.
            lapin::ErrorKind::IOError(io) => match ConnectFailure::of_io(io) {
                ConnectFailure::Unreachable(_) => Self::Amqp(error),
                failure => Self::Connect(failure),
            },
            _ => Self::Amqp(error),
        }
    }
}

async fn connect(
    host: &str,
    port: u16,
    files: Option<&TlsFiles>,
    socket: &SocketCloser,
    within: Duration,
) -> Result<Box<dyn ServerStream>, ConnectFailure> {
    let tcp = connect_tcp(host, port).await?;
    // Below TLS: what is sent and not received yet is thrown away there.
    let handle = tcp.as_fd().try_clone_to_owned().map_err(|error| ConnectFailure::of_io(&error))?;
    socket.keep(handle.into()).map_err(|error| ConnectFailure::of_io(&error))?;
    let Some(files) = files else { return Ok(Box::new(tcp)) };
    Ok(Box::new(connect_tls(tcp, host, files, &[], within).await?))
}

impl Drop for RabbitMqConnection {
    fn drop(&mut self) {
        // Otherwise the library would say goodbye to the server, and wait if the server does not read.
        if self.is_broken() || self.is_blocked() {
            self.socket.close();
        }
    }
}

/// A request to the server. If it is dropped while it waits, the fate of its data is unknown, and the connection is given up.
struct PendingRequest<'a> {
    live: &'a RabbitMqConnection,
    waiting: bool,
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        if self.waiting {
            self.live.give_up();
        }
    }
}

/// A channel reserved for one event.
pub(super) struct ChannelLease<'a> {
    unanswered: PendingRequest<'a>,
    channel: Channel,
    _permit: SemaphorePermit<'a>,
}

impl ChannelLease<'_> {
    /// Sends an event and waits for the answer to it.
    pub(super) async fn publish(
        mut self,
        exchange: ShortString,
        routing_key: ShortString,
        body: &[u8],
        properties: BasicProperties,
    ) -> lapin::Result<Confirmation> {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        self.unanswered.waiting = true;
        let confirmed = match self.channel.basic_publish(exchange, routing_key, options, body, properties).await {
            Ok(confirm) => confirm.await,
            Err(error) => Err(error),
        };
        self.unanswered.waiting = false;
        // After an error the channel is not used again.
        if confirmed.is_ok() {
            let mut idle = self.unanswered.live.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.push(self.channel.clone());
        }
        confirmed
    }
}

/// A second handle of the connection's socket, because the library cannot close it at once.
#[derive(Clone, Default)]
struct SocketCloser(Arc<Mutex<SocketHandle>>);

#[derive(Default)]
enum SocketHandle {
    #[default]
    None,
    Open(TcpStream),
    Closed,
}

impl SocketCloser {
    fn keep(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut handle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*handle, SocketHandle::Closed) {
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        *handle = SocketHandle::Open(stream);
        Ok(())
    }

    /// Ends the connection beneath the library, which then closes its own handle: on a busy machine seconds later.
    fn close(&self) {
        let handle = std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), SocketHandle::Closed);
        if let SocketHandle::Open(stream) = handle {
            // Resets the connection at once and discards unsent data. The connection may already have ended, and not every system supports
            // this.
            let _ = rustix::net::connect_unspec(&stream);
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

struct CloseOnDrop(Option<SocketCloser>);

impl CloseOnDrop {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(socket) = &self.0 {
            socket.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    /// As long as the library held its handle, the kernel would go on sending buffered data.
    #[test]
    fn what_waits_in_a_socket_is_thrown_away_at_once_even_if_it_is_shared() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut written = 0;
        while let Ok(more) = ours.write(&vec![b'x'; 1 << 16]) {
            written += more;
        }
        let closer = SocketCloser::default();
        closer.keep(ours.try_clone().unwrap()).unwrap();
        closer.close();
        let mut read = Vec::new();
        let end = theirs.read_to_end(&mut read).unwrap_err();
        assert_eq!(end.kind(), ErrorKind::ConnectionReset);
        assert!(read.len() < written, "all {written} bytes arrived");
        drop(ours);
    }
}
