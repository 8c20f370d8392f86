//! One request, one bounded answer, and the cause if there is none. Knows HTTP and TLS; knows nothing of Consul's paths.

use std::error::Error as StdError;
use std::io;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName};
use reqwest::{Method, Response};
use shardwise_discovery::{Clock, one_line};
use tokio::sync::Semaphore;

use crate::ConsulConfig;
use crate::config::AgentEndpoint;
use crate::error::{Failure, Result};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an answer may take, beyond what the request asks to wait.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How many requests of one backend may be under way, blocking queries not counted. Consul takes 200 connections from one address.
const REQUESTS_AT_ONCE: usize = 16;
const IDLE_CONNECTIONS: usize = 2;
const IDLE_FOR: Duration = Duration::from_secs(30);
/// The largest answer that is read: more than a group of the most members has.
const ANSWER_BYTES_MAX: usize = 64 << 20;
const REFUSAL_BYTES_MAX: usize = 4 << 10;
/// How much of a transaction's refusal, which names each operation that was in the way with its key.
const CONFLICT_BYTES_MAX: usize = 256 << 10;

pub(crate) struct Client {
    http: reqwest::Client,
    turns: Semaphore,
    pub(crate) endpoint: AgentEndpoint,
    pub(crate) clock: Clock,
    pub(crate) has_token: bool,
    /// Whether the servers have said that this token sees all nodes.
    pub(crate) sees_nodes: AtomicBool,
    pub(crate) datacenter: Option<String>,
}

/// The answer, with any status.
pub(crate) struct ConsulResponse {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl ConsulResponse {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn said(&self) -> String {
        one_line(&String::from_utf8_lossy(&self.body))
    }
}

impl Client {
    pub(crate) fn new(config: &ConsulConfig, clock: Clock) -> Result<Self> {
        let endpoint = config.endpoint()?;
        let token = config.token_header()?;
        let has_token = token.is_some();
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            headers.insert(HeaderName::from_static("x-consul-token"), token);
        }
        let mut builder = reqwest::Client::builder()
            .tls_backend_preconfigured(config.tls(&endpoint)?)
            .default_headers(headers)
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_FOR)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .no_proxy()
            .http1_only();
        #[cfg(unix)]
        if let Some(socket) = &endpoint.socket {
            builder = builder.unix_socket(socket.as_path());
        }
        let unusable = |error: reqwest::Error| Failure::BadSetting {
            key: "address",
            why: format!("cannot be used ({})", one_line(&error.to_string())),
        };
        let http = builder.build().map_err(unusable)?;
        let (turns, datacenter) = (Semaphore::new(REQUESTS_AT_ONCE), config.datacenter()?);
        Ok(Self { http, turns, endpoint, clock, has_token, sees_nodes: AtomicBool::new(false), datacenter })
    }

    /// A request that the server may delay for up to `wait`, on a separate connection, or an ordinary one. `what` names it in errors.
    pub(crate) async fn get(&self, what: &'static str, target: &str, wait: Option<Duration>) -> Result<ConsulResponse> {
        match wait {
            // Consul adds up to a sixteenth.
            Some(wait) => self.send(what, Method::GET, target, None, wait + wait / 16 + ANSWER_TIMEOUT).await,
            None => self.call(what, Method::GET, target, None).await,
        }
    }

    pub(crate) async fn call(&self, what: &'static str, method: Method, target: &str, body: Option<String>) -> Result<ConsulResponse> {
        // Never closed.
        let Ok(_turn) = self.turns.acquire().await else { return Err(Failure::ShuttingDown) };
        self.send(what, method, target, body, ANSWER_TIMEOUT).await
    }

    async fn send(
        &self,
        what: &'static str,
        method: Method,
        target: &str,
        body: Option<String>,
        after: Duration,
    ) -> Result<ConsulResponse> {
        let mut request = self.http.request(method, format!("{}{target}", self.endpoint.base));
        if let Some(body) = body {
            request = request.header(reqwest::header::CONTENT_TYPE, "application/json").body(body);
        }
        let answer = async { read(request.send().await?).await };
        match tokio::time::timeout(after, answer).await {
            Ok(Ok(Some(answer))) => Ok(answer),
            Ok(Ok(None)) => Err(Failure::AnswerTooLarge { max: ANSWER_BYTES_MAX }),
            Ok(Err(error)) => Err(self.unanswered(what, after, &error)),
            Err(_) => Err(self.late(what, after)),
        }
    }

    pub(crate) fn late(&self, what: &'static str, after: Duration) -> Failure {
        Failure::TimedOut { at: self.endpoint.to_string(), what, after }
    }

    /// The cause of a missing answer.
    fn unanswered(&self, what: &'static str, after: Duration, error: &reqwest::Error) -> Failure {
        let at = self.endpoint.to_string();
        if let Some(error) = cause::<rustls::Error>(error) {
            return of_tls(at, error);
        }
        if error.is_timeout() {
            return if error.is_connect() {
                Failure::TimedOut { at, what: "connecting", after: CONNECT_TIMEOUT }
            } else {
                self.late(what, after)
            };
        }
        match cause::<io::Error>(error).map(io::Error::kind) {
            Some(io::ErrorKind::PermissionDenied) if self.endpoint.socket.is_some() => Failure::SocketDenied { at },
            Some(io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof) => {
                let why = "the connection was closed; Consul allows 200 connections of one address, see limits.http_max_conns_per_client";
                Failure::Unreachable { at, why: why.to_owned() }
            }
            _ if error.is_builder() || error.is_request() && is_parse(error) => Failure::NotConsul { at, why: innermost(error) },
            _ => Failure::Unreachable { at, why: innermost(error) },
        }
    }
}

