//! Carries exports to the collector: HTTP by the client that is there for Consul and webhooks anyway, on a thread of its own.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use reqwest::Client;
use reqwest::header::RETRY_AFTER;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;
use tokio::runtime::Handle;

use super::export_config::TraceExportConfig;

/// How much of an answer is read, so that its connection can be used again.
const ANSWER_BYTES_MAX: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Carrier {
    client: Client,
    runtime: Handle,
}

impl Carrier {
    /// # Errors
    ///
    /// If TLS cannot be used as it is asked for.
    pub(super) fn new(asked: &TraceExportConfig, runtime: Handle) -> Result<Self, String> {
        let client = Client::builder()
            .tls_backend_preconfigured(tls(asked)?)
            .timeout(asked.within)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .no_proxy()
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { client, runtime })
    }
}

#[async_trait]
impl HttpClient for Carrier {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        // The thread that waits here is none of the runtime's.
        self.runtime.spawn(sent(self.client.clone(), request)).await?
    }
}

async fn sent(client: Client, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let (head, body) = request.into_parts();
    let mut answer = client.request(head.method, head.uri.to_string()).headers(head.headers).body(body).send().await?;
    let mut told = Response::builder().status(answer.status());
    if let Some(later) = answer.headers().get(RETRY_AFTER) {
        told = told.header(RETRY_AFTER, later);
    }
    let mut read = 0;
    while read < ANSWER_BYTES_MAX
        && let Some(piece) = answer.chunk().await?
    {
        read += piece.len();
    }
    // What it says of single spans nobody could act upon.
    Ok(told.body(Bytes::new())?)
}

/// rustls with ring, made here and handed over, so that the process-wide provider is neither needed nor touched. Without TLS it trusts nobody, since reqwest
/// wants one in any case.
fn tls(asked: &TraceExportConfig) -> Result<ClientConfig, String> {
    let unusable = |error: rustls::Error| format!("TLS to the collector cannot be used: {error}");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(unusable)?;
    let builder = match &asked.ca {
        Some(path) => builder.with_root_certificates(roots(path)?),
        None if asked.endpoint.scheme() == "https" => builder.with_platform_verifier().map_err(unusable)?,
        None => builder.with_root_certificates(RootCertStore::empty()),
    };
    Ok(builder.with_no_client_auth())
}

fn roots(path: &Path) -> Result<RootCertStore, String> {
    let unusable = |why: &dyn std::fmt::Display| format!("{}: no certificates in PEM: {why}", path.display());
    let bytes = std::fs::read(path).map_err(|error| unusable(&error))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&bytes) {
        // The parser's own words are left out: they quote the line that it failed at, and that may be a private key.
        let certificate = certificate.map_err(|_| unusable(&"it is damaged; it must be a PEM file, with its line breaks"))?;
        roots.add(certificate).map_err(|error| unusable(&error))?;
    }
    if roots.is_empty() { Err(unusable(&"it is empty")) } else { Ok(roots) }
}
