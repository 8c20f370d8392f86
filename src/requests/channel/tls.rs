//! TLS of the channel: the certificates of members, and what binds a member's proof to a connection with TLS (feature `tls`).

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig, ConnectionCommon, ServerConfig};
use shardwise_core::Escaped;
use shardwise_discovery::tls::{ClientAuth, TlsError, TlsFile, certificates, client_verifier, private_key, provider, roots, server_config};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::ByteStream;
use super::dial::Unreached;
use crate::settings::PeerCertificates;

/// The protocol that both ends agree on (RFC 7301), so that one port can have others too.
pub const ALPN: &[u8] = b"shardwise";
/// The label of the exporter (RFC 8446, section 7.5). A private one, as RFC 5705 wants it.
const EXPORTER: &[u8] = b"EXPERIMENTAL shardwise channel";
const BINDING_BYTES: usize = 32;

/// What binds a proof to one connection.
pub type Binding = [u8; BINDING_BYTES];

/// How a member's connections with TLS are made. `Debug` shows no key.
#[derive(Debug, Clone, Default)]
pub struct ChannelTls {
    server: Option<Arc<ServerConfig>>,
    client: Option<Arc<ClientConfig>>,
    /// The name in every member's certificate; `None` if each has the host of its member's address.
    name: Option<ServerName<'static>>,
    is_mutual: bool,
}

impl ChannelTls {
    /// As the settings say.
    pub(in crate::requests) fn of(certificates: &PeerCertificates) -> Result<Self, String> {
        let own = certificates.cert_file.as_deref().zip(certificates.key_file.as_deref());
        let mut tls =
            Self::from_files(certificates.ca_file.as_deref(), own).map_err(|error| format!("peer_{}: {error}", error.file.setting()))?;
        if let Some(name) = &certificates.name {
            tls.expect_name(name).map_err(|why| format!("peer_name is {name:?}: {why}"))?;
        }
        Ok(tls)
    }

    /// Reads the files, all in PEM: the CAs that sign members' certificates and nothing else's, and this member's own certificate chain and
    /// its key. With a CA other members' certificates are verified; with an own certificate this member listens with TLS; with both,
    /// callers must present a certificate too.
    ///
    /// # Errors
    ///
    /// The file that cannot be read or used.
    pub fn from_files(ca: Option<&Path>, own: Option<(&Path, &Path)>) -> Result<Self, TlsError> {
        let own = own
            .map(|(chain, key)| Ok::<_, TlsError>((chain, certificates(TlsFile::Certificate, chain)?, private_key(key)?)))
            .transpose()?;
        let roots = ca.map(|ca| roots(ca).map(|roots| (ca, Arc::new(roots)))).transpose()?;
        let mut tls = Self { is_mutual: own.is_some() && roots.is_some(), ..Self::default() };
        if let Some((ca, roots)) = &roots {
            let unusable = |error: rustls::Error| TlsError::unusable(TlsFile::Ca, ca, &error);
            let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().map_err(unusable)?;
            let builder = builder.with_root_certificates(Arc::clone(roots));
            let mut client = match &own {
                Some((file, chain, key)) => builder
                    .with_client_auth_cert(chain.clone(), key.clone_key())
                    .map_err(|error| TlsError::unusable(TlsFile::Certificate, file, &error))?,
                None => builder.with_no_client_auth(),
            };
            client.alpn_protocols = vec![ALPN.to_vec()];
            tls.client = Some(Arc::new(client));
        }
        if let Some((file, chain, key)) = own {
            let unusable = |error: &dyn std::fmt::Display| TlsError::unusable(TlsFile::Certificate, file, error);
            let callers = roots.map(|(_, roots)| client_verifier(roots, ClientAuth::Required)).transpose();
            let callers = callers.map_err(|error| unusable(&error))?;
            tls.server = Some(Arc::new(server_config(chain, key, callers, &[ALPN]).map_err(|error| unusable(&error))?));
        }
        Ok(tls)
    }

