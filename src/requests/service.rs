//! A service's side of requests: its handlers, and the address of requests to them.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::time::Instant;

use super::address::arrive_at;
#[cfg(feature = "requests")]
use super::caller::connections;
use super::handlers::{RequestHandlers, takes_all, takes_at_its_end};
use super::security::PeerSecurity;
#[cfg(feature = "requests")]
use super::transport::Transport;
use super::{Addressee, Answer, Request, Undelivered, WITHIN_DEFAULT};
use crate::error::{Result, inside_runtime};
use crate::service::ShardingService;
use crate::settings::PeersSettings;

impl ShardingService {
    /// Answers requests to this one instance at `path`, such as `cache/size`, from now on, replacing an earlier handler; `status` is
    /// answered without one. Requests to any instance need a handler of [`ShardingService::on_any`]. Paths that start with `shardwise` are
    /// reserved: `shardwise/status` is answered even if `status` has a handler.
    ///
    /// Requests come through a sidecar of the group (`…/instances/{instance_id}/{path}`), once this worker listens. A handler has as long
    /// as its caller waits, 10 s ([`crate::requests::WITHIN_DEFAULT`]) if the caller does not say. Bodies have at most 1 MiB in both
    /// directions, 64 requests are answered at once, and a panic is the answer 500. A handler that holds the service itself keeps it alive
    /// for ever.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Settings`] if `path` is invalid ([`crate::requests::is_path`]) or reserved, or with 256 handlers.
    pub fn on_request<W, A>(&self, path: &str, handler: impl Fn(Request) -> W + Send + Sync + 'static) -> Result<()>
    where
        W: Future<Output = A> + Send + 'static,
        A: Into<Answer>,
    {
        self.on(Addressee::Instance, path, handler)
    }

    /// Answers requests to any instance at `path` (`…/any/{path}`): each goes to one member. Everything else is as with
    /// [`ShardingService::on_request`], whose handlers never answer such a request. Only `status` is answered without a handler.
    ///
    /// Register both handlers until all members are upgraded: older sidecars do not say that a request is for any instance, so such a
    /// request goes to the handler of [`ShardingService::on_request`].
    ///
    /// # Errors
    ///
    /// As with [`ShardingService::on_request`]; handlers of both kinds count towards the 256.
    pub fn on_any<W, A>(&self, path: &str, handler: impl Fn(Request) -> W + Send + Sync + 'static) -> Result<()>
    where
        W: Future<Output = A> + Send + 'static,
        A: Into<Answer>,
    {
        self.on(Addressee::Any, path, handler)
    }

    fn on<W, A>(&self, to: Addressee, path: &str, handler: impl Fn(Request) -> W + Send + Sync + 'static) -> Result<()>
    where
        W: Future<Output = A> + Send + 'static,
        A: Into<Answer>,
    {
        let handler = Arc::new(handler);
        let work = move |request| {
            let handler = Arc::clone(&handler);
            async move { Ok::<Answer, Undelivered>(handler(request).await.into()) }
        };
        self.request_handlers().register(to, path, &takes_all(work))
    }

    /// For a server that stands before this worker, such as a sidecar: handles the requests for which this process has no handler. The
    /// first call counts.
    pub fn on_others<W>(&self, handler: impl Fn(Request) -> W + Send + Sync + 'static)
    where
        W: Future<Output = std::result::Result<Answer, Undelivered>> + Send + 'static,
    {
        self.request_handlers().fall_back(takes_at_its_end(handler));
    }

    /// Reports the load of this member by `now`, instead of by the number of requests that it handles at the moment. The first call counts.
    ///
    /// Callers that choose among several members prefer those with a lower load, divided by the members' weights; so all members should
    /// report the same kind of number. They learn it with each answer, and at most 1,048,575 counts. It is also the metric
    /// `shardwise_load`, for an autoscaler. `now` is called for each answer, so it should be quick; if it panics, the
    /// number of requests that it handles is reported.
    pub fn load(&self, now: impl Fn() -> u32 + Send + Sync + 'static) {
        self.request_handlers().report_load(Box::new(now));
        #[cfg(feature = "requests")]
        super::receiver::show(&self.membership().ownership_context);
    }

    /// Listens for requests at the setting `peer_listen`, and publishes the address. Does nothing if it listens already.
    ///
    /// Call it before [`ShardingService::register_self`], so that the first record has the address. Once the service has left it refuses
    /// connections until the service joins again, and it closes with the service. If `peer_token_file` is set, only callers that prove that
    /// they know the token are answered; otherwise only `GET` requests from this machine are. Messages to singletons
    /// ([`crate::Singleton::handle`]) arrive there too.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::NoRuntime`] outside a tokio runtime; [`crate::ErrorKind::Settings`] if it cannot listen there. The factory
    /// refuses an address that other machines reach without a token or certificates.
    #[cfg(feature = "requests")]
    pub async fn listen_for_requests(&self) -> Result<SocketAddr> {
        inside_runtime()?;
        super::receiver::show(&self.membership().ownership_context);
        super::channel::listen(&self.membership().ownership_context).await
    }

    /// This worker's answer, as to another member. `request.to` decides which handlers count.
    ///
    /// # Errors
    ///
    /// No handler has seen the request, or it is [`Undelivered::Unknown`] if one has handled it.
    pub async fn answer(&self, request: Request) -> std::result::Result<Answer, Undelivered> {
        if let Err(error) = inside_runtime() {
            return Ok(Answer::failed(&error.to_string()));
        }
        let until = Instant::now() + WITHIN_DEFAULT;
        let turn = RequestHandlers::turn(self.membership(), request.to, &request.path, until).await?;
        RequestHandlers::answer_apart(&self.membership().ownership_context, request, until, turn).await
    }

    /// For a server that listens on behalf of this worker: publishes its address. Returns the address as the others see it: with the host
    /// of `instance.address` if it listens on all addresses or has a certificate. [`crate::ErrorKind::Settings`] if no address is known, or
    /// the metadata becomes too long.
    pub fn requests_arrive_at(&self, listening: SocketAddr, tls: bool) -> Result<String> {
        #[cfg(feature = "requests")]
        super::receiver::show(&self.membership().ownership_context);
        arrive_at(self.membership(), listening, tls)
    }

    /// For a server that listens on behalf of this worker: proves itself by this instead of by the settings. Call it before anything else
    /// is asked or answered.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Conflict`] if it was called before, or this worker listens or has connections or handles of singletons already.
    pub fn secure_peers(&self, security: PeerSecurity) -> Result<()> {
        self.request_handlers().secure(security)
    }

    /// Brings requests to other members, over connections that all callers of this share. It calls only addresses in `peer_networks`, with
    /// the token and certificates of [`ShardingService::secure_peers`] or of the settings.
    #[cfg(feature = "requests")]
    pub fn connections(&self) -> Arc<dyn Transport> {
        connections(&self.membership().ownership_context)
    }

    /// The members that may be called, and their shared secret.
    pub fn peers(&self) -> &PeersSettings {
        &self.membership().peers
    }

    fn request_handlers(&self) -> Arc<RequestHandlers> {
        RequestHandlers::of(self.membership())
    }
}
