//! HTTP webhooks: one `POST` for each event; an aggregate's next event follows the answer to the one before.

mod address;
mod config;
mod signature;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use reqwest::{Client, Response, StatusCode, Url};
use secrecy::ExposeSecret as _;

pub use self::config::HttpConfig;
use super::message::{BrokerMessage, header_value};
use super::{Acceptance, Refusal, Sink, SinkLimits, side_by_side, tls};
use crate::{Delivery, Error, ErrorKind, Result, one_line};

const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const TIMEOUT_MAX: Duration = Duration::from_secs(20);
/// The most bytes of an answer that are read; the connection of a longer answer is not reused.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// The most characters of an answer that appear in a message.
const WORDS_MAX: usize = 200;

/// Posts events to a webhook, as `CloudEvents`, signed if there is a secret.
///
/// A 2xx answer accepts the event. Redirects are not followed. A 4xx answer refuses it permanently, except for 401, 403, 408, 425 and 429.
/// `Retry-After` is respected, up to five minutes.
#[derive(Debug)]
pub struct HttpSink {
    config: HttpConfig,
    name: String,
    client: Client,
}

impl HttpSink {
    /// Creates a sink that connects when it is used.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`]: the address is not public and that is not allowed, or a TLS file cannot be used.
    pub fn new(config: HttpConfig) -> Result<Self> {
        let config = config.validated()?;
        if config.shows_token() {
            tracing::warn!(
                origin = config.origin,
                "the HTTP sink sends its token without TLS, so anyone on the network can read it: write https://"
            );
        }
        let mut builder = Client::builder()
            .tls_backend_preconfigured(tls::client_config(&config.tls, config.tls_needed)?)
            .connect_timeout(CONNECT_WITHIN)
            .timeout(config.timeout.min(TIMEOUT_MAX))
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .no_proxy();
        if !config.allow_private {
            builder = builder.dns_resolver(Arc::new(address::PublicOnly));
        }
        let client = builder.build().map_err(|error| Error::new(ErrorKind::Settings, format!("the HTTP sink cannot be made: {error}")))?;
        Ok(Self { name: format!("http {}", config.origin), config, client })
    }

    fn url(&self, event: &Delivery) -> Result<Url, Refusal> {
        let text = self.config.url.render(event);
        if config::has_dot_segments(&text) {
            return Err(Refusal::permanent(format!(
                "{}: this event's names make a part . or .. of the URL's path, which leads elsewhere",
                self.name
            )));
        }
        let url = Url::parse(&text).ok();
        let same = |url: &Url| url.as_str() == text || url.as_str().strip_suffix('/') == Some(&text) || has_default_port(url, &text);
        url.filter(same).ok_or_else(|| Refusal::permanent(format!("{}: no URL can be made of this event's names", self.name)))
    }

    async fn request(&self, event: &Delivery) -> Result<Response, Refusal> {
        let url = self.url(event)?;
        let message = BrokerMessage::new(event, &self.config.source, self.config.mode);
        let id = header_value(&event.message_id());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut request = self.client.post(url).header("idempotency-key", &id).header("webhook-id", &id).header("webhook-timestamp", now);
        if let Some(signer) = &self.config.signer {
            request = request.header("webhook-signature", signer.sign(&id, now, &message.body));
        }
        if let Some(token) = &self.config.token {
            request = request.bearer_auth(token.expose_secret());
        }
        for (name, value) in &message.attributes {
            request = request.header(format!("ce-{name}"), header_value(value));
        }
        for (name, value) in &message.trace {
            request = request.header(*name, value);
        }
        if let Some(content_type) = &message.content_type {
            request = request.header("content-type", content_type);
        }
        request.body(message.body).send().await.map_err(|error| {
            let why = if error.is_timeout() { "has not answered in time".to_owned() } else { innermost(&error) };
            Refusal::retryable(format!("{}: {why}", self.name))
        })
    }

    async fn send(&self, event: &Delivery) -> Result<(), Refusal> {
        let answer = self.request(event).await?;
        if answer.status().is_success() {
            // Read the answer, so that the connection can be reused.
            beginning(answer).await;
            return Ok(());
        }
        Err(self.refusal(answer).await)
    }

    async fn refusal(&self, answer: Response) -> Refusal {
        let status = answer.status();
        let retry_after = answer.headers().get("retry-after").and_then(|value| value.to_str().ok()).and_then(delay_in);
        let body = String::from_utf8_lossy(&beginning(answer).await).into_owned();
        let advice = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ": correct the token or the signing secret",
            _ if status.is_redirection() => ": redirects are not followed, correct the address",
            _ => "",
        };
        let words = one_line(&body, WORDS_MAX);
        let said = if words.is_empty() { String::new() } else { format!(", and says: {words}") };
        let message = format!("{} answers {}{advice}{said}", self.name, status.as_u16());
        // Wrong credentials are not the event's fault.
        let later = [401, 403, 408, 425, 429].contains(&status.as_u16());
        Refusal { permanent: status.is_client_error() && !later, message, retry_after, blameless: false }
    }
}

/// The delay that a `Retry-After` asks for, in seconds or as a date; `None` if it is not understood.
fn delay_in(retry_after: &str) -> Option<Duration> {
    let retry_after = retry_after.trim();
    let until = |at: SystemTime| at.duration_since(SystemTime::now()).unwrap_or_default();
    let seconds = retry_after.parse().ok().map(Duration::from_secs);
    seconds.or_else(|| httpdate::parse_http_date(retry_after).ok().map(until))
}

/// Whether a text differs from its URL only by the default port.
fn has_default_port(url: &Url, text: &str) -> bool {
    let port = if url.scheme() == "https" { ":443" } else { ":80" };
    text.replacen(port, "", 1) == url.as_str()
}

/// The first bytes of an answer; the rest is left unread.
async fn beginning(mut answer: Response) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < ANSWER_BYTES_MAX
        && let Ok(Some(part)) = answer.chunk().await
    {
        bytes.extend_from_slice(&part[..part.len().min(ANSWER_BYTES_MAX - bytes.len())]);
    }
    bytes
}

/// The innermost cause, which says what happened; the outer errors repeat the URL.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    one_line(&error.to_string(), WORDS_MAX)
}

#[async_trait]
impl Sink for HttpSink {
    fn name(&self) -> &str {
        &self.name
    }

    /// One aggregate for each call, so that a slow one delays no other.
    fn limits(&self) -> SinkLimits {
        SinkLimits { batch_events: 100, concurrency: 64, mixed: false, ..SinkLimits::default() }
    }

    fn destination(&self, event: &Delivery) -> Option<String> {
        self.config.url.destination(event)
    }

    async fn deliver(&self, batch: Arc<[Delivery]>) -> Acceptance {
        side_by_side::deliver(&batch, |event| self.send(event), std::future::pending()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_dates_are_read() {
        assert_eq!(delay_in("120"), Some(Duration::from_mins(2)));
        assert_eq!(delay_in("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO), "what is past is now");
        assert!(delay_in("Wed, 29 Feb 2096 12:00:00 GMT") > Some(Duration::from_hours(24)));
        for odd in ["", "soon", "-1", "Sun, 06 Non 1994 08:49:37 GMT", "Sun, 99 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994"] {
            assert_eq!(delay_in(odd), None, "{odd}");
        }
    }
}
