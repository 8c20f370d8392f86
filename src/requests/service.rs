//! A service's side of requests: its handlers, and the address of requests to them.

use std::net::SocketAddr;
use std::sync::Arc;

use super::handlers::{RequestHandlers, arrive_at, requests_path};
use super::{Addressee, Answer, Request};
use crate::error::{Result, inside_runtime};
use crate::membership::proof::{Channel, Recipient};
use crate::service::ShardingService;
use crate::settings::PeersSettings;

impl ShardingService {
    /// Answers requests to this one instance at `path`, such as `cache/size`, from now on, replacing an earlier handler; `status` is
    /// answered without one. Requests to any instance need a handler of [`ShardingService::on_any`]. Paths that start with `shardwise` are
    /// reserved: `shardwise/status` is answered even if `status` has a handler.
    ///
    /// Requests come through a sidecar of the group (`…/instances/{instance_id}/{path}`), once this worker listens. A handler has 10 s
    /// ([`crate::requests::ANSWER_WITHIN`]), bodies have at most 1 MiB in both directions, 64 requests are answered at once, and a panic is
    /// the answer 500. A handler that holds the service itself keeps it alive for ever.
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
    /// Register both handlers until all members are upgraded: older sidecars do not say that a request is for any instance, so such a request
    /// goes to the handler of [`ShardingService::on_request`].
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
        let boxed = move |request| -> futures::future::BoxFuture<'static, Answer> {
            let handler = Arc::clone(&handler);
            // The task includes what the handler does before its first await.
            Box::pin(async move { handler(request).await.into() })
        };
        self.request_handlers().register(to, path, Arc::new(boxed))
    }

    /// Listens for requests at the setting `peer_listen`, and publishes the address. Does nothing if it listens already.
    ///
    /// Call it before [`ShardingService::register_self`], so that the first record has the address. It ends with the service. If
    /// `peer_token_file` is set, only callers that prove that they know the token are answered; otherwise only `GET` requests from this
    /// machine are.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::NoRuntime`] outside a tokio runtime; [`crate::ErrorKind::Settings`] if it cannot listen there. The factory refuses an
    /// address that other machines reach: that takes TLS, which a sidecar has.
    #[cfg(feature = "requests")]
    pub async fn listen_for_requests(&self) -> Result<SocketAddr> {
        inside_runtime()?;
        super::listener::listen(self.membership()).await
    }

    /// This worker's answer at that path, as to another member. `request.to` decides which handlers count.
    pub async fn answer(&self, path: &str, request: Request) -> Answer {
        if let Err(error) = inside_runtime() {
            return Answer::failed(&error.to_string());
        }
        RequestHandlers::answer(self.membership(), path, request).await.unwrap_or_else(|busy| busy)
    }

    /// Whether such a request is handled in this process: by a handler, or because the path is reserved. The `status` that every member has
    /// does not count: a sidecar asks its worker first.
    pub fn handles(&self, to: Addressee, path: &str) -> bool {
        self.request_handlers().handles(to, path)
    }

    /// The start of the path of each request to this worker ([`crate::requests::path_to`]). It changes when the worker leaves and rejoins.
    pub fn requests_path(&self) -> String {
        requests_path(self.membership())
    }

    /// For a server that listens on behalf of this worker: publishes its address. Returns the address as the others see it: with the host
    /// of `instance.address` if it listens on all addresses or has a certificate. [`crate::ErrorKind::Settings`] if no address is known, or
    /// the metadata becomes too long.
    pub fn requests_arrive_at(&self, listening: SocketAddr, tls: bool) -> Result<String> {
        arrive_at(self.membership(), listening, tls)
    }

    /// This worker as the recipient, for the proofs of requests to it.
    pub fn recipient(&self) -> Recipient<'_> {
        self.membership().recipient(Channel::Requests)
    }

    /// The members that may be called, and their shared secret.
    pub fn peers(&self) -> &PeersSettings {
        &self.membership().peers
    }

    fn request_handlers(&self) -> Arc<RequestHandlers> {
        RequestHandlers::of(self.membership())
    }
}
