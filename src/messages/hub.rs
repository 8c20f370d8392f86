//! One member's message hub: the holders of names, their addresses, and the messages taken here.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use secrecy::SecretString;
use shardwise_core::{GroupName, Holder, Holders};
use shardwise_discovery::LogThrottle;
use tokio::sync::{Semaphore, watch};

use super::inbox::Mailboxes;
use super::listener::serve;
use super::peer::Peer;
use crate::error::{Error, ErrorKind, Result, locked};
use crate::membership::{AdvertisedAddresses, Life, MemberListener, OwnershipContext};
use crate::settings::{MESSAGES_ADDRESS, Network};

/// The most messages of one worker that wait for a holder or for a reply.
pub(super) const OUTSTANDING_MAX: usize = 1_024;

/// The message hub of one member. It keeps no service alive.
pub(super) struct MessageHub {
    pub(super) local: Arc<LocalEnd>,
    /// The address to listen on.
    listen: SocketAddr,
    listener: MemberListener,
    advertised: Arc<AdvertisedAddresses>,
    leaders: watch::Receiver<Holders>,
    pub(super) outstanding: Semaphore,
    peers: Mutex<HashMap<Holder, (String, Peer)>>,
}

/// This member's end of every connection for messages.
pub(super) struct LocalEnd {
    pub(super) group: GroupName,
    pub(super) life: Life,
    pub(super) token: Option<SecretString>,
    /// Where messages may go.
    pub(super) networks: Vec<Network>,
    pub(super) mailboxes: Mailboxes,
    pub(super) refused: LogThrottle<&'static str>,
}

impl MessageHub {
    pub(super) fn of(context: &OwnershipContext) -> Arc<Self> {
        let local = || LocalEnd {
            group: context.policy.group.clone(),
            life: context.life.clone(),
            token: context.messages.token.clone(),
            networks: context.peers.networks.clone(),
            mailboxes: Mailboxes::default(),
            refused: LogThrottle::default(),
        };
        context.extensions.get_or_make(|| Self {
            local: Arc::new(local()),
            listen: context.messages.listen,
            listener: MemberListener::of(context),
            advertised: Arc::clone(&context.advertised),
            leaders: context.holders.follow(),
            outstanding: Semaphore::new(OUTSTANDING_MAX),
            peers: Mutex::default(),
        })
    }

    /// The holders of slots and names, now and whenever that changes.
    pub(super) fn leaders(&self) -> watch::Receiver<Holders> {
        self.leaders.clone()
    }

    /// Starts to listen, if necessary, and publishes the address.
    pub(super) async fn open(&self) -> Result<()> {
        let begin = |listener, bound| {
            let address = self.reached_at(bound)?;
            self.advertised.show(MESSAGES_ADDRESS, &address)?;
            tracing::info!(group = %self.local.group, %address, "listens for messages to singletons");
            Ok(serve(listener, Arc::clone(&self.local)))
        };
        self.listener.open(("messages", "messages_listen", self.listen), begin).await.map(drop)
    }

    fn reached_at(&self, bound: SocketAddr) -> Result<String> {
        if !bound.ip().is_unspecified() {
            return Ok(bound.to_string());
        }
        let unreachable = || Error::new(ErrorKind::Settings, unreachable_by(self.listen));
        self.advertised.at_host(bound.port()).ok_or_else(unreachable)
    }

    /// The connection to that member at that address.
    pub(super) fn peer(&self, holder: &Holder, address: &str) -> Peer {
        let mut peers = locked(&self.peers);
        if let Some((known, peer)) = peers.get(holder)
            && known == address
            && peer.is_open()
        {
            return peer.clone();
        }
        peers.retain(|_, (_, peer)| peer.is_open());
        let peer = Peer::connect(Arc::clone(&self.local), holder.clone(), address.to_owned());
        peers.insert(holder.clone(), (address.to_owned(), peer.clone()));
        peer
    }
}

/// The error if it listens on all addresses and none is known.
pub(crate) fn unreachable_by(listen: SocketAddr) -> String {
    format!(
        "messages_listen is {listen}, and others cannot know where that is: set instance.address and instance.port, or listen on one address"
    )
}
