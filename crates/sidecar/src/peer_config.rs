//! Communication between members: how requests get from one to another, and how members prove their membership.

use std::path::Path;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls::server::danger::ClientCertVerifier;

use crate::certificates::{Tls, trusting};
use crate::connection_pool::ConnectionPool;
use crate::options::Token;
use crate::peer_http::PeerConnection;
use crate::server::Error;
use crate::target::Target;

/// The options of requests between members.
#[derive(Debug, Default)]
pub struct Peers {
    /// The secret that members prove to each other, instead of the one in the settings.
    pub token: Option<Token>,
    /// The client configuration for members: how their certificates are verified, and which one is presented.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// The name that every member's certificate has; `None` if each has the host of its own address.
    pub(crate) name: Option<ServerName<'static>>,
    /// Verifies the certificates that members present here.
    pub(crate) members: Option<Arc<dyn ClientCertVerifier>>,
    /// The local worker, for requests that this sidecar does not answer.
    pub(crate) forward_to: Option<Target>,
    /// Connections to members and to the local worker.
    pub(crate) connection_pool: ConnectionPool<PeerConnection>,
}

impl Peers {
    /// Trusts members with TLS if their certificate is signed by one of the certificates in this PEM file.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if the file contains none.
    pub fn trust(&mut self, file: &Path) -> Result<(), Error> {
        self.tls = Some(trusting(file, None)?.0);
        Ok(())
    }

    /// The same with mutual TLS: this sidecar presents its `own` certificate, and a member that sends a request here must present one
    /// signed by the same CAs. Every client certificate of these CAs makes its owner a member, so they must sign for nothing else.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if one of the files is not usable.
    pub fn trust_mutually(&mut self, file: &Path, own: &Tls) -> Result<(), Error> {
        let (client, verifier) = trusting(file, Some(own))?;
        (self.tls, self.members) = (Some(client), Some(verifier));
        Ok(())
    }

    /// Expects this name in every member's certificate, instead of the host of its address. For members whose addresses are not known
    /// when their certificate is made, such as pods. They need a token as well, which proves which of them it is.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if it is no host name.
    pub fn expect_name(&mut self, name: &str) -> Result<(), Error> {
        let refused = |_| Error::Options(format!("--peer-name {name}: a certificate has no such name; write one such as members.example"));
        self.name = Some(ServerName::try_from(name.to_owned()).map_err(refused)?);
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
