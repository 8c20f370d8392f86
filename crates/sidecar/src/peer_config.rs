//! How members prove themselves to each other, and the local worker that answers for this one.

use std::path::Path;
use std::sync::Arc;

use rustls::server::danger::ClientCertVerifier;
use shardwise::requests::PeerSecurity;
use shardwise::requests::channel::ChannelTls;
use shardwise::settings::PeersSettings;

use crate::certificates::verifier;
use crate::error::Error;
use crate::target::Target;
use crate::token::Token;

/// The options of requests and messages between members.
#[derive(Debug, Default)]
pub struct Peers {
    /// The secret that members prove to each other, instead of the one in the settings.
    pub token: Option<Token>,
    /// The members' certificates, instead of those in the settings.
    certificates: Option<MemberCertificates>,
    /// The local worker, for requests that this process does not answer.
    pub(crate) forward_to: Option<Target>,
}

/// How members' certificates are verified, and which one is presented.
#[derive(Debug, Default)]
struct MemberCertificates {
    tls: ChannelTls,
    /// Verifies those that members present here.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
}

impl Peers {
    /// Trusts members with TLS if their certificate is signed by one of the certificates in this PEM file.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if the file contains none.
    pub fn trust(&mut self, file: &Path) -> Result<(), Error> {
        self.certificates = Some(MemberCertificates { tls: ChannelTls::from_files(Some(file), None)?, verifier: None });
        Ok(())
    }

    /// The same with mutual TLS: this sidecar presents the certificate chain with that key, and a member that connects here must present
    /// one signed by the same CAs. Every client certificate of these CAs makes its owner a member, so they must sign for nothing else.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if one of the files is not usable.
    pub fn trust_mutually(&mut self, file: &Path, chain: &Path, key: &Path) -> Result<(), Error> {
        let tls = ChannelTls::from_files(Some(file), Some((chain, key)))?;
        self.certificates = Some(MemberCertificates { tls, verifier: Some(verifier(file)?) });
        Ok(())
    }

    /// Expects this name in every member's certificate, instead of the host of its address. For members whose addresses are not known
    /// when their certificate is made, such as pods. They need a token as well, which proves which of them it is. Call it after `trust`.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if it is no host name.
    pub fn expect_name(&mut self, name: &str) -> Result<(), Error> {
        let refused = |why| Error::Options(format!("--peer-name {name}: {why}"));
        self.certificates.get_or_insert_default().tls.expect_name(name).map_err(refused)
    }

    /// Forwards requests that this process does not answer to the worker at this address on the same machine, such as
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

    /// Without certificates in the options, takes those of the settings of the policies that are joined. An error if these differ, because
    /// their members connect to one listener, and if members must present certificates to a listener without TLS.
    pub(crate) fn complete<'a>(&mut self, policies: impl IntoIterator<Item = &'a PeersSettings>, has_tls: bool) -> Result<(), Error> {
        let mut policies = policies.into_iter();
        if let (None, Some(first)) = (&self.certificates, policies.next()) {
            if policies.any(|other| other.certificates != first.certificates) {
                const APART: &str = "the policies have different certificates of members (peer_ca_file, peer_cert_file, peer_key_file, \
                    peer_name), and one sidecar has one listener: give them the same, or run a sidecar for each";
                return Err(Error::Options(APART.into()));
            }
            let tls = PeerSecurity::read(first).map_err(Error::Options)?.tls;
            let ca = first.certificates.ca_file.as_deref().filter(|_| tls.is_mutual());
            self.certificates = Some(MemberCertificates { tls, verifier: ca.map(verifier).transpose()? });
        }
        if self.verifier().is_some() && !has_tls {
            const OVER_TLS: &str = "members show their certificates over TLS: --peer-cert (peer_cert_file) needs --tls-cert and --tls-key";
            return Err(Error::Options(OVER_TLS.into()));
        }
        Ok(())
    }

    /// Verifies the certificates that members present here.
    pub(crate) fn verifier(&self) -> Option<Arc<dyn ClientCertVerifier>> {
        self.certificates.as_ref()?.verifier.clone()
    }

    /// How this process proves itself to members of a policy with these settings, and what it expects of them. Where an operator's token is
    /// set, nothing is answered to a caller that proves nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if a file of certificates in the settings cannot be used.
    pub(crate) fn security(&self, settings: &PeersSettings, has_operators_token: bool) -> Result<PeerSecurity, Error> {
        let token = self.token.as_ref().map(Token::to_text).or_else(|| settings.token.clone());
        let tls = match &self.certificates {
            Some(certificates) => certificates.tls.clone(),
            None => PeerSecurity::read(settings).map_err(Error::Options)?.tls,
        };
        Ok(PeerSecurity { token, tls, refuses_unproven: has_operators_token })
    }
}
