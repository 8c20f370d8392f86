//! Forwards datagrams, and answers back to their senders.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::net::UdpSocket;
use tokio::task::{JoinHandle, JoinSet};

use crate::error::{Error, Result};

const DATAGRAM: usize = 65_536;
/// Senders that are remembered. Gossip has one for each node, and some for answers.
const SENDERS_MAX: usize = 500;

/// A relay to one address; it ends when dropped.
#[derive(Debug)]
pub(crate) struct UdpProxy {
    is_cut: Arc<AtomicBool>,
    relaying: JoinHandle<()>,
}

impl UdpProxy {
    pub(crate) async fn start(listen: SocketAddr, target: SocketAddr) -> Result<Self> {
        let socket = UdpSocket::bind(listen).await.map_err(Error::io(listen))?;
        let is_cut = Arc::<AtomicBool>::default();
        let relaying = tokio::spawn(relay(Arc::new(socket), target, is_cut.clone()));
        Ok(Self { is_cut, relaying })
    }

    /// Whether nothing passes any more, neither way.
    pub(crate) fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Relaxed);
    }
}

impl Drop for UdpProxy {
    fn drop(&mut self) {
        self.relaying.abort();
    }
}

/// Carries datagrams to the target, each sender's from a separate socket, so that answers find their way back.
async fn relay(socket: Arc<UdpSocket>, target: SocketAddr, is_cut: Arc<AtomicBool>) {
    let mut senders: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut answers = JoinSet::new();
    let mut bytes = vec![0; DATAGRAM];
    while let Ok((length, sender)) = socket.recv_from(&mut bytes).await {
        if is_cut.load(Ordering::Relaxed) {
            continue;
        }
        if !senders.contains_key(&sender) && senders.len() < SENDERS_MAX {
            let Ok(towards) = towards(target).await.map(Arc::new) else { continue };
            answers.spawn(answer(towards.clone(), socket.clone(), sender, is_cut.clone()));
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

async fn answer(from: Arc<UdpSocket>, socket: Arc<UdpSocket>, sender: SocketAddr, is_cut: Arc<AtomicBool>) {
    let mut bytes = vec![0; DATAGRAM];
    loop {
        match from.recv(&mut bytes).await {
            Ok(_) if is_cut.load(Ordering::Relaxed) => {}
            Ok(length) => drop(socket.send_to(&bytes[..length], sender).await),
            // About a datagram sent before: the target was dead, and may come back.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(_) => return,
        }
    }
}
