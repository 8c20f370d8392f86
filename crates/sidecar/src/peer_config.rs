//! What is among members: how requests get from one to another, and what proves that they are members.

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

/// How requests are brought from member to member.
#[derive(Debug)]
pub struct Peers {
    /// What members prove to each other that they know, instead of what the settings say.
    pub token: Option<Token>,
    /// How members' certificates are judged, and which one they are shown.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// How the certificates are judged that members show here.
    pub(crate) members: Option<Arc<dyn ClientCertVerifier>>,
    /// The worker beside, for what is not answered here.
    pub(crate) forward_to: Option<Target>,
    /// How many are on their way at a time.
    pub(crate) turns: Semaphore,
    /// How many are answered here at a time.
    pub(crate) answers: Semaphore,
    /// Where the next search for any member begins.
    pub(crate) next: AtomicUsize,
    /// Connections to members, and to the worker beside.
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
    /// Members that speak TLS are believed if one of the certificates in this PEM file has signed theirs.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if there is none in it.
    pub fn trust(&mut self, file: &Path) -> Result<(), Error> {
        self.tls = Some(Signers::from_file(file)?.client(None)?);
        Ok(())
    }

    /// The same, and both sides show a certificate: this one its `own`, and whoever brings a request here one that the same have signed. Whom they sign a
    /// certificate for clients is a member by that, so they sign for nobody else.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if one of the files is not what it is to be.
    pub fn trust_mutually(&mut self, file: &Path, own: &Tls) -> Result<(), Error> {
        let signers = Signers::from_file(file)?;
        (self.tls, self.members) = (Some(signers.client(Some(own))?), Some(signers.judge()?));
        Ok(())
    }

    /// Whether members show certificates here.
    pub(crate) const fn is_mutual(&self) -> bool {
        self.members.is_some()
    }

    /// What this sidecar does not answer itself is asked of the worker at this address of the same machine, such as `http://127.0.0.1:8000/hooks`.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if it is another machine's, or none.
    pub fn forward_to(&mut self, address: &str) -> Result<(), Error> {
        let refused = || Error::Options("the worker beside is at an address of this machine, such as http://127.0.0.1:8000".into());
        self.forward_to = Some(Target::parse(address).filter(Target::is_beside).ok_or_else(refused)?);
        Ok(())
    }
}
