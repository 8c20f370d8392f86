//! One member's message hub: the holders of names, their addresses, and the messages taken here.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use shardwise_core::{GroupName, Holder, Holders};
use shardwise_discovery::LogThrottle;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::listener::{MessageListenerContext, serve};
use super::mailboxes::Mailboxes;
use super::peer::{CallTarget, Peer};
use crate::error::{Error, ErrorKind, Result};
use crate::membership::{AdvertisedAddresses, Life, OwnershipContext};
use crate::settings::{MESSAGES_ADDRESS, MessagesSettings, Network};

/// The most messages of one worker that wait for a holder or for a reply.
pub(super) const OUTSTANDING_MAX: usize = 1_024;

/// The message hub of one member. It keeps no service alive.
pub(super) struct MessageHub {
    group: GroupName,
    life: Life,
    settings: MessagesSettings,
    /// Where messages may go.
    networks: Vec<Network>,
    advertised: Arc<AdvertisedAddresses>,
    leaders: watch::Receiver<Holders>,
    is_open: tokio::sync::Mutex<bool>,
    pub(super) mailboxes: Arc<Mailboxes>,
    pub(super) outstanding: Arc<Semaphore>,
    peers: Mutex<HashMap<Holder, (String, Peer)>>,
    /// Ends the listener: with the worker, or when the last reference to this is dropped.
    closed: CancellationToken,
    _close: DropGuard,
}

impl MessageHub {
    pub(super) fn of(context: &OwnershipContext) -> Arc<Self> {
        context.extensions.get_or_make(|| Self::new(context))
    }

    fn new(context: &OwnershipContext) -> Self {
        let closed = context.gone.child_token();
        Self {
            group: context.policy.group.clone(),
            life: context.life.clone(),
            settings: context.messages.clone(),
            networks: context.peers.networks.clone(),
            advertised: Arc::clone(&context.advertised),
            leaders: context.holders.follow(),
            is_open: tokio::sync::Mutex::default(),
            mailboxes: Arc::default(),
            outstanding: Arc::new(Semaphore::new(OUTSTANDING_MAX)),
            peers: Mutex::default(),
            _close: closed.clone().drop_guard(),
            closed,
        }
    }

    /// The holders of slots and names, now and whenever that changes.
    pub(super) fn leaders(&self) -> watch::Receiver<Holders> {
        self.leaders.clone()
    }

    pub(super) fn me(&self) -> Holder {
        self.life.holder()
    }

    /// Starts to listen, if necessary, and publishes the address.
    pub(super) async fn open(&self) -> Result<()> {
        let mut is_open = self.is_open.lock().await;
        if *is_open || self.closed.is_cancelled() {
            return Ok(());
        }
        let listen = self.settings.listen;
        let failed = |error| {
            let message = format!("cannot listen for messages on {listen}: {error}; change messages_listen, or end what listens there");
            Error::new(ErrorKind::Settings, message)
        };
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let address = self.reached_at(listener.local_addr().map_err(failed)?)?;
        self.advertised.show(MESSAGES_ADDRESS, &address)?;
        let context = MessageListenerContext {
            group: self.group.clone(),
            life: self.life.clone(),
            token: self.settings.token.clone(),
            mailboxes: Arc::clone(&self.mailboxes),
            refused: LogThrottle::default(),
        };
        let closed = self.closed.clone();
        tokio::spawn(async move { closed.run_until_cancelled(serve(listener, Arc::new(context))).await });
        tracing::info!(group = %self.group, %address, "listens for messages to singletons");
        *is_open = true;
        Ok(())
    }

    fn reached_at(&self, bound: SocketAddr) -> Result<String> {
        if !bound.ip().is_unspecified() {
            return Ok(bound.to_string());
        }
        self.advertised.at_host(bound.port()).ok_or_else(|| unreachable_by(self.settings.listen))
    }

    /// The connection to that member at that address.
    pub(super) fn peer(&self, holder: &Holder, address: &str) -> Peer {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, peer)) = peers.get(holder)
            && known == address
            && peer.is_open()
        {
            return peer.clone();
        }
        peers.retain(|_, (_, peer)| peer.is_open());
        let peer = Peer::connect(CallTarget {
            address: address.to_owned(),
            group: self.group.clone(),
            holder: holder.clone(),
            token: self.settings.token.clone(),
            networks: self.networks.clone(),
        });
        peers.insert(holder.clone(), (address.to_owned(), peer.clone()));
        peer
    }
}

/// The error if it listens on all addresses and none is known.
pub(crate) fn unreachable_by(listen: SocketAddr) -> Error {
    let message = format!(
        "messages_listen is {listen}, and others cannot know where that is: set instance.address and instance.port, or listen on one address"
    );
    Error::new(ErrorKind::Settings, message)
}