/// Reads the answer; `None` if it is too large. A refusal is cut short instead.
async fn read(mut response: Response) -> reqwest::Result<Option<ConsulResponse>> {
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let max = match status {
        200 => ANSWER_BYTES_MAX,
        409 => CONFLICT_BYTES_MAX,
        _ => REFUSAL_BYTES_MAX,
    };
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > max {
            if status == 200 {
                return Ok(None);
            }
            body.extend_from_slice(&chunk[..max - body.len()]);
            break;
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(ConsulResponse { status, headers, body }))
}

fn of_tls(at: String, error: &rustls::Error) -> Failure {
    use rustls::{AlertDescription as Alert, CertificateError as Bad, Error as Tls};
    let ca = "set discovery.consul.ca_file to the CA that signed it";
    match error {
        Tls::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. }) => {
            Failure::Certificate { at, why: "it has expired; renew it in the agent".to_owned() }
        }
        Tls::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => {
            let why = "it is for another name; use a name that is in it, or have one made for this name";
            Failure::Certificate { at, why: why.to_owned() }
        }
        Tls::InvalidCertificate(Bad::UnknownIssuer) => Failure::Certificate { at, why: format!("its issuer is not known; {ca}") },
        Tls::InvalidCertificate(other) => Failure::Certificate { at, why: format!("{}; {ca}", one_line(&other.to_string())) },
        Tls::AlertReceived(
            Alert::CertificateRequired | Alert::BadCertificate | Alert::UnknownCA | Alert::CertificateExpired | Alert::CertificateUnknown,
        ) => Failure::ClientCertificate { at, why: one_line(&error.to_string()) },
        Tls::InvalidMessage(_) => Failure::NotTls { at },
        other => Failure::Certificate { at, why: one_line(&other.to_string()) },
    }
}

/// The first error of that type among an error and its causes. Errors of TLS come wrapped into errors of I/O.
fn cause<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        let inside = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref).map(|inside| inside as &(dyn StdError + 'static));
        next = inside.or_else(|| error.source());
    }
    None
}

fn innermost(error: &reqwest::Error) -> String {
    let mut last: &dyn StdError = error;
    while let Some(source) = last.source() {
        last = source;
    }
    one_line(&last.to_string())
}

fn is_parse(error: &reqwest::Error) -> bool {
    innermost(error).contains("invalid HTTP")
}
