//! One connection to NATS at a time. The client's automatic reconnection is not used: it would send messages that had waited on the broken
//! connection, long after the publisher gave them up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::jetstream::context::{ContextBuilder, GetStreamError, GetStreamErrorKind};
use async_nats::jetstream::stream::{Config, Stream};
use async_nats::jetstream::{Context, ErrorCode};
use async_nats::{Auth, ConnectError, ConnectErrorKind, ConnectOptions};
use secrecy::ExposeSecret as _;
use shardwise::discovery::nats::{UserCredentials, connect_once};
use tokio::sync::watch;

use super::super::connection::{ANSWER_WITHIN, words};
use super::super::tls;
use super::NatsConfig;
use super::user::{ConnectionWatcher, is_about_user, not_accepted};
use crate::{Error, ErrorKind, Result};

/// The most messages that wait for an acknowledgement.
const IN_FLIGHT_MAX: usize = 4_096;
/// In a stream created by this sink: how long duplicates are recognized.
const DUPLICATE_WINDOW: Duration = Duration::from_mins(10);

/// A connection that works, or has worked.
#[derive(Debug)]
pub(super) struct NatsConnection {
    pub(super) context: Context,
    pub(super) stream: Stream,
    /// Why it is of no use any more.
    pub(super) broken: watch::Receiver<Option<String>>,
    /// The most bytes of a message in the stream, if the stream has a limit.
    pub(super) message_bytes_max: Option<usize>,
}

impl NatsConnection {
    pub(super) async fn open(config: &NatsConfig) -> Result<Self> {
        let (lost, broken) = watch::channel(None);
        let established = Arc::new(AtomicBool::new(false));
        let options = options(config, lost, Arc::clone(&established))?;
        let client = match tokio::time::timeout(2 * ANSWER_WITHIN, options.connect(config.servers.clone())).await {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => return Err(refused(config, &error)),
            Err(_) => return Err(unavailable(&config.place, "does not answer")),
        };
        established.store(true, Ordering::Relaxed);
        let builder = ContextBuilder::new().timeout(ANSWER_WITHIN).ack_timeout(ANSWER_WITHIN);
        let context = builder.max_ack_inflight(IN_FLIGHT_MAX).backpressure_on_inflight(true).build(client);
        let stream = stream(config, &context).await?;
        let settings = &stream.cached_info().config;
        if settings.no_ack {
            let text = format!("the stream {} of NATS acknowledges nothing: set its no_ack to false", config.stream);
            return Err(Error::new(ErrorKind::Denied, text));
        }
        let message_bytes_max = usize::try_from(settings.max_message_size).ok().filter(|bytes| *bytes > 0);
        Ok(Self { context, stream, broken, message_bytes_max })
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.borrow().is_some()
    }
}

/// The options for one connection: once it is `established`, the client does not reconnect.
fn options(config: &NatsConfig, lost: watch::Sender<Option<String>>, established: Arc<AtomicBool>) -> Result<ConnectOptions> {
    let mut auth = Auth::new();
    match (&config.user, config.password.as_ref().map(|password| password.expose_secret().to_owned())) {
        (Some(user), password) => (auth.username, auth.password) = (Some(user.clone()), password),
        (None, token) => auth.token = token,
    }
    let credentials = config.creds_file.as_ref().map(|path| {
        let wrong = |why| {
            let text = format!("the credentials file {} of the NATS sink {why}: correct sink_creds_file", path.display());
            Error::new(ErrorKind::Settings, text)
        };
        UserCredentials::read(path).map_err(wrong)
    });
    let watcher = ConnectionWatcher::new(lost, config);
    let options = connect_once(auth, credentials.transpose()?, established).event_callback(move |event| {
        watcher.note(&event);
        std::future::ready(())
    });
    Ok(options
        .name("shardwise outbox")
        .connection_timeout(ANSWER_WITHIN)
        .request_timeout(Some(ANSWER_WITHIN))
        .max_reconnects(config.servers.len())
        .ignore_discovered_servers()
        .require_tls(config.tls_needed)
        .tls_client_config(tls::client_config(&config.tls, config.tls_needed)?))
}

/// The stream; created if it is missing and creation was requested.
async fn stream(config: &NatsConfig, context: &Context) -> Result<Stream> {
    let name = &config.stream;
    match context.get_stream(name).await {
        Ok(stream) => Ok(stream),
        Err(error) if code(&error) == Some(ErrorCode::STREAM_NOT_FOUND) => create(config, context).await,
        Err(error) if matches!(code(&error), Some(ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT)) => {
            let text = format!("NATS at {} has no JetStream for this user: turn it on", config.place);
            Err(Error::new(ErrorKind::Denied, text))
        }
        Err(error) => {
            let what = format!("does not describe the stream {name}; this user needs the right to that: {}", words(&error));
            Err(unavailable(&config.place, &what))
        }
    }
}

fn code(error: &GetStreamError) -> Option<ErrorCode> {
    if let GetStreamErrorKind::JetStream(error) = error.kind() { Some(error.error_code()) } else { None }
}

async fn create(config: &NatsConfig, context: &Context) -> Result<Stream> {
    let (name, pattern) = (&config.stream, config.subject.pattern('.'));
    if !config.create {
        let text = format!("NATS at {} has no stream {name}: make it, with the subjects {pattern}", config.place);
        return Err(Error::new(ErrorKind::Missing, text));
    }
    let settings =
        Config { name: name.clone(), subjects: vec![pattern], duplicate_window: DUPLICATE_WINDOW, allow_direct: true, ..Config::default() };
    context.get_or_create_stream(settings).await.map_err(|error| {
        let text = format!("NATS at {} does not make the stream {name}: {}", config.place, words(&error));
        Error::new(ErrorKind::Denied, text)
    })
}

fn refused(config: &NatsConfig, error: &ConnectError) -> Error {
    let place = &config.place;
    match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => not_accepted(config),
        ConnectErrorKind::Io if is_about_user(&error.to_string()) => not_accepted(config),
        ConnectErrorKind::Tls => Error::new(ErrorKind::Denied, format!("TLS with NATS at {place} fails: {}", words(error))),
        _ => unavailable(place, &format!("cannot be reached: {}", words(error))),
    }
}

fn unavailable(place: &str, what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("NATS at {place} {what}"))
}
