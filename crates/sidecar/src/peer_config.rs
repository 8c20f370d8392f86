//! Communication between members: how requests get from one to another, and how members prove their membership.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use rustls::ClientConfig;
use rustls::server::danger::ClientCertVerifier;
use tokio::sync::Semaphore;

use crate::certificates::{Signers, Tls};
use crate::connection_pool::ConnectionPool;
use crate::forward::FORWARDS_MOST;
use crate::options::Token;
use crate::peer_http::PeerConnection;
use crate::server::Error;
use crate::target::Target;

/// The options and state of requests between members.
#[derive(Debug)]
pub struct Peers {
    /// The secret that members prove to each other, instead of the one in the settings.
    pub token: Option<Token>,
    /// The client configuration for members: how their certificates are verified, and which one is presented.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// Verifies the certificates that members present here.
    pub(crate) members: Option<Arc<dyn ClientCertVerifier>>,
    /// The local worker, for requests that this sidecar does not answer.
    pub(crate) forward_to: Option<Target>,
    pub(crate) turns: Semaphore,
    pub(crate) answers: Semaphore,
    /// The member with which the next search for any member begins.
    pub(crate) next: AtomicUsize,
    /// Connections to members and to the local worker.
    pub(crate) connection_pool: ConnectionPool<PeerConnection>,
}

impl Default for Peers {
    fn default() -> Self {
        let [turns, answers] = [(); 2].map(|()| Semaphore::new(FORWARDS_MOST));
        Self {
            token: None,
            tls: None,
            members: None,
            forward_to: None,
            turns,
            answers,
            next: AtomicUsize::new(0),
            connection_pool: ConnectionPool::default(),
        }
    }
}

impl Peers {
    /// Trusts members with TLS if their certificate is signed by one of the certificates in this PEM file.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if the file contains none.
    pub fn trust(&mut self, file: &Path) -> Result<(), Error> {
        self.tls = Some(Signers::from_file(file)?.client(None)?);
        Ok(())
    }

    /// The same with mutual TLS: this sidecar presents its `own` certificate, and a member that sends a request here must present one
    /// signed by the same CAs. Every client certificate of these CAs makes its owner a member, so they must sign for nothing else.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if one of the files is not usable.
    pub fn trust_mutually(&mut self, file: &Path, own: &Tls) -> Result<(), Error> {
        let signers = Signers::from_file(file)?;
        (self.tls, self.members) = (Some(signers.client(Some(own))?), Some(signers.judge()?));
        Ok(())
    }

    pub(crate) const fn is_mutual(&self) -> bool {
        self.members.is_some()
    }

    /// Forwards requests that this sidecar does not answer itself to the worker at this address on the same machine, such as
    /// `http://127.0.0.1:8000/hooks`.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if the address is invalid or on another machine.
    pub fn forward_to(&mut self, address: &str) -> Result<(), Error> {
        let refused = || Error::Options("the worker beside is at an address of this machine, such as http://127.0.0.1:8000".into());
        self.forward_to = Some(Target::parse(address).filter(Target::is_beside).ok_or_else(refused)?);
        Ok(())
    }
}