    /// Expects this name in every member's certificate, instead of the host of its address.
    ///
    /// # Errors
    ///
    /// It is no host name.
    pub fn expect_name(&mut self, name: &str) -> Result<(), &'static str> {
        self.name =
            Some(ServerName::try_from(name.to_owned()).map_err(|_| "a certificate has no such name; write one such as members.example")?);
        Ok(())
    }

    /// Whether this member listens with TLS.
    pub const fn listens(&self) -> bool {
        self.server.is_some()
    }

    /// Whether callers must present a certificate.
    pub const fn is_mutual(&self) -> bool {
        self.is_mutual
    }

    /// Why a member with TLS may not be called; `None` if it may.
    pub(super) fn barred(&self, has_secret: bool) -> Option<String> {
        if self.client.is_none() {
            return Some("it has TLS, and nothing says whose certificates are right: set peer_ca_file (a sidecar: --peer-ca-file)".into());
        }
        let is_unproven = self.name.is_some() && !has_secret;
        is_unproven.then(|| {
            "all members share a name in their certificates, and without a peer token none proves which it is: set one for all".into()
        })
    }
}

/// The binding of a connection whose handshake is done.
///
/// # Errors
///
/// The handshake is not done.
pub fn binding<Data>(connection: &ConnectionCommon<Data>) -> Result<Binding, rustls::Error> {
    connection.export_keying_material([0; BINDING_BYTES], EXPORTER, None)
}

/// A caller's side of TLS to that host.
pub(super) async fn secured<S: ByteStream>(
    tls: &ChannelTls,
    host: &str,
    stream: S,
    within: Duration,
) -> Result<(tokio_rustls::client::TlsStream<S>, Binding), Unreached> {
    let barred = |why: String| Unreached::Barred(format!("{}: {why}", Escaped(host)));
    let client = tls.client.as_ref().ok_or_else(|| barred("nothing says whose certificates are right".into()))?;
    let name = match &tls.name {
        Some(name) => name.clone(),
        // An IPv6 address stands in brackets in front of a port.
        None => ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(|error| barred(error.to_string()))?,
    };
    let stream = match timeout(within, TlsConnector::from(Arc::clone(client)).connect(name, stream)).await {
        Ok(Ok(stream)) => stream,
        // The certificate is invalid or belongs to another host.
        Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(Unreached::Unproven(format!("{}: {error}; nothing was sent", Escaped(host))));
        }
        Ok(Err(error)) => return Err(Unreached::Unsent(format!("{}: {error}", Escaped(host)))),
        Err(_) => return Err(Unreached::Unsent(format!("{}: no TLS within {within:?}", Escaped(host)))),
    };
    let bound = binding(stream.get_ref().1).map_err(|error| barred(error.to_string()))?;
    Ok((stream, bound))
}

/// A recipient's side. A caller without a certificate is refused here, if one is required.
pub(super) async fn accepted<S: ByteStream>(tls: &ChannelTls, stream: S) -> io::Result<(tokio_rustls::server::TlsStream<S>, Binding)> {
    let server = tls.server.as_ref().ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
    let stream = TlsAcceptor::from(Arc::clone(server)).accept(stream).await?;
    let bound = binding(stream.get_ref().1).map_err(io::Error::other)?;
    Ok((stream, bound))
}

/// Why a connection with TLS ended before the member had proven itself. Our side finishes the handshake of TLS 1.3 before the other side's
/// refusal arrives.
pub(super) fn broken(address: SocketAddr, error: &io::Error) -> Unreached {
    let alert = match error.get_ref().and_then(|error| error.downcast_ref()) {
        Some(rustls::Error::AlertReceived(alert)) if is_of_certificate(*alert) => *alert,
        _ => return Unreached::Unsent(format!("{address}: {error}")),
    };
    Unreached::Barred(format!(
        "{address} does not take the certificate that it is shown ({alert:?}): set peer_cert_file and peer_key_file (a sidecar: --peer-cert and --peer-key), signed by whom it trusts"
    ))
}

/// Whether the alert is about our certificate (RFC 8446, section 6.2).
const fn is_of_certificate(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateRequired
    )
}
