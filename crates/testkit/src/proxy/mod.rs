//! A TCP proxy inside the test, that does to connections what bad networks do.

mod connection;
mod request_parser;
mod tls;
pub(crate) mod udp;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use request_parser::RequestKind;
pub use request_parser::Speech;
pub use tls::TlsProxy;

use crate::error::{Error, Result};
use crate::ports::Port;

/// One way through the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Bytes from clients.
    ToServer,
    /// The server's answers.
    ToClient,
}

/// The network's present condition.
#[derive(Clone, Debug, Default)]
struct Rules {
    /// By direction.
    ways: [Way; 2],
    refuse: bool,
    /// Requests of the kind get no answer; only for a proxy that knows one.
    ignore: bool,
    /// Where new connections lead instead, after a failover.
    target: Option<SocketAddr>,
    /// Grows with each [`TcpProxy::reset`].
    resets: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Way {
    cut: bool,
    delay: Duration,
}

#[derive(Debug, Default)]
struct Counts {
    accepted: AtomicU64,
    open: AtomicU64,
    /// By direction.
    bytes: [AtomicU64; 2],
}

/// State shared by the proxy and its connections.
#[derive(Clone, Debug)]
struct ProxyShared {
    target: SocketAddr,
    kind: Option<RequestKind>,
    rules: watch::Receiver<Rules>,
    counts: Arc<Counts>,
}

/// A proxy to one address; without other orders it lets everything pass. It ends when dropped, and its connections with it.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    /// Reserved while the proxy exists, unless the caller reserves it.
    port: Option<Port>,
    rules: watch::Sender<Rules>,
    counts: Arc<Counts>,
    /// Whether new connections are accepted just now.
    listening: watch::Receiver<bool>,
    accepting: JoinHandle<()>,
}

impl TcpProxy {
    /// A proxy on a free port.
    pub async fn start(target: SocketAddr) -> Result<Self> {
        Self::on_free_port(target, None).await
    }

    /// A proxy that recognizes some requests by how they begin, so that [`TcpProxy::ignore`] can block them. Not through TLS.
    pub async fn recognizing(target: SocketAddr, speech: Speech, is_meant: fn(&[u8]) -> bool) -> Result<Self> {
        Self::on_free_port(target, Some(RequestKind { speech, is_meant })).await
    }

    async fn on_free_port(target: SocketAddr, kind: Option<RequestKind>) -> Result<Self> {
        let port = Port::reserve()?;
        let mut proxy = Self::between(port.address(), target, kind).await?;
        proxy.port = Some(port);
        Ok(proxy)
    }

    /// A proxy on this address, whose port the caller keeps.
    pub(crate) async fn between(address: SocketAddr, target: SocketAddr, kind: Option<RequestKind>) -> Result<Self> {
        let (rules, orders) = watch::channel(Rules::default());
        let counts = Arc::<Counts>::default();
        let (listens, listening) = watch::channel(false);
        let shared = ProxyShared { target, kind, rules: orders, counts: counts.clone() };
        let accepting = tokio::spawn(accept(address, shared, listens));
        let proxy = Self { address, port: None, rules, counts, listening, accepting };
        proxy.until_listening(true).await?;
        Ok(proxy)
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on no bytes pass in this direction, and neither side sees an error: bytes are held, and arrive after [`TcpProxy::heal`].
    /// A new connection is accepted, but the server sees it only after that.
    pub fn cut(&self, direction: Direction) {
        self.rules.send_modify(|rules| rules.ways[direction as usize].cut = true);
    }

    /// [`TcpProxy::cut`], both ways.
    pub fn cut_both(&self) {
        self.cut(Direction::ToServer);
        self.cut(Direction::ToClient);
    }

    /// What is read from now on goes on that much later this way, in the same order.
    pub fn delay(&self, direction: Direction, by: Duration) {
        self.rules.send_modify(|rules| rules.ways[direction as usize].delay = by);
    }

    /// Breaks all connections with a reset to both ends. New ones are accepted.
    pub fn reset(&self) {
        self.rules.send_modify(|rules| rules.resets += 1);
    }

    /// New connections lead to another server, as after a failover.
    pub fn lead_to(&self, target: SocketAddr) {
        self.rules.send_modify(|rules| rules.target = Some(target));
    }

    /// Requests that are meant (see [`TcpProxy::recognizing`]) get no answer any more, nor do those that wait for one; all others do. A
    /// client that waited in vain has to ask again after [`TcpProxy::heal`].
    pub fn ignore(&self) {
        self.rules.send_modify(|rules| rules.ignore = true);
    }

    /// New connections are refused. Those that there are stay.
    pub async fn refuse(&self) -> Result<()> {
        self.rules.send_modify(|rules| rules.refuse = true);
        self.until_listening(false).await
    }

    /// Everything passes again at once: what was held, what comes, and new connections.
    pub async fn heal(&self) -> Result<()> {
        self.rules.send_modify(|rules| *rules = Rules { resets: rules.resets, target: rules.target, ..Rules::default() });
        self.until_listening(true).await
    }

    /// How many connections were accepted since the start.
    pub fn accepted(&self) -> u64 {
        self.counts.accepted.load(Ordering::Relaxed)
    }

    /// How many connections there are now.
    pub fn open(&self) -> u64 {
        self.counts.open.load(Ordering::Relaxed)
    }

    /// How many bytes arrived this way since the start.
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.counts.bytes[direction as usize].load(Ordering::Relaxed)
    }

    async fn until_listening(&self, wanted: bool) -> Result<()> {
        let mut listening = self.listening.clone();
        // Ends with an error if the port is not available, because then the task is over.
        let waited = listening.wait_for(|is| *is == wanted).await.map(drop);
        waited.map_err(|_| Error::new(format!("the proxy cannot listen on {}", self.address())))
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Accepts connections, except while they are refused; ends if the port is not available, or with the proxy.
async fn accept(address: SocketAddr, shared: ProxyShared, listens: watch::Sender<bool>) {
    let mut rules = shared.rules.clone();
    let mut connections = JoinSet::new();
    loop {
        if rules.wait_for(|rules| !rules.refuse).await.is_err() {
            return;
        }
        let Ok(listener) = TcpListener::bind(address).await else { return };
        listens.send_replace(true);
        loop {
            tokio::select! {
                Ok((client, _)) = listener.accept() => {
                    connections.spawn(connection::carry(client, shared.clone()));
                }
                Some(_) = connections.join_next() => {}
                refuse = rules.wait_for(|rules| rules.refuse) => match refuse {
                    Ok(_) => break,
                    Err(_) => return,
                },
            }
        }
        drop(listener);
        listens.send_replace(false);
    }
}
