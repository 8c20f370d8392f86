//! Sends exports to the collector over HTTP, with the client that Consul and webhooks use too, on a separate thread.

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use reqwest::Client;
use reqwest::header::RETRY_AFTER;
use shardwise::discovery::tls::{SystemTrust, TlsFiles};
use tokio::runtime::Handle;

use super::export_config::TraceExportConfig;

/// The most bytes of an answer that are read, so that its connection can be reused.
const ANSWER_BYTES_MAX: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Carrier {
    client: Client,
    runtime: Handle,
}

impl Carrier {
    /// # Errors
    ///
    /// If the TLS options cannot be used.
    pub(super) fn new(asked: &TraceExportConfig, runtime: Handle) -> Result<Self, String> {
        // Without TLS it trusts no CA; reqwest requires a configuration in any case.
        let trust = if asked.endpoint.scheme() == "https" { SystemTrust::Required } else { SystemTrust::Unused };
        let tls = TlsFiles { ca: asked.ca.clone(), identity: None }.client_config(trust);
        let client = Client::builder()
            .tls_backend_preconfigured(tls.map_err(|error| format!("TLS to the collector: {error}"))?)
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
        // The waiting thread does not belong to the runtime.
        self.runtime.spawn(sent(self.client.clone(), request)).await?
    }
}

async fn sent(client: Client, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let (head, body) = request.into_parts();
    let mut answer = client.request(head.method, head.uri.to_string()).headers(head.headers).body(body).send().await?;
    let mut response = Response::builder().status(answer.status());
    if let Some(later) = answer.headers().get(RETRY_AFTER) {
        response = response.header(RETRY_AFTER, later);
    }
    let mut read = 0;
    while read < ANSWER_BYTES_MAX
        && let Some(piece) = answer.chunk().await?
    {
        read += piece.len();
    }
    // The collector's remarks on single spans are dropped, because no action follows from them.
    Ok(response.body(Bytes::new())?)
}
