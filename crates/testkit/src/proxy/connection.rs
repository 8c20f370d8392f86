//! One connection through the proxy.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::request_parser::RequestParser;
use super::{Direction, ProxyShared, Rules, Way};

const CHUNK: usize = 16 * 1024;
/// Chunks that may be on their way in one direction; the sender has to wait when there are more.
const ON_THEIR_WAY: usize = 256;

/// Carries bytes both ways until both ends are done, one breaks, or the proxy resets it.
pub(super) async fn carry(mut client: TcpStream, shared: ProxyShared) {
    shared.counts.accepted.fetch_add(1, Ordering::Relaxed);
    let _open = OpenConnection::count(&shared.counts.open);
    let mut rules = shared.rules.clone();
    let resets = rules.borrow().resets;
    let broken = tokio::select! {
        ended = through(&mut client, &shared) => ended.is_err(),
        _ = rules.wait_for(|rules| rules.resets > resets) => true,
    };
    if broken {
        // What is unsent is thrown away and the peer gets a reset instead of an end.
        let _ = client.set_zero_linger();
    }
}

/// A connection that counts as open while this lives.
struct OpenConnection<'a>(&'a AtomicU64);

impl<'a> OpenConnection<'a> {
    fn count(open: &'a AtomicU64) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(open)
    }
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The server's end of a connection. Unless it came to its end in good order, the server gets a reset too.
struct ServerEnd {
    stream: TcpStream,
    ended: bool,
}

impl Drop for ServerEnd {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.stream.set_zero_linger();
        }
    }
}

async fn through(client: &mut TcpStream, shared: &ProxyShared) -> io::Result<()> {
    let mut rules = shared.rules.clone();
    rules.wait_for(|rules| rules.ways.iter().all(|way| !way.cut)).await.map_err(io::Error::other)?;
    let target = shared.rules.borrow().target.unwrap_or(shared.target);
    let mut server = ServerEnd { stream: TcpStream::connect(target).await?, ended: false };
    client.set_nodelay(true)?;
    server.stream.set_nodelay(true)?;
    let parser = shared.kind.map(|kind| Mutex::new(RequestParser::new(kind)));
    let lane = |direction| ProxyLane { direction, shared, parser: parser.as_ref() };
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.stream.split();
    tokio::try_join!(pump(from_client, to_server, lane(Direction::ToServer)), pump(from_server, to_client, lane(Direction::ToClient)),)?;
    server.ended = true;
    Ok(())
}

#[derive(Clone, Copy)]
struct ProxyLane<'a> {
    direction: Direction,
    shared: &'a ProxyShared,
    parser: Option<&'a Mutex<RequestParser>>,
}

impl ProxyLane<'_> {
    fn now(&self, rules: &Rules) -> Way {
        rules.ways[self.direction as usize]
    }

    /// What of these bytes goes on.
    fn heard(&self, bytes: Vec<u8>) -> Vec<u8> {
        let Some(parser) = self.parser else { return bytes };
        let ignoring = self.shared.rules.borrow().ignore;
        parser.lock().unwrap_or_else(PoisonError::into_inner).pass(self.direction, bytes, ignoring)
    }
}

/// Carries one way, to the end of what there is to read.
async fn pump(from: ReadHalf<'_>, to: WriteHalf<'_>, lane: ProxyLane<'_>) -> io::Result<()> {
    let (sender, chunks) = mpsc::channel(ON_THEIR_WAY);
    tokio::try_join!(take(from, sender, lane), give(to, chunks, lane))?;
    Ok(())
}

/// Some bytes, and when they may arrive; none at the end.
type Chunk = (Instant, Vec<u8>);

async fn take(mut from: ReadHalf<'_>, chunks: mpsc::Sender<Chunk>, lane: ProxyLane<'_>) -> io::Result<()> {
    loop {
        let mut bytes = vec![0; CHUNK];
        let length = from.read(&mut bytes).await?;
        bytes.truncate(length);
        let bytes = lane.heard(bytes);
        if bytes.is_empty() && length > 0 {
            continue;
        }
        let delay = lane.now(&lane.shared.rules.borrow()).delay;
        // The other half of the pump is gone only with the connection.
        chunks.send((Instant::now() + delay, bytes)).await.map_err(io::Error::other)?;
        if length == 0 {
            return Ok(());
        }
    }
}

async fn give(mut to: WriteHalf<'_>, mut chunks: mpsc::Receiver<Chunk>, lane: ProxyLane<'_>) -> io::Result<()> {
    let mut rules = lane.shared.rules.clone();
    while let Some((due, bytes)) = chunks.recv().await {
        tokio::select! {
            () = tokio::time::sleep_until(due) => {}
            // Healed: nothing is late any more.
            _ = rules.wait_for(|rules| lane.now(rules).delay.is_zero()) => {}
        }
        rules.wait_for(|rules| !lane.now(rules).cut).await.map_err(io::Error::other)?;
        if bytes.is_empty() {
            return to.shutdown().await;
        }
        to.write_all(&bytes).await?;
        lane.shared.counts.bytes[lane.direction as usize].fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }
    Ok(())
}
