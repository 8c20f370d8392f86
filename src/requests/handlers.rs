//! One service's handlers, and where requests to them arrive.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use shardwise_core::{GroupName, Member};
use shardwise_discovery::METADATA_BYTES_MAX;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
#[cfg(feature = "requests")]
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::status::{OWN_STATUS, STATUS, is_reserved, status};
use super::{ADDRESS_KEY, ANSWER_WITHIN, Answer, Request, is_path, path_to};
use crate::life::Life;
use crate::settings::PeersSettings;
use crate::shared::Shared;
use crate::{Error, ErrorKind, Result};

/// The most handlers of a worker.
const HANDLERS_MAX: usize = 256;
/// The most requests that a worker answers at a time.
const AT_ONCE_MAX: usize = 64;
/// How many paths a refusal names.
const NAMED: usize = 20;

pub(crate) type Handler = Arc<dyn Fn(Request) -> BoxFuture<'static, Answer> + Send + Sync>;

/// What belongs to one service. Whoever holds it keeps no service alive.
pub(crate) struct RequestHandlers {
    group: GroupName,
    life: Life,
    pub(crate) settings: PeersSettings,
    /// The host under which others reach this worker.
    host: Option<String>,
    metadata_bytes: usize,
    handlers: Mutex<BTreeMap<String, Handler>>,
    at_once: Semaphore,
    address: watch::Sender<Option<String>>,
    #[cfg(feature = "requests")]
    pub(super) listening: tokio::sync::Mutex<Option<SocketAddr>>,
    /// Ends the listener: with the worker, or with the last who holds this.
    #[cfg(feature = "requests")]
    pub(super) closed: CancellationToken,
    #[cfg(feature = "requests")]
    _close: DropGuard,
}

impl RequestHandlers {
    /// `gone` ends its listener before its time.
    pub(crate) fn new(
        group: &GroupName,
        member: &Member,
        life: Life,
        settings: PeersSettings,
        gone: &tokio_util::sync::CancellationToken,
    ) -> Self {
        #[cfg(feature = "requests")]
        let closed = gone.child_token();
        #[cfg(not(feature = "requests"))]
        let _ = gone;
        Self {
            group: group.clone(),
            life,
            settings,
            host: member.address.as_ref().map(|address| address.host.clone()),
            metadata_bytes: member.metadata.iter().map(|(name, text)| name.len() + text.len()).sum(),
            handlers: Mutex::default(),
            at_once: Semaphore::new(AT_ONCE_MAX),
            address: watch::Sender::new(None),
            #[cfg(feature = "requests")]
            listening: tokio::sync::Mutex::default(),
            #[cfg(feature = "requests")]
            _close: closed.clone().drop_guard(),
            #[cfg(feature = "requests")]
            closed,
        }
    }

    /// What the path of every request to this member begins with.
    pub(crate) fn path(&self) -> String {
        path_to(&self.group, self.life.instance_id(), self.life.incarnation())
    }

    fn handlers(&self) -> MutexGuard<'_, BTreeMap<String, Handler>> {
        // The table stays whole: each change is one insertion.
        self.handlers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a handler there, in the place of an earlier one.
    pub(crate) fn register(&self, path: &str, handler: Handler) -> Result<()> {
        let refused = |why: String| Err(Error::new(ErrorKind::Settings, format!("a handler at {path:?}: {why}")));
        if !is_path(path) {
            return refused("write parts of letters, digits and -._~ with single slashes between them, such as \"cache/size\"".into());
        }
        if is_reserved(path) {
            return refused("what begins with \"shardwise\" is answered by shardwise itself".into());
        }
        let mut handlers = self.handlers();
        if handlers.len() >= HANDLERS_MAX && !handlers.contains_key(path) {
            drop(handlers);
            return refused(format!("there are {HANDLERS_MAX} already, and that is the most"));
        }
        handlers.insert(path.to_owned(), handler);
        Ok(())
    }

    /// Whether somebody answers at that path.
    pub(crate) fn handles(&self, path: &str) -> bool {
        path == STATUS || path == OWN_STATUS || self.handlers().contains_key(path)
    }

    fn unknown(&self, path: &str) -> Answer {
        let handlers = self.handlers();
        let known: Vec<_> = std::iter::once(STATUS).chain(handlers.keys().map(String::as_str)).take(NAMED).collect();
        let path: String = path.chars().take(64).collect();
        let detail = format!("this worker answers nothing at {path:?}; it answers at: {}", known.join(", "));
        Answer::problem(404, "not-found", "There is no such thing", &detail)
    }

    /// Where requests arrive, once they do.
    pub(crate) fn address(&self) -> watch::Receiver<Option<String>> {
        self.address.subscribe()
    }

    /// Shows the others where requests arrive.
    pub(crate) fn arrive_at(&self, bound: SocketAddr, tls: bool, others: usize) -> Result<String> {
        // A certificate is for a name, and whoever listens everywhere is nowhere in particular.
        let named = self.host.as_ref().filter(|_| tls || bound.ip().is_unspecified());
        let unknown = || {
            let message = format!(
                "requests to this worker arrive at {bound}, and others cannot know where that is: set instance.address and instance.port"
            );
            Error::new(ErrorKind::Settings, message)
        };
        let host = match named {
            Some(host) if host.contains(':') => format!("[{host}]:{}", bound.port()),
            Some(host) => format!("{host}:{}", bound.port()),
            None if bound.ip().is_unspecified() => return Err(unknown()),
            None => bound.to_string(),
        };
        let address = format!("{}://{host}", if tls { "https" } else { "http" });
        let bytes = self.metadata_bytes + ADDRESS_KEY.len() + address.len() + others;
        if bytes > METADATA_BYTES_MAX {
            let message = format!("with the address for requests the metadata has {bytes} bytes; at most {METADATA_BYTES_MAX} are allowed");
            return Err(Error::new(ErrorKind::Settings, message));
        }
        self.address.send_replace(Some(address.clone()));
        Ok(address)
    }

    /// What the handler there answers: in time, whatever it does, and not more of them at a time than allowed.
    pub(crate) async fn answer(shared: &Shared, path: &str, request: Request) -> Answer {
        let request_handlers = &shared.request_handlers;
        let handler = request_handlers.handlers().get(path).cloned();
        let handler = match handler {
            Some(handler) => handler,
            None if path == STATUS || path == OWN_STATUS => return Answer::from(status(shared)),
            None => return request_handlers.unknown(path),
        };
        let Ok(_turn) = request_handlers.at_once.try_acquire() else {
            let detail = format!("this worker answers {AT_ONCE_MAX} requests at a time already; try again");
            return Answer::problem(429, "too-many", "Too much at once", &detail);
        };
        // A task of its own, so that a panic ends nobody else; it ends with whoever waits for it.
        let answering = AbortOnDropHandle::new(tokio::spawn(async move { handler(request).await }.in_current_span()));
        match timeout(ANSWER_WITHIN, answering).await {
            Ok(Ok(answer)) => answer.checked(),
            Ok(Err(_)) => {
                tracing::error!(policy = %shared.policy.name, path, "a handler of on_request panicked; the request was answered with 500");
                Answer::failed("it panicked; its own log says more")
            }
            Err(_) => {
                let detail = format!("it has not answered within {ANSWER_WITHIN:?} and was ended");
                Answer::problem(504, "too-late", "No answer in time", &detail)
            }
        }
    }
}
