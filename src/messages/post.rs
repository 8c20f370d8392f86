//! One service's post: who holds which name, where its holder is reached, and what is taken here.

use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use shardwise_core::{Claim, ClaimName, Epoch, GroupName, Holder, Member, Resource};
use shardwise_discovery::{ClaimsEvent, LogThrottle, METADATA_BYTES_MAX};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::inbox::Inbox;
use super::listener::{MessageListenerContext, serve};
use super::mailboxes::Mailboxes;
use super::peer::{CallTarget, Peer};
use crate::life::Life;
use crate::proof::{Channel, Recipient};
use crate::runtime::Guard;
use crate::settings::{MessagesSettings, Network};
use crate::{Error, ErrorKind, Result};

/// The metadata under which a member's record says where its messages arrive.
pub(crate) const ADDRESS_KEY: &str = "shardwise.messages";
/// The most messages of one worker that wait for a holder or for a reply.
pub(super) const OUTSTANDING_MAX: usize = 1_024;

/// What belongs to one service. Whoever holds it keeps no service alive.
pub(crate) struct Post {
    group: GroupName,
    life: Life,
    settings: MessagesSettings,
    /// Where messages may go.
    networks: Vec<Network>,
    /// The host under which others reach this worker, where it listens on all of them.
    host: Option<String>,
    metadata_bytes: usize,
    leaders: watch::Sender<BTreeMap<ClaimName, Claim>>,
    address: watch::Sender<Option<String>>,
    opening: tokio::sync::Mutex<()>,
    pub(super) mailboxes: Arc<Mailboxes>,
    pub(super) outstanding: Arc<Semaphore>,
    peers: Mutex<HashMap<Holder, (String, Peer)>>,
    /// Ends the listener: with the worker, or with the last who holds this.
    closed: CancellationToken,
    _close: DropGuard,
}

impl Post {
    /// `gone` ends it before its time.
    pub(crate) fn new(
        group: GroupName,
        member: &Member,
        life: Life,
        settings: MessagesSettings,
        networks: Vec<Network>,
        gone: &CancellationToken,
    ) -> Self {
        let closed = gone.child_token();
        Self {
            group,
            life,
            settings,
            networks,
            host: member.address.as_ref().map(|address| address.host.clone()),
            metadata_bytes: member.metadata.iter().map(|(name, text)| name.len() + text.len()).sum(),
            leaders: watch::Sender::new(BTreeMap::new()),
            address: watch::Sender::new(None),
            opening: tokio::sync::Mutex::default(),
            mailboxes: Arc::default(),
            outstanding: Arc::new(Semaphore::new(OUTSTANDING_MAX)),
            peers: Mutex::default(),
            _close: closed.clone().drop_guard(),
            closed,
        }
    }

    /// Takes in who holds which name.
    pub(crate) fn hear(&self, event: &ClaimsEvent) {
        self.leaders.send_if_modified(|leaders| match event {
            ClaimsEvent::All { claims, .. } => {
                let named = claims.iter().filter_map(|(resource, claim)| Some((name_of(resource)?.clone(), claim.clone())));
                let all: BTreeMap<_, _> = named.collect();
                let changed = all != *leaders;
                *leaders = all;
                changed
            }
            ClaimsEvent::Changed { changes, .. } => {
                let mut changed = false;
                for change in changes {
                    let Some(name) = name_of(&change.resource) else { continue };
                    changed |= match &change.claim {
                        Some(claim) => leaders.insert(name.clone(), claim.clone()).as_ref() != Some(claim),
                        None => leaders.remove(name).is_some(),
                    };
                }
                changed
            }
            _ => false,
        });
    }

    /// Nobody tells any more who holds what.
    pub(crate) fn hear_nothing(&self) {
        self.leaders.send_if_modified(|leaders| !std::mem::take(leaders).is_empty());
    }

    pub(super) fn leaders(&self) -> watch::Receiver<BTreeMap<ClaimName, Claim>> {
        self.leaders.subscribe()
    }

    pub(super) fn me(&self) -> Holder {
        self.life.holder()
    }

    /// This worker as the one that is asked.
    pub(crate) fn recipient(&self, channel: Channel) -> Recipient<'_> {
        Recipient { channel, group: &self.group, instance_id: self.life.instance_id(), incarnation: self.life.incarnation() }
    }

    /// Where this worker's messages arrive, once it listens.
    pub(crate) fn address(&self) -> watch::Receiver<Option<String>> {
        self.address.subscribe()
    }

    /// Listens, if it does not yet.
    pub(crate) async fn open(&self) -> Result<()> {
        let _turn = self.opening.lock().await;
        if self.address.borrow().is_some() || self.closed.is_cancelled() {
            return Ok(());
        }
        let listen = self.settings.listen;
        let failed = |error| {
            let message = format!("cannot listen for messages on {listen}: {error}; change messages_listen, or end what listens there");
            Error::new(ErrorKind::Settings, message)
        };
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let address = self.reached_at(listener.local_addr().map_err(failed)?)?;
        let bytes = self.metadata_bytes + ADDRESS_KEY.len() + address.len();
        if bytes > METADATA_BYTES_MAX {
            let message = format!("with the address for messages the metadata has {bytes} bytes; at most {METADATA_BYTES_MAX} are allowed");
            return Err(Error::new(ErrorKind::Settings, message));
        }
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
        self.address.send_replace(Some(address));
        Ok(())
    }

    fn reached_at(&self, bound: SocketAddr) -> Result<String> {
        if !bound.ip().is_unspecified() {
            return Ok(bound.to_string());
        }
        let host = self.host.as_ref().ok_or_else(|| unreachable_by(self.settings.listen))?;
        let port = bound.port();
        Ok(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
    }

    /// Opens the mailbox of a name that is held here.
    pub(crate) async fn inbox<M, R>(
        &self,
        name: &ClaimName,
        epoch: Epoch,
        guard: &Arc<Guard>,
        cancel: &CancellationToken,
    ) -> Result<Inbox<M, R>> {
        self.open().await?;
        let guard = Arc::downgrade(guard);
        let (number, queue) = self.mailboxes.open(name.clone(), epoch, guard.clone(), cancel.clone());
        let mailboxes = Arc::clone(&self.mailboxes);
        Ok(Inbox { queue, number, mailboxes, epoch, cancel: cancel.clone(), guard, types: PhantomData })
    }

    /// The way to that member at that address.
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

/// What to do where all addresses are listened on and none is known.
pub(crate) fn unreachable_by(listen: SocketAddr) -> Error {
    let message = format!(
        "messages_listen is {listen}, and others cannot know where that is: set instance.address and instance.port, or listen on one address"
    );
    Error::new(ErrorKind::Settings, message)
}

const fn name_of(resource: &Resource) -> Option<&ClaimName> {
    match resource {
        Resource::Name(name) => Some(name),
        Resource::Slot(_) => None,
    }
}
