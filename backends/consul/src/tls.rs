//! TLS to the agent: rustls with ring, made here and handed over, so that the process-wide provider is neither needed nor touched.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;

use crate::ConsulConfig;
use crate::config::AgentEndpoint;
use crate::error::{Failure, Result};

/// What the client hands to reqwest. Without TLS it trusts nobody, since reqwest wants one in any case.
pub(crate) fn client_config(config: &ConsulConfig, endpoint: &AgentEndpoint) -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let unusable = |error: rustls::Error| Failure::BadSetting { key: "ca_file", why: format!("cannot be used ({error})") };
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(unusable)?;
    let builder = match &config.ca_file {
        Some(path) => builder.with_root_certificates(roots(path)?),
        None if endpoint.tls => builder.with_platform_verifier().map_err(unusable)?,
        None => builder.with_root_certificates(RootCertStore::empty()),
    };
    let mut client = match (&config.cert_file, &config.key_file) {
        (None, None) => builder.with_no_client_auth(),
        (Some(cert), Some(key)) => {
            let pair = builder.with_client_auth_cert(certificates("cert_file", cert)?, private_key(key)?);
            pair.map_err(|error| Failure::BadSetting {
                key: "cert_file",
                why: format!("and discovery.consul.key_file are not a pair that can be used ({error})"),
            })?
        }
        (Some(_), None) => return Err(lonely("cert_file", "key_file")),
        (None, Some(_)) => return Err(lonely("key_file", "cert_file")),
    };
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(client)
}

fn lonely(key: &'static str, other: &str) -> Failure {
    Failure::BadSetting { key, why: format!("is set without discovery.consul.{other}; set both or none") }
}

fn roots(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("ca_file", path)? {
        roots.add(certificate).map_err(|error| damaged("ca_file", path, &error.to_string()))?;
    }
    Ok(roots)
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let text = read(key, path)?;
    let found: Vec<_> =
        CertificateDer::pem_slice_iter(&text).collect::<std::result::Result<_, _>>().map_err(|_| damaged(key, path, "damaged PEM"))?;
    if found.is_empty() { Err(damaged(key, path, "no certificate in it")) } else { Ok(found) }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    // What is wrong with it is not told in detail: it is a key.
    PrivateKeyDer::from_pem_slice(&read("key_file", path)?).map_err(|_| damaged("key_file", path, "no private key in it"))
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|source| Failure::Unreadable { key, path: path.to_owned(), source })
}

fn damaged(key: &'static str, path: &Path, why: &str) -> Failure {
    // Quoted, so that odd characters cannot break the line.
    let path = path.to_string_lossy();
    Failure::BadSetting { key, why: format!("is {path:?}, which cannot be used ({why}); it must be a PEM file") }
}
