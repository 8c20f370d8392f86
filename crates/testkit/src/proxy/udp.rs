//! Forwards datagrams, and answers back to their senders.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::UdpSocket;
use tokio::task::{JoinHandle, JoinSet};

use crate::error::{Error, Result};

/// The largest datagram there is.
const DATAGRAM: usize = 65_536;
/// Senders that are remembered. Gossip has one for each node, and some for answers.
const SENDERS_MAX: usize = 500;

/// Whose datagrams are thrown away.
#[derive(Debug, Default)]
struct Silence {
    everybody: bool,
    senders: HashSet<IpAddr>,
}

/// A relay to one address; it ends when dropped.
#[derive(Debug)]
pub(crate) struct UdpProxy {
    silence: Arc<Mutex<Silence>>,
    relaying: JoinHandle<()>,
}

impl UdpProxy {
    pub(crate) async fn start(listen: SocketAddr, target: SocketAddr) -> Result<Self> {
        let socket = UdpSocket::bind(listen).await.map_err(Error::io(listen))?;
        let silence = Arc::<Mutex<Silence>>::default();
        let relaying = tokio::spawn(relay(Arc::new(socket), target, silence.clone()));
        Ok(Self { silence, relaying })
    }

    fn silence(&self) -> MutexGuard<'_, Silence> {
        self.silence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing passes any more, neither way.
    pub(crate) fn cut(&self) {
        self.silence().everybody = true;
    }

    /// Nothing passes from or to this sender any more.
    pub(crate) fn cut_from(&self, sender: IpAddr) {
        self.silence().senders.insert(sender);
    }

    pub(crate) fn heal(&self) {
        *self.silence() = Silence::default();
    }
}

impl Drop for UdpProxy {
    fn drop(&mut self) {
        self.relaying.abort();
    }
}

fn is_cut(silence: &Mutex<Silence>, sender: SocketAddr) -> bool {
    let silence = silence.lock().unwrap_or_else(PoisonError::into_inner);
    silence.everybody || silence.senders.contains(&sender.ip())
}

/// Carries datagrams to the target, each sender's from a separate socket, so that answers find their way back.
async fn relay(socket: Arc<UdpSocket>, target: SocketAddr, silence: Arc<Mutex<Silence>>) {
    let mut senders: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut answers = JoinSet::new();
    let mut bytes = vec![0; DATAGRAM];
    while let Ok((length, sender)) = socket.recv_from(&mut bytes).await {
        if is_cut(&silence, sender) {
            continue;
        }
        if !senders.contains_key(&sender) && senders.len() < SENDERS_MAX {
            let Ok(towards) = towards(target).await.map(Arc::new) else { continue };
            answers.spawn(answer(towards.clone(), socket.clone(), sender, silence.clone()));
            senders.insert(sender, towards);
        }
        if let Some(towards) = senders.get(&sender) {
            let _ = towards.send(&bytes[..length]).await;
        }
    }
}

async fn towards(target: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
    socket.connect(target).await?;
    Ok(socket)
}

/// Carries the answers to one sender.
async fn answer(from: Arc<UdpSocket>, socket: Arc<UdpSocket>, sender: SocketAddr, silence: Arc<Mutex<Silence>>) {
    let mut bytes = vec![0; DATAGRAM];
    loop {
        match from.recv(&mut bytes).await {
            Ok(length) if !is_cut(&silence, sender) => drop(socket.send_to(&bytes[..length], sender).await),
            Ok(_) => {}
            // About a datagram sent before: the target was dead, and may come back.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(_) => return,
        }
    }
}
